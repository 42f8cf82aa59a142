"""Clients of Node, Go and Java over TLS, against a broker that runs: part of `make conformance`.

    python -m tests.conformance.tls_clients.run [--only NAME,...]

Each library comes from its registry in the version that is pinned here or beside its program, which
publishes 100 messages with confirms, gets them back, and checks the broker's certificate and name.
A language whose tools are not installed is left out, with a line. Exit code 1 if any other fails.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.helpers.live_broker import LiveBroker
from tests.helpers.tls_files import TlsFiles

HERE = Path(__file__).parent
JARS = ("com.rabbitmq:amqp-client:5.22.0", "org.slf4j:slf4j-api:1.7.36")
LIMIT_S = 600

# name -> the commands that make its client, in a copy of this directory; the last one runs it
CLIENTS: dict[str, list[list[str]]] = {
    "node": [["npm", "install", "--silent", "--no-audit"], ["node", "client.mjs"]],
    "go": [["go", "build", "-o", "client", "."], ["./client"]],
    "java": [
        *(
            ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={jar}", "-DoutputDirectory=jars"]
            for jar in JARS
        ),
        ["javac", "-cp", "jars/*", "Client.java"],
        ["java", "-cp", "jars/*:.", "Client"],
    ],
}


def run(name: str, directory: Path, words: list[str]) -> str:
    """Make a client and run it; return "" or what went wrong."""
    place = directory / name
    shutil.copytree(HERE, place)
    *made, last = CLIENTS[name]
    for command in (*made, [*last, *words]):
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=LIMIT_S)
        if done.returncode:
            return f"{' '.join(command)}: {(done.stdout + done.stderr).strip()[-2000:]}"
    return "" if "100 messages" in done.stdout else f"it printed {done.stdout!r}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(CLIENTS), help="names with commas between them")
    given = parser.parse_args()
    failed = []
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        files = TlsFiles(directory / "certificates")
        with LiveBroker(directory / "data", environment=files.environment()) as broker:
            words = ["localhost", str(broker.tls_port), str(files.path("ca.pem"))]
            for name in given.only.split(","):
                missing = [one[0] for one in CLIENTS[name] if not one[0].startswith("./")]
                missing = [tool for tool in missing if shutil.which(tool) is None]
                if missing:
                    print(f"{name} over TLS: left out, {missing[0]} is not installed")
                    continue
                wrong = run(name, directory, words)
                print(f"{name} over TLS: {wrong or 'ok'}", flush=True)
                failed += [name] * bool(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
