"""[auth_http] of penstock.toml: a server that checks passwords and rights, by RabbitMQ's protocol.

The names are those of RabbitMQ's auth_http.*, as far as there are such options here. The server
gets user and password at user_path, user and vhost at vhost_path, and so on, and answers "allow" or
"deny". server.backends asks it.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final

from penstock.errors import OptionError
from penstock.options import Option, choice, seconds, text

HTTP: Final = "http"
GET: Final = "get"
POST: Final = "post"


@dataclass(frozen=True, slots=True)
class HttpLoginOptions:
    """HTTP_LOGIN_OPTIONS says what each is."""

    user_path: str = ""
    vhost_path: str = ""
    resource_path: str = ""
    topic_path: str = ""
    http_method: str = GET
    cacertfile: str = ""
    timeout_s: float = 5.0
    cache_s: float = 15.0

    def facts(self) -> dict[str, Any]:
        """Return the options as JSON, for HttpLoginOptions(**facts) in another process."""
        return asdict(self)


HTTP_LOGIN_OPTIONS: Final[tuple[Option, ...]] = (
    Option("user_path", text("an address, https://..."), "where user and password are checked"),
    Option(
        "vhost_path", text("an address, https://..."),
        "where it is checked which vhosts a user may open; empty: permissions here decide alone",
    ),
    Option(
        "resource_path", text("an address, https://..."),
        "where it is checked what a user may do with each queue and exchange; empty: as vhost_path",
    ),
    Option(
        "topic_path", text("an address, https://..."),
        "where it is checked which routing keys of topic exchanges a user may use; empty: as "
        "vhost_path",
    ),
    Option("http_method", choice(GET, POST), "by which it is asked"),
    Option(
        "cacertfile", text("a file of certificates"),
        "certificates by which the address is checked, instead of the system's",
    ),
    Option("timeout_s", seconds(), "seconds that the server has for an answer"),
    Option("cache_s", seconds(), "seconds for which what it has allowed is remembered"),
)  # fmt: skip


def check_http_options(options: HttpLoginOptions) -> None:
    """Raise OptionError if there is nobody to ask."""
    for name in ("user_path", "vhost_path", "resource_path", "topic_path"):
        path: str = getattr(options, name)
        is_needed = path or name == "user_path"
        if is_needed and not path.startswith(("https://", "http://")):
            raise OptionError(f"auth_http.{name}", path, "https://...")
