"""Login and logout of the dashboard: they begin and end the sessions of sessions.py.

Both are answered without a password: the login has it in its body, and the logout needs none.
A password is checked as that of basic authentication is, behind the same brakes.
"""

from penstock.http.endpoint import Answer, ApiRequest, not_authorised
from penstock.http.requests import HttpError, NotAuthorizedError, host_of
from penstock.http.sessions import COOKIE, cookie
from penstock.operation_table import MANAGERS


async def login(asked: ApiRequest) -> object:
    """Begin a session. Raises HttpError 401, 429."""
    password = asked.body["password"].encode("utf-8", "surrogateescape")
    try:
        account = await asked.auth.account(asked.body["username"], password, host_of(asked.request))
    except NotAuthorizedError as error:  # without the header that makes a browser ask
        raise HttpError(401, error.reason) from error
    if account.tags.isdisjoint(MANAGERS):
        raise not_authorised("Not management user")
    token = asked.auth.sessions.begin(account)
    found = {"name": account.user, "tags": sorted(account.tags)}
    return Answer(200, found, {"Set-Cookie": cookie(token, is_tls=_is_tls(asked))})


async def logout(asked: ApiRequest) -> object:
    """End the session, if there is one."""
    asked.auth.sessions.end(asked.request.cookies.get(COOKIE, ""))
    return Answer(204, None, {"Set-Cookie": cookie("", is_tls=_is_tls(asked), seconds=0)})


def _is_tls(asked: ApiRequest) -> bool:
    return asked.request.url.scheme == "https"
