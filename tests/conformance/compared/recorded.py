"""The recordings: what RabbitMQ answered, and Penstock where it is meant to differ.

= id of the session, how many steps
0 1 queue.declare-ok ...      step, then the line as the runner has it
"""

from pathlib import Path

from tests.conformance.compared.runner import Transcript

GOLDEN = Path(__file__).parent.parent.parent / "golden"
THEIRS = GOLDEN / "rabbitmq_answers.txt"
OURS = GOLDEN / "penstock_answers.txt"


def read_transcripts(path: Path) -> dict[str, Transcript]:
    """All of a file, {} if it is not there."""
    found: dict[str, Transcript] = {}
    now: Transcript = []
    for line in path.read_text().splitlines() if path.exists() else ():
        first, _, rest = line.partition(" ")
        if first == "=":
            name, _, count = rest.rpartition(" ")
            now = found[name] = [[] for _ in range(int(count))]
        elif line:
            now[int(first)].append(rest)
    return found


def write_transcripts(path: Path, transcripts: dict[str, Transcript]) -> None:
    lines: list[str] = []
    for name, steps in sorted(transcripts.items()):
        lines.append(f"= {name} {len(steps)}")
        lines += [f"{at} {line}" for at, said in enumerate(steps) for line in said]
    path.write_text("\n".join(lines) + "\n")
