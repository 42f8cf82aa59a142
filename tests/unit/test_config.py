"""Config: what wins over what, and what is said of each wrong value."""

import json
from collections.abc import Mapping

import pytest

from penstock.access.limits import Limits
from penstock.config import Config, config_of, parse_file
from penstock.errors import OptionError
from penstock.queues.backing_choice import DEFAULT
from penstock.storage.files.durability import DISK, INTERVAL, OS
from penstock.storage.files.options import StorageOptions

GIB = 1 << 30


def config(
    file: str = "", environment: Mapping[str, str] | None = None, /, **flags: object
) -> Config:
    return config_of(
        whole_bytes=10 * GIB,
        flags=flags,
        environment=environment or {},
        file=parse_file("penstock.toml", file),
    )


def test_nothing_is_needed() -> None:
    made = config()
    assert (made.data, made.host, made.port) == ("./penstock-data", "127.0.0.1", 5672)
    assert made.http_port == 15672
    assert made.memory_bytes == 4 * GIB
    assert made.mode == DISK
    assert not made.is_strict
    assert made.storage == StorageOptions()


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default() -> None:
    file, environment = "port = 1", {"PENSTOCK_PORT": "2"}
    assert config(file).port == 1
    assert config(file, environment).port == 2
    assert config(file, environment, port=3).port == 3
    assert config(file, environment, port=None).port == 2


def test_the_directories_of_log_and_messages() -> None:
    made = config(
        '[storage]\nlog_directory = "/fast/log"',
        {"PENSTOCK_STORAGE_SPILL_DIRECTORY": "/big/spill"},
    )
    assert (made.storage.log_directory, made.storage.spill_directory) == ("/fast/log", "/big/spill")
    for value in ('"fast"', '"./fast"', '"/"', "5", "true", '"/a/../b"', r'"/a\nb"', '["/a"]'):
        with pytest.raises(OptionError, match=r"toml: storage.log_directory: given .* an absolute"):
            config(f"[storage]\nlog_directory = {value}")
    with pytest.raises(OptionError, match="PENSTOCK_STORAGE_SPILL_DIRECTORY: given '~/x'"):
        config("", {"PENSTOCK_STORAGE_SPILL_DIRECTORY": "~/x"})


def test_http_may_be_off() -> None:
    assert config(http_port="off").http_port is None
    assert config('http_port = "off"').http_port is None
    assert config("", {"PENSTOCK_HTTP_PORT": "off"}).http_port is None
    assert config("http_port = 0").http_port == 0
    assert config(http_port="8080").http_port == 8080


@pytest.mark.parametrize(
    ("given", "size"),
    [("64MiB", 64 << 20), ("0.5", 5 * GIB), (0.25, 10 * GIB // 4), ("max", 10 * GIB), (GIB, GIB)],
)
def test_memory_is_a_size_or_a_fraction(given: object, size: int) -> None:
    assert config(memory=given).memory_bytes == size


@pytest.mark.parametrize(
    ("given", "mode", "interval_ms"),
    [("disk", DISK, 200), ("os", OS, 200), ("interval=50", INTERVAL, 50)],
)
def test_durability(given: str, mode: int, interval_ms: int) -> None:
    made = config(durability=given)
    assert (made.mode, made.storage.interval_ms) == (mode, interval_ms)


def test_the_engine_is_set_by_its_own_names() -> None:
    file = "[storage]\ncheckpoint_seconds = 5\nslice_ms = 1"
    made = config(file, {"PENSTOCK_STORAGE_CHECKPOINT_SECONDS": "7.5"})
    assert (made.storage.checkpoint_seconds, made.storage.slice_ms) == (7.5, 1)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"port": 70000}, "option --port: given 70000, expected a whole number from 0 to 65535"),
        ({"port": True}, "--port"),
        ({"http_port": "none"}, "--http-port: given 'none', expected a whole number from 0 to"),
        ({"http_port": 70000}, "65535, or off"),
        ({"http_port": 5672}, "--http-port: given 5672, expected another than the port of AMQP"),
        ({"durability": "none"}, "disk, interval=<ms> or os"),
        ({"durability": "fast"}, "--durability: given 'fast'"),
        ({"memory": "much"}, "--memory: given 'much'"),
        ({"memory": "12"}, "at least 1MiB"),
        ({"memory": []}, "a size"),
        ({"log_level": "loud"}, "--log-level: given 'loud', expected debug, info"),
        ({"data": ""}, "--data"),
        ({"host": "a\0b"}, "--host"),
        ({"vhost_hang": 0}, "seconds, above 0"),
        ({"vhost_hang": "soon"}, "seconds, above 0"),
        ({"vhost_hang": True}, "seconds, above 0"),
        ({"strict": "perhaps"}, "true or false"),
        ({"vhost_restart_strategy": "hope"}, "continue or stop_node"),
        ({"durability": 3}, "disk, interval"),
        ({"guest": "on"}, "loopback or off"),
        ({"data_permissions": "loose"}, "fix, refuse or ignore"),
        ({"http_hosts": [1]}, "names with commas"),
        ({"http_connections_max": 0}, "a whole number from 1 to"),
        ({"half_open_max": 0}, "a whole number from 1 to"),
        ({"half_open_bytes_max": "1KiB"}, "at least 65536 bytes"),
        ({"staging_bytes_max": "much"}, "--staging-bytes-max: given 'much'"),
        ({"staging_bytes_max": 5}, 'a size such as "8GiB", at least 1048576 bytes'),
        ({"staging_bytes_max": True}, "a size such as"),
        ({"lease_alert_s": 0}, "seconds, above 0"),
    ],
)
def test_a_wrong_value_is_named_by_its_flag(flags: dict[str, object], told: str) -> None:
    with pytest.raises(OptionError) as caught:
        config(**flags)
    assert told in str(caught.value)


def test_a_wrong_value_is_named_by_where_it_was_given() -> None:
    with pytest.raises(OptionError, match=r"penstock\.toml: port"):
        config("port = 'x'")
    with pytest.raises(OptionError, match="PENSTOCK_PORT"):
        config("", {"PENSTOCK_PORT": "x"})
    with pytest.raises(OptionError, match=r"penstock\.toml: storage\.slice_ms"):
        config("[storage]\nslice_ms = 'x'")
    with pytest.raises(OptionError, match="PENSTOCK_STORAGE_SEGMENT_SLOTS: given '7'"):
        config("", {"PENSTOCK_STORAGE_SEGMENT_SLOTS": "7"})


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("prot = 1", "option penstock.toml: prot: given 1, expected an option that there is: did"),
        ("port = 1\n[server]", "server: given {}, expected an option that there is: known are"),
        ("port = 1\nhost = 'x", 'given "host = \'x"'),
        ("lease_alert = 1", "did you mean 'lease_alert_s'?"),
        ("[storge]", "did you mean 'storage'?"),
        ("[storage]\nslice = 1", "did you mean 'slice_ms'?"),
        ("storage = 1", "a table"),
        ("port =", "TOML"),
    ],
)
def test_an_unknown_name_in_the_file_suggests_the_right_one(file: str, told: str) -> None:
    with pytest.raises(OptionError) as caught:
        config(file)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("[storage]\nslice = 1", "storage.slice: given 1, expected an option that there is"),
        ("storage = 1", "storage: given 1, expected a table [storage]"),
        ("[port]\nx = 1", "port: given {'x': 1}, expected a whole number"),
        ("[tls]\ncert = 'c.pem'", "tls.cert: given 'c.pem', expected its private key"),
        ("[tls]\nca = 'ca.pem'", "tls.key: given '', expected a certificate"),
        ("auth_backends = ['http']", "auth_http.user_path: given '', expected https://"),
        ("http_port = 5672", "http_port: given 5672, expected another than the port of AMQP"),
        ("port = 15672", "port: given 15672, expected another than the port of HTTP"),
        ("port = 'off'", "port: given 'off', expected a port"),
        ("memory = 5", "memory: given 5, expected at least 1MiB"),
    ],
)
def test_each_error_names_its_file(file: str, told: str) -> None:
    with pytest.raises(OptionError) as caught:
        config(file)
    assert str(caught.value).startswith(f"option penstock.toml: {told}")


def test_the_environment_is_shared_with_others() -> None:
    others = {"HOME": "/", "PENSTOCK_URL": "amqp://", "PENSTOCK_PURE": "1", "PENSTOCK_XYZZY": "1"}
    assert config("", others) == config()
    with pytest.raises(OptionError, match="did you mean 'PENSTOCK_MEMORY'"):
        config("", {"PENSTOCK_MEMRY": "1"})


def test_of_staging_and_leases() -> None:
    made = config(
        'staging_bytes_max = "2GiB"\nstaging_timeout_s = 60', {"PENSTOCK_LEASE_ALERT_S": "5"}
    )
    assert (made.staging_bytes_max, made.staging_timeout_s, made.lease_alert_s) == (2 * GIB, 60, 5)
    assert made.staging_user_bytes_max == 6 * GIB
    made = config('staging_user_bytes_max = "1GiB"')
    assert made.staging_user_bytes_max == GIB


def test_of_what_readers_of_streams_may_hold() -> None:
    made = config()
    assert (made.stream_hold_s_max, made.stream_hold_bytes_max) == (86_400, 8 * GIB)
    made = config("stream_hold_s_max = 60", {"PENSTOCK_STREAM_HOLD_BYTES_MAX": "0"})
    assert (made.stream_hold_s_max, made.stream_hold_bytes_max) == (60, 0)
    assert config(staging_bytes_max=GIB).staging_bytes_max == GIB
    assert config().staging_bytes_max == 8 * GIB


def test_true_and_false_of_the_environment() -> None:
    assert config("", {"PENSTOCK_STRICT": "true"}).is_strict
    assert not config("strict = true", {"PENSTOCK_STRICT": "0"}).is_strict


def test_what_a_vhost_is_told_crosses_a_processs_border() -> None:
    storage = StorageOptions(checkpoint_seconds=5, interval_ms=7)
    settings = Config(mode=OS, is_strict=True, log_level="debug", storage=storage)
    told = json.loads(json.dumps(settings.vhost_settings(123)))
    assert StorageOptions.of(told.pop("storage")) == storage
    assert Limits(**told.pop("limits")) == Limits()
    queues = told.pop("queues")
    assert queues == {"backing_queue": DEFAULT, "allowed_backing_queues": []}
    assert told == {
        "mode": OS, "memory_bytes": 123, "is_strict": True, "is_audited": False, "audit_vhost": "",
        "has_tls": False,
        "log_level": "debug",
        "staging_timeout_s": 86_400.0, "lease_alert_s": 3600.0,
        "consumer_timeout_s": 1800.0, "consumer_timeout_closes": False,
        "stream_hold_s_max": 86_400.0, "stream_hold_bytes_max": 8 << 30,
    }  # fmt: skip


def test_limits_have_a_table_of_their_own() -> None:
    file = "[limits]\nuser_channels = 10\nvhost_queues = -1\nstalled_body_s = 5\n"
    file += "rss_slack_bytes = '200MiB'"
    made = config(file, {"PENSTOCK_LIMITS_USER_CHANNELS": "20"}).limits
    assert (made.user_channels, made.vhost_queues, made.stalled_body_s) == (20, -1, 5.0)
    assert made.rss_slack_bytes == 200 << 20
    assert config().limits == Limits()


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("[limits]\nuser_channel = 1", "did you mean 'user_channels'?"),
        ("[limits]\nuser_channels = -2", r"penstock\.toml: limits\.user_channels: given -2"),
        ("[limits]\nuser_channels = 1.5", "-1 for no limit"),
        ("[limits]\nuser_channels = true", "-1 for no limit"),
        ("[limits]\nstalled_body_s = 0", "seconds, above 0"),
        ("[limits]\nrss_slack_bytes = '1MiB'", "at least 67108864 bytes"),
        ("limits = 1", r"a table \[limits\]"),
    ],
)
def test_a_limit_that_makes_no_sense_is_named(file: str, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        config(file)


def test_names_of_hosts_are_a_list_or_a_text() -> None:
    assert config().http_hosts == ()
    assert config(http_hosts=" a.net, b.net,").http_hosts == ("a.net", "b.net")
    assert config(http_hosts=["a.net"]).http_hosts == ("a.net",)


@pytest.mark.parametrize("variable", ["PENSTOCK_PORT", "PENSTOCK_HTTP_PORT"])
def test_what_kubernetes_sets_for_a_service_of_our_name_is_ignored(variable: str) -> None:
    link = {
        variable: "tcp://10.0.0.1:5672",
        f"{variable}_5672_TCP": "tcp://10.0.0.1:5672",
        f"{variable}_5672_TCP_ADDR": "10.0.0.1",
        "PENSTOCK_SERVICE_HOST": "10.0.0.1",
        "PENSTOCK_SERVICE_PORT": "5672",
    }
    made = config("", link)
    assert (made.port, made.http_port) == (5672, 15672)
    assert len(made.notes) == 1
    assert f"{variable}=tcp://10.0.0.1:5672 is ignored" in made.notes[0]
    assert config("port = 7000", link).port == 7000
    assert config("", {"PENSTOCK_PORT": "7000"}).notes == ()
    with pytest.raises(OptionError, match="PENSTOCK_PORT"):
        config("", {"PENSTOCK_PORT": "http://x"})


def test_backends_of_logins() -> None:
    assert config().auth_backends == ("internal",)
    assert config('loopback_users = ["guest", "ann"]').loopback_users == ("guest", "ann")
    file = """
auth_backends = ["oauth2", "internal"]
[auth_oauth2]
resource_server_id = "rabbit"
jwks_uri = "https://issuer/keys"
scope_aliases = {admin = "rabbit.tag:administrator"}
algorithms = ["ES256"]
"""
    made = config(file)
    assert made.auth_backends == ("oauth2", "internal")
    assert made.auth_oauth2.scope_aliases == {"admin": "rabbit.tag:administrator"}
    assert made.auth_oauth2.of(json.loads(json.dumps(made.auth_oauth2.facts()))) == made.auth_oauth2
    aliases = {"PENSTOCK_AUTH_OAUTH2_SCOPE_ALIASES": '{"a": "b"}'}
    assert config(file, aliases).auth_oauth2.scope_aliases == {"a": "b"}
    for wrong, text in (
        ('auth_backends = ["ldap"]', "some of internal, oauth2"),
        ('auth_backends = ["http"]', "auth_http.user_path: given '', expected https"),
        (
            'auth_backends = ["http"]\n[auth_http]\nuser_path = "http://a"\nvhost_path = "b"',
            "auth_http.vhost_path: given 'b', expected https",
        ),
        ("auth_backends = []", "some of internal, oauth2"),
        ('auth_backends = ["oauth2"]', "auth_oauth2.resource_server_id: given '', expected a name"),
        (file.replace("ES256", "none"), "algorithms: given .*none"),
        (file.replace('"rabbit.tag:administrator"', "1"), "expected a table of texts"),
        (file.replace("https", "file"), "jwks_uri"),
    ):
        with pytest.raises(OptionError, match=text):
            config(wrong)


def test_the_audit_log() -> None:
    assert config().audit_log == ""
    assert not config().vhost_settings(1)["is_audited"]
    made = config('audit_log = "audit.jsonl"\naudit_log_bytes = "1MiB"')
    assert (made.audit_log, made.audit_log_bytes) == ("audit.jsonl", 1 << 20)
    assert made.vhost_settings(1)["is_audited"]
    assert config('audit_vhost = "a"').vhost_settings(1)["is_audited"]
    with pytest.raises(OptionError, match="audit_log_bytes: given 1"):
        config("audit_log_bytes = 1")
