"""What the dashboard alone asks: login and logout, events, and samples of the past.

Login and logout are answered without a password: the login has it in its body, and the logout needs
none. They begin and end the sessions of sessions.py; a password is checked as that of basic
authentication is, behind the same brakes. The others are answered by live.py.
"""

from collections.abc import Awaitable, Callable

from starlette.responses import StreamingResponse

from penstock.http.endpoint import SEEN, Answer, ApiRequest, not_authorised
from penstock.http.live import QUEUE_TOPICS_MAX, RINGS, queue_of
from penstock.http.requests import HttpError, NotAuthorizedError, check_is_own, host_of
from penstock.http.sessions import COOKIE, cookie
from penstock.operation_table import MANAGERS


async def login(asked: ApiRequest) -> object:
    """Begin a session. Raises HttpError 401, 403, 429."""
    _check_browser(asked)
    password = asked.body["password"].encode("utf-8", "surrogateescape")
    try:
        account = await asked.auth.account(asked.body["username"], password, host_of(asked.request))
    except NotAuthorizedError as error:  # without the header that makes a browser ask
        raise HttpError(401, error.reason) from error
    if account.tags.isdisjoint(MANAGERS):
        raise not_authorised(
            f"user '{account.user}' has none of the tags {', '.join(MANAGERS)}: an administrator "
            "gives one by 'penstock set_user_tags'"
        )
    token = asked.auth.sessions.begin(account)
    found = {"name": account.user, "tags": sorted(account.tags)}
    return Answer(200, found, {"Set-Cookie": cookie(token, is_tls=_is_tls(asked))})


async def logout(asked: ApiRequest) -> object:
    """End the session, if there is one. Raises HttpError 403."""
    _check_browser(asked)
    asked.auth.sessions.end(asked.request.cookies.get(COOKIE, ""))
    return Answer(204, None, {"Set-Cookie": cookie("", is_tls=_is_tls(asked), seconds=0)})


def _check_browser(asked: ApiRequest) -> None:
    """Raise HttpError 403 if a page of another origin logs its user in or out."""
    if "origin" in asked.request.headers:
        check_is_own(asked.request)


def _is_tls(asked: ApiRequest) -> bool:
    """Return whether the browser speaks HTTPS, with us or with a proxy."""
    request = asked.request
    return "https" in (request.url.scheme, request.headers.get("origin", "").partition(":")[0])


# ---- events and samples --------------------------------------------------------------------------


def _lasts(asked: ApiRequest) -> Callable[[], Awaitable[bool]]:
    """Return a function that says whether the user may still have events."""
    account, users = asked.account, asked.node.users
    claim = users.claim(account.user)
    sessions, token = asked.auth.sessions, asked.request.cookies.get(COOKIE, "")
    has_session = sessions.account(token) is not None

    async def lasts() -> bool:
        await account.ask(users.vhosts())
        is_late = 0 < account.expires_at_s <= asked.live.now_s()
        may = not account.tags.isdisjoint(MANAGERS)
        is_out = has_session and sessions.account(token) is None
        return may and not is_late and not is_out and users.claim(account.user) == claim

    return lasts


async def events(asked: ApiRequest) -> object:
    """Return a stream of events. Raises HttpError 400, 401, 404, 503."""
    topics = list(dict.fromkeys(one for one in asked.query.get("topics", "").split(",") if one))
    queues = [key for topic in topics if (key := queue_of(topic)) is not None]
    if not topics or len(queues) > QUEUE_TOPICS_MAX:
        raise HttpError(
            400, f"topics: given {len(topics)}, expected at least one, and {QUEUE_TOPICS_MAX} "
            "queues at most",
        )  # fmt: skip
    for vhost, _ in queues:
        asked.check_is(vhost, SEEN)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    if asked.request.method == "HEAD":
        return Answer(200, None, {**headers, "Content-Type": "text/event-stream"})
    user = asked.account.user
    asked.live.check_room(user)
    stream = asked.live.stream(asked, user, topics, _lasts(asked))
    return StreamingResponse(stream, 200, headers, media_type="text/event-stream")


async def history(asked: ApiRequest) -> object:
    """Return samples of a vhost or of a queue. Raises HttpError 400."""
    steps = [f"{step_s:g}" for step_s, _ in RINGS]
    step = asked.query.get("step", steps[0])
    if step not in steps:
        raise HttpError(400, f"step: given {step!r:.40}, expected {', '.join(steps)}")
    found = asked.live.samples(asked.vhost, asked.names.get("queue"), int(step))
    return {"step": int(step), "samples": found}
