"""Changes src at random places, one at a time, and sees whether the tests notice.

    python tools/mutate.py [--seed S] [--count N] [--only PATH:LINE]

Each mutation changes one operator, number or condition, or deletes one call, in a copy of the
package, uncompiled. Docstrings, texts and calls that only log are left alone. First run the tests
named after the module, then those of its package, then wider ones, until one of them fails; it must
pass without the mutation. One that takes longer than LIMIT_S has noticed as well.

A line is printed for each mutation and one with the sum; the exit status is 1 if fewer than
NOTICED_SHARE were noticed. Of those that were not, some change nothing that anybody could see: they
are for people to judge.
"""

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
SOURCE: Final = ROOT / "src" / "penstock"
TESTS: Final = ROOT / "tests"
LIMIT_S: Final = 900
NOTICED_SHARE: Final = 0.8
SILENT: Final = re.compile(r"(^|[._])(log|say|info|warning|debug|error|exception|print|echo)\(")
OPERATORS: Final[dict[type[ast.AST], tuple[str, str]]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.FloorDiv: ("//", "*"),
    ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"), ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"), ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"), ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"), ast.And: ("and", "or"), ast.Or: ("or", "and"),
}  # fmt: skip


@dataclass(frozen=True)
class Mutation:
    """Bytes `start` to `end` of a file of the package are replaced. line: where, from 1."""

    path: Path
    line: int
    start: int
    end: int
    old: str
    new: str

    def __str__(self) -> str:
        old = self.old.strip().splitlines()[0][:60]
        return f"{self.path}:{self.line} {old!r} -> {self.new!r}"


class Finder:
    """The mutations of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path.relative_to(SOURCE)
        self.data = path.read_bytes()
        self.tree = ast.parse(self.data)
        self.starts = [0]
        for line in self.data.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def all(self) -> Iterator[Mutation]:
        """One after the other; annotations are left alone."""
        left_out = set()
        for node in ast.walk(self.tree):
            for name in ("annotation", "returns"):
                if isinstance(annotation := getattr(node, name, None), ast.AST):
                    left_out.update(ast.walk(annotation))
        for node in ast.walk(self.tree):
            if node not in left_out:
                yield from self._of(node)

    def _of(self, node: ast.AST) -> Iterator[Mutation]:
        match node:
            case ast.BinOp(left=left, op=op, right=right):
                yield from self._between(left, op, right)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                yield from self._between(left, op, right)
            case ast.BoolOp(op=op, values=[left, right, *_]):
                yield from self._between(left, op, right)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield self._made(node, self._text(operand))
            case ast.Constant(value=bool() as value):
                yield self._made(node, str(not value))
            case ast.Constant(value=int() as number):
                yield self._made(node, str(number + 1))
            case ast.If(test=test) | ast.While(test=test):
                yield self._made(test, f"(not ({self._text(test)}))")
            case ast.Expr(value=ast.Call()) if not SILENT.search(self._text(node)):
                yield self._made(node, "pass")

    def _at(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column

    def _span(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr | ast.stmt)
        end_line, end_column = node.end_lineno, node.end_col_offset
        assert end_line is not None
        assert end_column is not None
        return self._at(node.lineno, node.col_offset), self._at(end_line, end_column)

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self.data[start:end].decode()

    def _made(self, node: ast.AST, new: str) -> Mutation:
        start, end = self._span(node)
        line = self.data.count(b"\n", 0, start) + 1
        return Mutation(self.path, line, start, end, self._text(node), new)

    def _between(self, left: ast.expr, op: ast.AST, right: ast.expr) -> Iterator[Mutation]:
        """The operator itself, if it stands once between the two."""
        if type(op) not in OPERATORS:
            return
        old, new = OPERATORS[type(op)]
        start, end = self._span(left)[1], self._span(right)[0]
        if self.data.count(old.encode(), start, end) == 1:
            at = self.data.index(old.encode(), start, end)
            line = self.data.count(b"\n", 0, at) + 1
            yield Mutation(self.path, line, at, at + len(old), old, new)


def stages(path: Path) -> Iterator[list[str]]:
    """Tests of that module, the nearest first."""
    package = path.parts[0] if len(path.parts) > 1 else ""
    own = sorted(str(p) for p in (TESTS / "unit").rglob(f"test_{path.stem}*.py"))
    if own:
        yield own
    if (TESTS / "unit" / package).is_dir():
        yield [str(TESTS / "unit" / package)]
    wider = {"spark": ["spark"], "storage": ["property", "contracts", "crash"]}
    yield [
        str(TESTS / name)
        for name in wider.get(package, ["property", "contracts", "cli", "http", "server"])
    ]


class Copy:
    """A copy of the package that is mutated and mended."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        without = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(SOURCE, directory / "penstock", ignore=without)

    def run(self, tests: list[str]) -> tuple[bool, str]:
        """(whether all of these pass, the name of the first that does not)."""
        environment = {
            **os.environ, "PYTHONPATH": str(self.directory), "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-x", *tests]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
                timeout=LIMIT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False, ""
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
        return done.returncode in (0, 5), failed[1] if failed else ""

    def notices(self, mutation: Mutation) -> str:
        """What notices it; "" if nothing does."""
        module = self.directory / "penstock" / mutation.path
        data = module.read_bytes()
        mutated = data[: mutation.start] + mutation.new.encode() + data[mutation.end :]
        for tests in stages(mutation.path):
            module.write_bytes(mutated)
            try:
                passes, name = self.run(tests)
            finally:
                module.write_bytes(data)
            if not passes and (not name or self.run([name])[0]):
                return name or "does not start, or does not end"
        return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--only", help="PATH:LINE, as a line of the output begins")
    given = parser.parse_args()
    found = [one for path in sorted(SOURCE.rglob("*.py")) for one in Finder(path).all()]
    drawn = random.Random(given.seed).sample(found, min(given.count, len(found)))
    if given.only:
        drawn = [one for one in found if f"{one.path}:{one.line}" == given.only]
    print(f"{len(found)} places, seed {given.seed}, {len(drawn)} drawn", flush=True)
    noticed = 0
    with tempfile.TemporaryDirectory() as directory:
        copy = Copy(Path(directory))
        for mutation in drawn:
            by = copy.notices(mutation)
            noticed += bool(by)
            print(f"{'noticed' if by else 'PASSED ':8} {mutation}  {by}", flush=True)
    print(f"{noticed} of {len(drawn)} were noticed")
    return 0 if noticed >= NOTICED_SHARE * len(drawn) else 1


if __name__ == "__main__":
    sys.exit(main())
