"""A rabbitmq.conf becomes a penstock.toml that `serve` accepts, and says what it left out."""

from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.cli.rabbitmq_conf import KEYS, WHY
from penstock.config import Config, config_of, parse_file

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "moving-from-rabbitmq.md"
CONF = """\
# of a cluster
listeners.tcp.default = 5673   # not the usual one
management.tcp.port = 15673
vm_memory_high_watermark.absolute = 2GB
disk_free_limit.absolute = 3GiB
log.console.level = critical
handshake_timeout = 2500
loopback_users.guest = false
loopback_users.ann = true
definitions.local.path = /etc/rabbitmq/definitions.json
consumer_timeout = 1800000

cluster_formation.peer_discovery_backend = rabbit_peer_discovery_k8s
default_pass = geheim
heartbeat = 30
strange.key = 1
ssl_options.certfile = $(CERT)
"""


def migrated(tmp_path: Path, conf: str) -> tuple[Config, str]:
    (tmp_path / "rabbitmq.conf").write_text(conf)
    to = tmp_path / "penstock.toml"
    assert main(["config", "migrate", str(tmp_path / "rabbitmq.conf"), str(to)]) == 0
    text = to.read_text()
    table = parse_file(str(to), text)
    return config_of(whole_bytes=8 << 30, flags={}, environment={}, file=table), text


def test_what_means_something_here_is_taken(tmp_path: Path) -> None:
    config, text = migrated(tmp_path, CONF)
    assert (config.host, config.port, config.http_port) == ("0.0.0.0", 5673, 15673)
    assert config.memory_bytes == 2_000_000_000
    assert config.storage.disk_free_limit == 3 << 30
    assert (config.log_level, config.handshake_timeout_s) == ("error", 2.5)
    assert config.loopback_users == ("ann",)
    assert config.load_definitions == "/etc/rabbitmq/definitions.json"
    assert config.consumer_timeout_s == 1800.0
    comments = [line for line in text.splitlines() if line.startswith("# line")]
    assert comments == [
        "# line 13: cluster_formation.peer_discovery_backend = rabbit_peer_discovery_k8s: "
        "there is one node",
        "# line 14: default_pass = ***: the first start makes guest; change_password changes it",
        "# line 15: heartbeat = 30: the broker proposes 60 s, and clients may choose another",
        "# line 16: strange.key = 1: it is not known here",
        "# line 17: ssl_options.certfile = $(CERT): write the value itself, not a variable or an "
        "encrypted value",
    ]


def test_backends_of_logins(tmp_path: Path) -> None:
    config, text = migrated(
        tmp_path,
        "auth_backends.1 = oauth2\nauth_backends.2 = rabbit_auth_backend_internal\n"
        "auth_backends.3 = ldap\n"
        "auth_oauth2.resource_server_id = rabbit\nauth_oauth2.jwks_url = https://issuer/keys\n"
        "auth_oauth2.verify_aud = false\nauth_oauth2.default_key = k\n"
        "auth_http.user_path = https://accounts/user\nauth_http.vhost_path = https://accounts/v\n"
        "auth_http.resource_path = https://accounts/r\nauth_http.topic_path = https://accounts/t\n"
        "auth_http.connection_timeout = 5\n",
    )
    assert config.auth_backends == ("oauth2", "internal")
    oauth2 = config.auth_oauth2
    assert (oauth2.resource_server_id, oauth2.jwks_uri) == ("rabbit", "https://issuer/keys")
    assert not oauth2.verify_aud
    assert config.auth_http.user_path == "https://accounts/user"
    assert config.auth_http.vhost_path == "https://accounts/v"
    assert config.auth_http.resource_path == "https://accounts/r"
    assert config.auth_http.topic_path == "https://accounts/t"
    comments = [line for line in text.splitlines() if line.startswith("# line")]
    assert [line.partition(" = ")[0] for line in comments] == [
        "# line 3: auth_backends.3", "# line 7: auth_oauth2.default_key",
        "# line 12: auth_http.connection_timeout",
    ]  # fmt: skip


def test_tls_and_addresses(tmp_path: Path) -> None:
    config, text = migrated(
        tmp_path,
        "listeners.tcp = none\nlisteners.ssl.1 = 10.0.0.1:5671\nlisteners.ssl.2 = 10.0.0.2:5671\n"
        "ssl_options.certfile = /c.pem\nssl_options.keyfile = /k.pem\nssl_options.cacertfile = /a\n"
        "ssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = true\n"
        "ssl_options.versions.1 = tlsv1.2\nssl_options.versions.2 = tlsv1.3\n"
        "ssl_cert_login_from = common_name\nloopback_users = none\n",
    )
    assert (config.host, config.port, config.tls.port) == ("10.0.0.1", None, 5671)
    assert config.loopback_users == ()
    tls = config.tls
    assert (tls.cert, tls.key, tls.ca, tls.version_min) == ("/c.pem", "/k.pem", "/a", "1.2")
    assert tls.verify_peer
    assert tls.fail_if_no_peer_cert
    assert "# line 3: listeners.ssl.2 = 10.0.0.2:5671: one address, in host" in text


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ("[{rabbit, []}].", "advanced.config, is not read"),
        ("heartbeat", "line 1"),
        ("log.file.level = loud", "line 1: log.file.level: given 'loud', expected one of debug"),
        ("disk_free_limit.absolute = much", "a size such as 2GB"),
        ("listeners.tcp.1 = 70000", "a whole number from 0 to 65535"),
        ("ssl_options.certfile = /c.pem", "tls.key"),
    ],
)
def test_a_wrong_line_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], conf: str, said: str
) -> None:
    (tmp_path / "rabbitmq.conf").write_text(conf)
    assert main(["config_migrate", str(tmp_path / "rabbitmq.conf")]) == 64
    assert said in capsys.readouterr().err


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "rabbitmq.conf").write_text("")
    (tmp_path / "penstock.toml").write_text("mine")
    words = ["config_migrate", str(tmp_path / "rabbitmq.conf"), str(tmp_path / "penstock.toml")]
    assert main(words) == 74
    assert (tmp_path / "penstock.toml").read_text() == "mine"


def test_every_key_is_in_the_page() -> None:
    page = PAGE.read_text()
    assert [key for key in (*KEYS, *WHY) if f"`{key}`" not in page] == []
