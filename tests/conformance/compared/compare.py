"""Run every script on RabbitMQ and on Penstock, and show where they differ.

    python -m tests.conformance.compared.compare [--url URL] [--only TEXT] [--record]

--url: a RabbitMQ that runs; without it one of the installed package is started for the run, on a
free port and a directory of its own. --record writes what RabbitMQ answered to
`tests/golden/rabbitmq_answers.txt`, and what Penstock answers where `differences.py` says that it
is to differ to `penstock_answers.txt`; `make test` compares with those, without RabbitMQ. Exit code
1 when a session differs that is not listed, or one that is listed does not, or RabbitMQ does not
answer as it was recorded. Such sessions run once more, one after the other, and count as they went
then: on a busy machine an answer may come too late for what waits only so long.
"""

import argparse
import difflib
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from tests.conformance.compared.corpus import scripts
from tests.conformance.compared.differences import reason
from tests.conformance.compared.rabbitmq import RabbitMQ, is_installed
from tests.conformance.compared.recorded import (
    OURS,
    THEIRS,
    read_transcripts,
    write_transcripts,
)
from tests.conformance.compared.runner import Runner, Transcript
from tests.conformance.compared.script import Script
from tests.helpers.live_broker import Broker, ExternalBroker, LiveBroker

THREADS = 24


def run_all(broker: Broker, found: list[Script], threads: int = THREADS) -> dict[str, Transcript]:
    """The transcripts of these scripts, several at a time."""
    waiting: SimpleQueue[Script | None] = SimpleQueue()
    for script in found:
        waiting.put(script)
    transcripts: dict[str, Transcript] = {}
    errors: list[BaseException] = []

    def work() -> None:
        runner = Runner(broker)
        while (script := waiting.get()) is not None:
            try:
                transcripts[script.id] = runner.run(script)
            except BaseException as error:
                error.add_note(f"in {script.id}")
                errors.append(error)
                runner = Runner(broker)
        runner.close()

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        waiting.put(None)
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]
    return {script.id: transcripts[script.id] for script in found}


def difference(theirs: Transcript, ours: Transcript) -> str:
    """The lines in which two transcripts differ, - RabbitMQ's, + Penstock's."""
    flat = [[f"{at} {line}" for at, lines in enumerate(one) for line in lines]
            for one in (theirs, ours)]  # fmt: skip
    return "\n".join(line for line in difflib.ndiff(*flat) if not line.startswith("?"))


@contextmanager
def rabbitmq(url: str | None) -> Iterator[Broker]:
    if url:
        yield ExternalBroker(url)
        return
    if not is_installed():
        raise SystemExit(
            "The comparison needs RabbitMQ, which is not installed: `apt-get install "
            "rabbitmq-server`, or name one that runs with --url. `make test` compares with what "
            "RabbitMQ answered when it was last there."
        )
    with (
        tempfile.TemporaryDirectory(prefix="penstock-rabbitmq-") as directory,
        RabbitMQ(Path(directory)) as broker,
    ):
        yield broker


def answers(
    found: list[Script], url: str | None, threads: int = THREADS
) -> tuple[dict[str, Transcript], dict[str, Transcript]]:
    """What RabbitMQ and Penstock answer. url: see `rabbitmq`; "" for what was recorded."""
    if url == "":
        recorded = read_transcripts(THEIRS)
        theirs = {script.id: recorded[script.id] for script in found}
    else:
        with rabbitmq(url) as broker:
            theirs = run_all(broker, found, threads)
    with (
        tempfile.TemporaryDirectory() as directory,
        LiveBroker(Path(directory) / "data") as broker,
    ):
        return theirs, run_all(broker, found, threads)


def wrong(name: str, theirs: Transcript, ours: Transcript, was: Transcript | None) -> list[str]:
    """What is wrong with a session. was: what RabbitMQ answered before."""
    texts = []
    if was is not None and theirs != was:
        texts.append(f"--- {name}: RabbitMQ is not as recorded\n{difference(was, theirs)}")
    why = reason(name)
    if (ours != theirs) is not bool(why):
        text = difference(theirs, ours) if not why else f"listed, and does not differ: {why}"
        texts.append(f"--- {name}\n{text}")
    return texts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--url", help="amqp:// URL of a RabbitMQ that runs")
    parser.add_argument("--only", default="", help="sessions whose id contains this")
    parser.add_argument("--record", action="store_true", help="write the golden files")
    parser.add_argument("--golden", action="store_true", help="RabbitMQ's part from the recording")
    arguments = parser.parse_args()
    found = [script for script in scripts() if arguments.only in script.id]
    recorded = read_transcripts(THEIRS)
    url = "" if arguments.golden else arguments.url
    theirs, ours = answers(found, url)

    def texts(script: Script) -> list[str]:
        was = None if arguments.record else recorded.get(script.id, [])
        return wrong(script.id, theirs[script.id], ours[script.id], was)

    again = [script for script in found if texts(script)]
    if again and not arguments.record:
        names = ", ".join(script.id for script in again)
        print(f"once more, one after the other: {names}")
        for told, once_more in zip((theirs, ours), answers(again, url, threads=1), strict=True):
            told.update(once_more)
    bad = [text for script in found for text in texts(script)]
    for text in bad:
        print(text)
    listed = sum(bool(reason(script.id)) for script in found)
    print(f"{len(found)} sessions, {listed} listed as different, {len(bad)} wrong")
    if arguments.record:
        write_transcripts(THEIRS, {**recorded, **theirs} if arguments.only else theirs)
        kept = read_transcripts(OURS) if arguments.only else {}
        kept.update((one, ours[one]) for one in ours if reason(one))
        write_transcripts(OURS, kept)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
