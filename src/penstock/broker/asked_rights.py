"""AskedRights: what a server of [auth_http] allows, asked for by those who use a vhost.

A user whose resources (queues, exchanges) or topics such a server decides has an Identity that says
so. What the permissions kept here allow is then asked of the server, too, by RabbitMQ's protocol.
The vhost's turn waits for nobody:

    check     an answer is known: nothing happens, or the refusal is raised. None is known: the
              question is sent, and RightsUnknown is raised before anything has happened
    whoever   holds what was asked for, and everything behind it, until `when_known` calls back;
              then it is done again from its beginning
    answered  the answer is kept: if it allows for `valid_s`, else for DENIED_S

RightsUnknown is a refusal: where nobody holds anything, the answer is 403, and nothing was allowed
that the server has not allowed. valid_s is at least twice the time that the server has for an
answer, so that all answers that one request needs are valid when it is done.

A connection waits as a whole, as it does when memory is short, so it asks one question at a time.
ANSWERS_MAX answers are kept. After valid_s connections forget the routes of their publishes, and
ask again; consumers go on, as in RabbitMQ.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from penstock.access.permissions import Identity
from penstock.broker import refusals
from penstock.clock import Clock
from penstock.errors import ACCESS_REFUSED, ChannelError

ANSWERS_MAX: Final = 4096
DENIED_S: Final = 1.0

Question = tuple[str, str, str, str, str, str]  # user, host, permission, resource, name, key


class RightsUnknown(ChannelError):
    """The server has not answered the question yet."""

    def __init__(self, question: Question) -> None:
        super().__init__(
            ACCESS_REFUSED,
            f"{question[2]} access to {question[3]} '{question[4]}' refused for user "
            f"'{question[0]}': the server of auth_http has not answered yet, try again",
        )
        self.question: Question = question


class AskedRights:
    """The answers for one vhost. send(question): asks the server; then `answered` is called. None:
    there is none, and everything is denied. forget_routes(): called when answers have become
    old."""

    def __init__(self, vhost: str, clock: Clock, forget_routes: Callable[[], None]) -> None:
        self.send: Callable[[Question], None] | None = None
        self._vhost = vhost
        self._clock = clock
        self._forget_routes = forget_routes
        self._answers: OrderedDict[Question, tuple[bool, float]] = OrderedDict()  # until when
        self._waiting: dict[Question, list[Callable[[], None]]] = {}
        self._names: dict[str, str] = {}  # user -> of a queue that the server names, asked about
        self._old_s: float = 0.0  # when routes are forgotten; 0.0: there are none

    def check(self, identity: Identity, verb: str, kind: str, name: str, key: str = "") -> None:
        """Raise ChannelError 403 if the server denies this to the user, RightsUnknown if it has not
        said so yet. kind: queue, exchange or topic; key: of a topic."""
        question = (identity.name, identity.asks_from, verb, kind, name, key)
        is_allowed, until_s = self._answers.get(question, (False, 0.0))
        if self._clock.monotonic() < until_s:
            if is_allowed:
                return
            if kind == "topic":
                raise refusals.no_topic(verb, name, key, self._vhost, identity.name)
            raise refusals.no_access(verb, kind, name, self._vhost, identity.name)
        if self.send is not None and question not in self._waiting:
            self._waiting[question] = []
            self.send(question)
        raise RightsUnknown(question)

    def when_known(self, question: Question, then: Callable[[], None]) -> None:
        """Call `then` when the question of RightsUnknown has an answer."""
        waiting = self._waiting.get(question)
        if waiting is None:  # it cannot be asked
            raise RightsUnknown(question)
        waiting.append(then)

    def answered(self, question: Question, valid_s: float, *, is_allowed: bool) -> None:
        """Take the server's answer."""
        now_s = self._clock.monotonic()
        self._answers[question] = is_allowed, now_s + (valid_s if is_allowed else DENIED_S)
        self._answers.move_to_end(question)
        if len(self._answers) > ANSWERS_MAX:
            self._answers.popitem(last=False)
        if is_allowed and not self._old_s:
            self._old_s = now_s + valid_s
        for then in self._waiting.pop(question, ()):
            then()

    def tick(self, now_s: float) -> None:
        """Have routes forgotten whose answers may be old."""
        if self._old_s and now_s >= self._old_s:
            self._old_s = 0.0
            self._forget_routes()

    # ---- names that the server makes -----------------------------------------------------------

    def keep_name(self, user: str, name: str) -> None:
        """Keep the name of a queue that was asked about, so that it is declared with that name."""
        self._names[user] = name

    def take_name(self, user: str) -> str:
        """Return the name that was kept last, "" if there is none."""
        return self._names.pop(user, "")
