"""FileSink: the files of a batch appear in a directory once, whatever crashes in between.

Spark replays a batch that it has no commit of: the same batch of the same query, with the same
rows, but maybe in other files. So a batch is written beside the data and decided before it shows:

    <directory>/.penstock/<query>/batch-<n>-<run>/   1  Spark writes the batch's files here
    <directory>/.penstock/<query>/<n>.json           2  the manifest: which files, under which
                                                        names. It is there whole or not, and decides
    <directory>/month=1/<query>-<n>-<i>.parquet      3  each file is renamed to its place

A replay that finds no manifest begins again at 1. One that finds it writes nothing: it goes on with
the renames that are missing. Either way each row stands in one file of that batch, and a reader
that is not Spark sees no file of a failed attempt, as it does with Spark's own file sink.

A run writes where no other does: when a driver is killed, its JVM may go on for a moment, and what
that still writes is nobody's. The query is the id that Spark keeps in the checkpoint: a new one is
a new query, whose batches are others, and what it reads again it writes again.

Not here: the rows (pipeline_frames.py), the file systems (lake_files.py).
"""

import json
from typing import Final

from penstock.spark.lake_files import LakeFiles

HIDDEN: Final = ".penstock"
MANIFESTS_KEPT: Final = 10
QUERY_LETTERS: Final = 8  # of its id, in the names of files


class FileSink:
    """One directory, for one query, in one run. run: a word that no other run of it has."""

    def __init__(self, files: LakeFiles, directory: str, query_id: str, run: str) -> None:
        self._files = files
        self._directory = directory.rstrip("/")
        self._query = query_id[:QUERY_LETTERS]
        self._run = run
        self._hidden = f"{self._directory}/{HIDDEN}/{query_id}"

    def begin(self, batch_id: int) -> str | None:
        """Where Spark shall write the batch to; None: it was decided before, and is there."""
        if self._files.exists(self._manifest(batch_id)):
            self._go_on(batch_id)
            return None
        return self._staged(batch_id)

    def commit(self, batch_id: int) -> int:
        """What Spark has written there is the batch: let it show. How many files."""
        staged = self._staged(batch_id)
        names = self._files.data_files(staged)
        self._files.sync(staged, names)
        moves = {name: self._final(name, batch_id, number) for number, name in enumerate(names)}
        text = json.dumps({"batch": batch_id, "run": self._run, "files": moves})
        self._files.write(self._manifest(batch_id), text)
        self._go_on(batch_id)
        return len(names)

    def _go_on(self, batch_id: int) -> None:
        """The renames that a manifest names, and then what is not needed any more. A file that is
        not there to be renamed has been."""
        manifest = json.loads(self._files.read(self._manifest(batch_id)))
        staged = self._staged(batch_id, manifest["run"])
        moves: dict[str, str] = manifest["files"]
        waiting = set(self._files.data_files(staged)) & moves.keys()
        self._files.move(
            [(f"{staged}/{name}", f"{self._directory}/{moves[name]}") for name in sorted(waiting)]
        )
        self._forget(batch_id)

    def _forget(self, batch_id: int) -> None:
        """What runs left of this batch and of those before it; manifests that Spark cannot ask for
        again."""
        for name in self._files.names(self._hidden):
            kind, _, rest = name.partition("-")
            number = rest.partition("-")[0] if kind == "batch" else name.removesuffix(".json")
            kept = 0 if kind == "batch" else MANIFESTS_KEPT
            if number.isdecimal() and int(number) <= batch_id - kept:
                self._files.delete(f"{self._hidden}/{name}")

    def _staged(self, batch_id: int, run: str | None = None) -> str:
        return f"{self._hidden}/batch-{batch_id:08d}-{run or self._run}"

    def _manifest(self, batch_id: int) -> str:
        return f"{self._hidden}/{batch_id:08d}.json"

    def _final(self, name: str, batch_id: int, number: int) -> str:
        """Of a file: its partition's directory, and a name of the batch's own."""
        directory, _, file = name.rpartition("/")
        suffix = file.partition(".")[2]
        suffix = suffix.partition(".")[2] if suffix.startswith("c0") else suffix
        fresh = f"{self._query}-{batch_id:08d}-{number:05d}.{suffix}"
        return f"{directory}/{fresh}" if directory else fresh
