"""BackingChoice: which class holds the messages of a queue.

RabbitMQ takes the module behind its queues from the configuration (backing_queue_module). Here it
is `backing_queue` in the table [queues] of penstock.toml, or an option of `penstock.open`: the name
of a class as "package.module:Class". A queue may name another with `x-backing-queue`, if the
operator has listed that in `allowed_backing_queues`: a name is code that is imported, and not
everybody who may declare a queue may run code.

A class is a BackingQueue (backing_queue.py has the contract), and is called once for each index:

    Class(engine, index, mode=..., policy=..., on_event=...)

with what VariableQueue takes. The engine keeps what is safe, so a queue may have another class
after every start. Queues with priorities are made of VariableQueues, and so are parts for delayed
messages. tests/unit/queues/test_sqlite_queue.py shows how a class is put through the contract.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from penstock.errors import OptionError
from penstock.options import Option, checked, names
from penstock.queues.queue_options import class_name

DEFAULT: Final = "penstock.queues.variable_queue:VariableQueue"
# Methods of BackingQueue that a class need not define.
WITH_DEFAULT: Final = frozenset(("add_states", "move_run", "pending_headers", "state_of", "unlink"))


@dataclass(frozen=True, slots=True)
class BackingChoice:
    """backing_queue: the class of queues that name none. allowed_backing_queues: the classes that
    queues may name. OptionError: one of them is no name of a class, or cannot be imported."""

    backing_queue: str = DEFAULT
    allowed_backing_queues: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.backing_queue != DEFAULT:  # it is imported where it is needed
            load("backing_queue", self.backing_queue)
        for name in self.allowed_backing_queues:
            load("allowed_backing_queues", name)

    def maker(self, named: str) -> Callable[..., Any]:
        """Return the class of a queue that names this one, "" for none. OptionError: it may not."""
        if not named or named == self.backing_queue:
            return load("backing_queue", self.backing_queue)
        if named not in self.allowed_backing_queues:
            allowed = (self.backing_queue, *self.allowed_backing_queues)
            expected = f"one that the operator allows: {', '.join(allowed)}"
            raise OptionError("backing_queue", named, expected)
        return load("backing_queue", named)


def load(option: str, name: object) -> Callable[..., Any]:
    """Return the class of this name. Raises OptionError under the name of the option."""
    from penstock.queues.backing_queue import BackingQueue

    checked(class_name(), option, name)
    module, _, inner = str(name).partition(":")
    try:
        found = getattr(import_module(module), inner, None)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise OptionError(option, name, f"a class that can be imported ({text})") from error
    # Not issubclass: compiled subclasses share the cache of the ABC, so one that it has found to be
    # a BackingQueue would pass for any other from then on (isinstance(x, PriorityQueue)).
    if not isinstance(found, type) or BackingQueue not in found.__mro__:
        raise OptionError(option, name, f"a subclass of BackingQueue in the module {module}")
    # Compiled, a method that is missing would end the process when it is called.
    missing = [
        each for each in required_methods() if getattr(found, each) is getattr(BackingQueue, each)
    ]
    if missing:
        raise OptionError(option, name, f"a class that defines {', '.join(missing)}, too")
    made: Any = found
    try:
        made.__new__(made)
    except TypeError as error:
        if "cannot inherit from compiled" in str(error):  # mypyc's text
            raise OptionError(option, name, f"a class that can be made ({error})") from None
    return found


def required_methods() -> list[str]:
    """Return the methods that a BackingQueue must define. (A compiled ABC does not know them.)"""
    from penstock.queues.backing_queue import BackingQueue

    public = [each for each in vars(BackingQueue) if not each.startswith("_")]
    return sorted(set(public) - WITH_DEFAULT)


QUEUE_OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        "backing_queue", class_name(),
        "the [class](../guides/backing-queues.md) that holds the messages of a queue",
    ),
    Option(
        "allowed_backing_queues", names(), "classes that queues may name with `x-backing-queue`"
    ),
)  # fmt: skip
