"""[auth_http] of penstock.toml: a server that checks passwords and vhosts, by RabbitMQ's protocol.

The names are those of RabbitMQ's auth_http.*, as far as there are such options here. The server
gets user and password at user_path, user and vhost at vhost_path, and answers "allow" or "deny".
server.backends asks it.
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
    paths = {"user_path": options.user_path}
    if options.vhost_path:
        paths["vhost_path"] = options.vhost_path
    for name, path in paths.items():
        if not path.startswith(("https://", "http://")):
            raise OptionError(f"auth_http.{name}", path, "https://...")
