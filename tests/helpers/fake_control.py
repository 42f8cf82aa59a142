"""FakeControl: a broker at its control socket: answers as told, remembers what it was asked.

Terminal: a terminal at which this is typed, for sys.stdin.
"""

import io
from typing import Any

from penstock.cli.main import main

Asked = tuple[str, str | None, dict[str, object]]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class FakeControl:
    """answers: operation -> its result, an error to raise, or a function of the arguments."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[Asked] = []
        self.data: list[str] = []
        self.is_open = False

    def __call__(self, data: str) -> "FakeControl":
        self.data.append(data)
        self.is_open = True
        return self

    def call(self, op: str, vhost: str | None = None, /, **args: object) -> Any:
        assert self.is_open
        self.asked.append((op, vhost, args))
        answer = self.answers.get(op)
        if callable(answer):
            answer = answer(**args)
        if isinstance(answer, list) and answer and isinstance(answer[0], BaseException):
            answer = answer.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> None:
        self.is_open = False

    def run(self, *words: str) -> int:
        """The exit code of this command."""
        code = main(list(words), obj=self)
        assert not self.is_open
        return code
