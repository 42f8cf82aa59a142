"""Which class holds the messages of a queue: names, permission, what a box does with them."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import penstock
from penstock.config import config_of
from penstock.errors import OptionError
from penstock.native import build_kind
from penstock.queues.backing_choice import DEFAULT, BackingChoice, required_methods
from penstock.queues.backing_queue import BackingQueue
from penstock.queues.sqlite_queue import SqliteQueue
from penstock.queues.variable_queue import VariableQueue

SQLITE = "penstock.queues.sqlite_queue:SqliteQueue"


def test_the_usual_class_and_an_allowed_one() -> None:
    choice = BackingChoice(allowed_backing_queues=(SQLITE,))
    assert choice.maker("") is VariableQueue
    assert choice.maker(DEFAULT) is VariableQueue
    assert choice.maker(SQLITE) is SqliteQueue
    assert BackingChoice(SQLITE).maker("") is SqliteQueue


def test_a_class_that_is_not_allowed() -> None:
    with pytest.raises(OptionError, match=f"given '{SQLITE}', expected one that the operator"):
        BackingChoice().maker(SQLITE)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("VariableQueue", 'a class such as "package.module:Class"'),
        ("a:b:c", 'a class such as "package.module:Class"'),
        (":C", 'a class such as "package.module:Class"'),
        ("no.such.module:C", "a class that can be imported"),
        ("os.path:join", "a subclass of BackingQueue in the module os.path"),
        ("penstock.queues.sqlite_queue:Missing", "a subclass of BackingQueue in the module"),
    ],
)
def test_what_is_no_class(name: object, expected: str) -> None:
    for given in ({"backing_queue": name}, {"allowed_backing_queues": [name]}):
        with pytest.raises(OptionError) as caught:
            config_of(whole_bytes=1 << 30, flags={}, environment={}, file={"queues": given})
        assert expected in str(caught.value)
        assert str(caught.value).startswith(f"option penstock.toml: queues.{next(iter(given))}: ")


def in_a_module(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return how a refused class is described: C of a module with this source."""
    module = f"backing_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(OptionError) as caught:
        BackingChoice(f"{module}:C")
    return str(caught.value)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(:", "expected a class that can be imported (SyntaxError: "),
        ("1 / 0", "expected a class that can be imported (ZeroDivisionError: division by zero)"),
    ],
)
def test_a_module_that_cannot_be_imported(
    source: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert expected in in_a_module(source, tmp_path, monkeypatch)


def test_a_class_without_some_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled, such a method ended the process."""
    source = (
        "from penstock.queues.backing_queue import BackingQueue\n"
        "from penstock.queues.sqlite_queue import SqliteQueue as S\n"
        "methods = [name for name in vars(S) if name not in ('fetch', 'ack')]\n"
        "C = type('C', (BackingQueue,), {name: vars(S)[name] for name in methods})\n"
    )
    text = in_a_module(source, tmp_path, monkeypatch)
    assert text.endswith("expected a class that defines ack, fetch, too")


@pytest.mark.skipif(build_kind() != "compiled", reason="compiled classes only")
def test_a_class_that_inherits_from_a_compiled_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "from penstock.queues.variable_queue import VariableQueue\nclass C(VariableQueue): pass\n"
    )
    text = in_a_module(source, tmp_path, monkeypatch)
    assert "interpreted classes cannot inherit from compiled" in text


@pytest.mark.skipif(build_kind() == "compiled", reason="a compiled ABC does not know its methods")
def test_the_methods_that_a_class_must_define() -> None:
    assert set(required_methods()) == BackingQueue.__abstractmethods__


def test_configuration_of_a_broker() -> None:
    def queues(environment: dict[str, str], **file: object) -> BackingChoice:
        return config_of(
            whole_bytes=1 << 30, flags={}, environment=environment, file={"queues": file}
        ).queues

    assert queues({}) == BackingChoice()
    assert queues({}, backing_queue=SQLITE).backing_queue == SQLITE
    allowed = queues({"PENSTOCK_QUEUES_ALLOWED_BACKING_QUEUES": f"{SQLITE}, {DEFAULT}"})
    assert allowed.allowed_backing_queues == (SQLITE, DEFAULT)
    with pytest.raises(OptionError, match="did you mean 'backing_queue'"):
        queues({}, backing_queu=SQLITE)


def test_a_box_whose_queues_are_in_sqlite(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "box", backing_queue=SQLITE) as box:
        box.queue("q").put_many([b"one", b"two"])
        job = box.queue("q").get()
        (path,) = (tmp_path / "box").glob("vhosts/*/queues/*/messages.sqlite")
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            found = database.execute("SELECT state, body FROM messages ORDER BY seq").fetchall()
        assert found == [("pending", b"one"), ("ready", b"two")]
        job.ack()
    assert not path.exists()
    with penstock.open(tmp_path / "box") as box:  # another class after another start
        assert box.queue("q").get().body == b"two"


def test_a_queue_of_a_box_names_its_class(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "box", allowed_backing_queues=[SQLITE]) as box:
        q = box.queue("q", backing_queue=SQLITE)
        q.put(b"one")
        with pytest.raises(OptionError, match="fixed for the life of queue q"):
            box.queue("q", backing_queue=DEFAULT)
        with pytest.raises(OptionError, match="priorities are made of VariableQueues"):
            box.queue("r", backing_queue=SQLITE, priorities=3)
    with penstock.open(tmp_path / "box") as box:
        with pytest.raises(OptionError, match="one that the operator allows"):
            box.queue("other", backing_queue=SQLITE)
        assert box.queues() == ["q"]
        assert box.queue("q").get().body == b"one"
