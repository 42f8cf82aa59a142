"""Ask: what the commands for operators share: the control socket of the broker of `--data`.

A broker that runs listens at `control.sock` in its data directory, readable by its own user alone;
that is all the permission that is asked for. So `--data` says which broker is meant, and no user or
password does; without it that is the one that `penstock serve` would run here. Nobody there:
UnavailableError, exit code 69.

The client of the socket is imported when a command runs. Tests hand another one in as the context's
object: a callable from data directory to Client.

Not here: what is asked (the other modules of this package), how requests travel
(penstock.server.control).
"""

import errno
import os  # noqa: TID251 - the environment, which says where the configuration is
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import click

from penstock import escaping
from penstock.cli.main import RefusedError, UnavailableError
from penstock.errors import OptionError

FILE: Final = "penstock.toml"
DEFAULT_DATA: Final = "./penstock-data"


def data_of(_ctx: click.Context, _param: click.Parameter, given: str | None) -> str:
    """The data directory that is meant: what was given, what the configuration beside us says for
    `serve`, or the default."""
    if given is not None:
        return given
    path = os.environ.get("PENSTOCK_CONFIG", FILE)
    if path == FILE and not Path(path).exists():
        return DEFAULT_DATA
    from penstock.config import parse_file

    data = parse_file(path, Path(path).read_text(encoding="utf-8")).get("data", DEFAULT_DATA)
    if not isinstance(data, str):
        raise OptionError(f"{path}: data", data, "a directory")
    return data


DATA = click.option(
    "--data",
    metavar="DIR",
    envvar="PENSTOCK_DATA",
    callback=data_of,
    help="Data directory of the broker [that of ./penstock.toml, or ./penstock-data].",
)


def named(_ctx: click.Context, _param: click.Parameter, given: str | None) -> str | None:
    """A name as it was given, in which `\\xNN` stands for a byte."""
    return None if given is None else escaping.unescaped(given)


VHOST = click.option(
    "-p",
    "--vhost",
    metavar="NAME",
    callback=named,
    default="/",
    show_default=True,
    help="The vhost.",
)


class Client(Protocol):
    """A connection to a broker's control socket."""

    def call(self, op: str, vhost: str | None = None, /, **args: object) -> Any:
        """The result of an operation, with bytes where they are. RefusedError, UnavailableError."""
        ...

    def close(self) -> None:
        """Give the connection back."""
        ...


Connect = Callable[[str], Client]


@contextmanager
def asked(data: str) -> Iterator[Client]:
    """The broker that serves this directory, for several operations."""
    connect: Connect = click.get_current_context().find_root().obj or _Socket
    client = connect(data)
    try:
        yield client
    finally:
        client.close()


def ask(data: str, op: str, vhost: str | None = None, /, **args: object) -> Any:
    """One operation on one connection."""
    with asked(data) as client:
        return client.call(op, vhost, **args)


class _Socket:
    """The real one; it connects at the first call."""

    def __init__(self, data: str) -> None:
        from penstock.server.control import ControlClient

        self._data = data
        self._client = ControlClient(data)

    def call(self, op: str, vhost: str | None = None, /, **args: object) -> Any:
        from penstock.server.control import ControlError, NoServerError

        try:
            return self._client.call(op, vhost, **args)
        except ControlError as error:
            raise RefusedError(error.code, error.text) from error
        except NoServerError as error:
            if isinstance(error.__cause__, PermissionError):
                text = "the control socket is for the user that runs the broker"
                raise PermissionError(errno.EACCES, text, self._data) from error
            raise UnavailableError(
                f"no broker answers in {self._data} ({error.reason}): is `penstock serve --data "
                f"{self._data}` running? --data says which one is meant"
            ) from error

    def close(self) -> None:
        self._client.close()
