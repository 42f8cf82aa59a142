"""A rabbitmq.conf becomes a penstock.toml that `serve` accepts, and says what it left out."""

from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import RSAAlgorithm

from penstock.access.tokens import key_set
from penstock.cli.main import main
from penstock.cli.rabbitmq_conf import KEYS, converted
from penstock.config import Config, config_of, parse_file

# Each key of RabbitMQ 4.3's rabbitmq.conf.example, those of a plugin or a table once, and others of
# its documentation.
EXAMPLE = """\
deprecated_features.permit.transient_nonexcl_queues = true
listeners.tcp.default = 5672
listeners.tcp.local = 127.0.0.1:5672
listeners.tcp.local_v6 = ::1:5672
listeners.tcp.other_port = 5673
listeners.tcp.unix = unix:/run/rabbitmq.sock:0
listeners.ssl.default = 5671
listeners.tcp = none
num_acceptors.tcp = 10
num_acceptors.ssl = 10
socket_writer.gc_threshold = off
handshake_timeout = 10000
reverse_dns_lookups = false
loopback_users.guest = true
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = true
ssl_options.cacertfile = /ca.pem
ssl_options.certfile = /cert.pem
ssl_options.keyfile = /key.pem
ssl_options.password = encrypted:abc
ssl_options.honor_cipher_order = true
ssl_options.honor_ecc_order = true
ssl_options.client_renegotiation = false
ssl_options.secure_renegotiate = true
ssl_options.versions.1 = tlsv1.3
ssl_options.ciphers.1 = TLS_AES_256_GCM_SHA384
ssl_options.ciphers.2 = ECDHE-ECDSA-AES256-GCM-SHA384
ssl_options.ciphers.3 = ECDH-ECDSA-AES256-GCM-SHA384
ssl_options.bypass_pem_cache = true
auth_backends.1 = rabbit_auth_backend_internal
auth_backends.2 = rabbit_auth_backend_ldap
auth_backends.1.authn = rabbit_auth_backend_ldap
auth_backends.1.authz = rabbit_auth_backend_internal
auth_mechanisms.1 = PLAIN
ssl_cert_login_from = common_name
ssl_handshake_timeout = 5000
load_definitions = /definitions.json
password_hashing_module = rabbit_password_hashing_sha256
credential_validator.validation_backend = rabbit_credential_validator_min_password_length
credential_validator.min_length = 30
credential_validator.regexp = ^[a-z]+$
default_vhost = /
default_user = guest
default_pass = guest
default_permissions.configure = .*
default_permissions.read = .*
default_permissions.write = .*
default_user_tags.administrator = true
default_limits.vhosts.prod.pattern = ^prod-.*
default_limits.vhosts.prod.max_connections = 5000
default_policies.operator.limits.vhost_pattern = ^prod-.*
default_policies.operator.limits.max_length = 10000
default_users.monitoring.vhost_pattern = .*
heartbeat = 60
frame_max = 131072
initial_frame_max = 4096
max_channels_per_connection = 128
channel_max = 128
channel_max_per_node = 2000
consumer_max_per_channel = 100
max_connections = 5000
connection_max = 5000
session_max_per_connection = 32
link_max_per_session = 32
tcp_listen_options.backlog = 128
default_queue_type = quorum
quorum_queue.property_equivalence.relaxed_checks_on_redeclaration = true
quorum_queue.initial_cluster_size = 3
quorum_queue.commands_soft_limit = 32
quorum_queue.wal_compute_checksums = true
quorum_queue.segment_max_entries = 4096
classic_queue.default_version = 2
stream.listeners.tcp.default = 5552
stream.replication.port_range.min = 5000
stream.data_dir = /data/streams
vm_memory_high_watermark.relative = 0.6
vm_memory_high_watermark.absolute = 2GB
vm_memory_calculation_strategy = rss
vm_memory_high_watermark_paging_ratio = 0.75
total_memory_available_override_value = 2GB
disk_free_limit.absolute = 50mb
disk_free_limit.relative = 2.0
vhost_max = 100
cluster_queue_limit = 10000
cluster_exchange_limit = 5000
max_message_size = 16777216
cluster_name = one
cluster_tags.region = us-east-1
node_tags.role = mqtt-ingress
queue_leader_locator = balanced
cluster_formation.peer_discovery_backend = rabbit_peer_discovery_dns
cluster_keepalive_interval = 10000
cluster_partition_handling = pause_minority
collect_statistics_interval = 5000
raft.segment_max_entries = 65536
metadata_store.khepri.default_timeout = 30000
queue_index_embed_msgs_below = 4kb
background_gc_enabled = false
background_gc_target_interval = 60000
proxy_protocol = true
product.name = RabbitMQ
motd_file = /etc/rabbitmq/motd
channel_interceptor.priorities.one = 1
message_interceptors.incoming.set_header_timestamp.overwrite = true
consumer_timeout = 900000
consumer_disconnected_timeout = 60000
net_ticktime = 60
distribution.listener.port_range.min = 25672
http_dispatch.access_log_dir = /var/log
management.http_log_dir = /var/log
management.http.max_body_size = 500000
management.tcp.port = 15672
management.tcp.ip = 0.0.0.0
management.tcp.idle_timeout = 120
management.ssl.port = 15671
management.ssl.cacertfile = /ca.pem
management.ssl.certfile = /cert.pem
management.ssl.keyfile = /key.pem
management.ssl.honor_cipher_order = true
management.ssl.versions.1 = tlsv1.2
management.ssl.ciphers.1 = ECDHE-ECDSA-AES256-GCM-SHA384
management.path_prefix = /a-prefix
management.rates_mode = basic
management.sample_retention_policies.global.minute = 5
management.credential_encryption_secret = long
management.definitions.require_json_extension = false
management.headers.referrer_policy = no-referrer
management.cors.allow_origins.1 = https://origin.example
management.disable_stats = true
management.oauth_enabled = true
management.oauth_client_id = rabbitmq-management
shovel.delete_after_duration_floor = 60
stomp.listeners.tcp.1 = 127.0.0.1:61613
web_stomp.hsts.policy = max-age=31536000
mqtt.listeners.tcp.1 = 127.0.0.1:1883
web_mqtt.hsts.policy = max-age=31536000
log.dir = /var/log/rabbitmq
log.file = rabbit.log
log.file.level = info
log.file.rotation.size = 0
log.console = false
log.console.level = info
log.exchange = false
log.exchange.level = info
log.connection.level = debug
log.syslog = false
auth_oauth2.resource_server_id = rabbitmq
auth_oauth2.issuer = https://issuer.example/realm
auth_oauth2.jwks_uri = https://issuer.example/keys
auth_oauth2.preferred_username_claims.1 = user_name
auth_oauth2.additional_scopes_key = extra_scope
auth_oauth2.scope_prefix = api://
auth_oauth2.scope_aliases.admin = rabbitmq.tag:administrator
auth_oauth2.verify_aud = false
auth_oauth2.require_exp = true
auth_oauth2.default_key = one
auth_oauth2.algorithms.1 = RS256
auth_oauth2.signing_keys.one = /key.pem
auth_oauth2.https.cacertfile = /ca.pem
auth_oauth2.https.peer_verification = verify_peer
auth_oauth2.https.hostname_verification = wildcard
auth_ldap.servers.1 = ldap.example
auth_http.user_path = http://localhost:8000/auth/user
auth_http.ssl_options.cacertfile = /ca.pem
auth_http.ssl_options.verify = verify_peer
auth_http.request_timeout = 20000
auth_http.connection_timeout = 10000
auth_cache.cached_backend = http
auth_cache.cache_ttl = 5000
prometheus.tcp.port = 15692
prometheus.path = /metrics
prometheus.return_per_object_metrics = true
prometheus.ssl.port = 15691
definitions.skip_if_unchanged = true
definitions.import_backend = local_filesystem
definitions.local.path = /definitions.json
trust_store.directory = /trusted
federation.enable_opentelemetry = true
anonymous_login_user = none
mirroring_sync_batch_size = 4096
msg_store_file_size_limit = 16777216
"""
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


def left_of(text: str) -> list[str]:
    """The lines that became comments, with their numbers and without their values."""
    lines = [line for line in text.splitlines() if line.startswith("# line")]
    return [line.partition(" = ")[0] for line in lines]


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
        "# line 14: default_pass = ***: the first start makes guest; penstock init --password-file "
        "FILE gives a password",
        "# line 15: heartbeat = 30: the broker proposes 60 s, and clients may choose another",
        "# line 16: strange.key = 1: it is not known here",
        "# line 17: ssl_options.certfile = $(CERT): write the value itself, not a variable or an "
        "encrypted value",
    ]


def test_backends_of_logins(tmp_path: Path) -> None:
    config, text = migrated(
        tmp_path,
        "auth_backends.1 = oauth2\nauth_backends.2 = rabbit_auth_backend_internal\n"
        "auth_backends.3 = ldap\nauth_backends.4 = rabbit_auth_backend_http\n"
        "auth_oauth2.resource_server_id = rabbit\nauth_oauth2.jwks_url = https://issuer/keys\n"
        "auth_oauth2.verify_aud = false\nauth_oauth2.default_key = k\n"
        "auth_http.user_path = https://accounts/user\nauth_http.vhost_path = https://accounts/v\n"
        "auth_http.resource_path = https://accounts/r\nauth_http.topic_path = https://accounts/t\n"
        "auth_http.connection_timeout = 5\n",
    )
    assert config.auth_backends == ("oauth2", "internal", "http")
    assert "users, their tags and permissions are those of this broker" in text
    oauth2 = config.auth_oauth2
    assert (oauth2.resource_server_id, oauth2.jwks_uri) == ("rabbit", "https://issuer/keys")
    assert not oauth2.verify_aud
    assert config.auth_http.user_path == "https://accounts/user"
    assert config.auth_http.vhost_path == "https://accounts/v"
    assert config.auth_http.resource_path == "https://accounts/r"
    assert config.auth_http.topic_path == "https://accounts/t"
    assert left_of(text) == [
        "# line 3: auth_backends.3", "# line 8: auth_oauth2.default_key",
        "# line 13: auth_http.connection_timeout",
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
    assert tls.http_port is None
    assert "# line 3: listeners.ssl.2 = 10.0.0.2:5671: the broker listens at one address" in text


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


def test_lists_and_tables_of_several_lines(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048).public_key()
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "one.pem").write_bytes(pem)
    config, text = migrated(
        tmp_path,
        "ssl_options.certfile = /c.pem\nssl_options.keyfile = /k.pem\nproxy_protocol = true\n"
        "ssl_options.ciphers.1 = ECDHE-RSA-AES256-GCM-SHA384\n"
        "ssl_options.ciphers.2 = TLS_AES_256_GCM_SHA384\n"
        "ssl_options.ciphers.3 = ECDHE-RSA-AES128-GCM-SHA256\n"
        "auth_oauth2.preferred_username_claims.1 = email\n"
        "auth_oauth2.preferred_username_claims.2 = name\n"
        "auth_oauth2.additional_scopes_key = roles groups\n"
        "auth_oauth2.algorithms.1 = RS256\nauth_oauth2.algorithms.2 = HS256\n"
        "auth_oauth2.scope_aliases.admin = rabbit.tag:administrator rabbit.read:*/*\n"
        "auth_oauth2.scope_aliases.1.alias = api://dev\n"
        "auth_oauth2.scope_aliases.1.scope = rabbit.write:*/*\n"
        f"auth_oauth2.signing_keys.one = {tmp_path}/one.pem\n"
        f"auth_oauth2.signing_keys.two = {tmp_path}/two.pem\n"
        "auth_backends.1 = rabbit_auth_backend_cache\nauth_backends.2 = internal\n"
        "auth_cache.cached_backend = http\nauth_cache.cache_ttl = 5000\n"
        "auth_http.user_path = https://accounts/user\nauth_http.request_timeout = 2500\n",
    )
    assert config.tls.ciphers == "ECDHE-RSA-AES256-GCM-SHA384:ECDHE-RSA-AES128-GCM-SHA256"
    assert (config.tls.port, config.port) == (None, 5672)  # it has no listeners.ssl
    assert config.proxy_protocol_from == ("0.0.0.0/0", "::/0")
    assert "  # name only the networks of your proxies" in text
    tokens = config.auth_oauth2
    assert tokens.preferred_username_claims == ("email", "name", "sub", "client_id")
    assert tokens.additional_scopes_key == ("roles", "groups")
    assert tokens.algorithms == ("RS256",)
    assert tokens.scope_aliases == {
        "admin": "rabbit.tag:administrator rabbit.read:*/*", "api://dev": "rabbit.write:*/*"
    }  # fmt: skip
    (jwk,) = key_set(tokens.signing_keys)
    assert (jwk["kid"], jwk["kty"]) == ("one", "RSA")
    assert RSAAlgorithm.from_jwk(jwk) == key
    assert config.auth_backends == ("internal", "http")
    assert (config.auth_http.cache_s, config.auth_http.timeout_s) == (5.0, 2.5)
    assert left_of(text) == [
        "# line 5: ssl_options.ciphers.2", "# line 11: auth_oauth2.algorithms.2",
        "# line 16: auth_oauth2.signing_keys.two",
    ]  # fmt: skip


def test_what_counts_of_several_listeners_and_of_memory(tmp_path: Path) -> None:
    config, text = migrated(
        tmp_path,
        "listeners.tcp.a = 5672\nlisteners.tcp.b = 5673\nlisteners.tcp.c = 127.0.0.1:5672\n"
        "listeners.tcp.d = unix:/run/a.sock:0\nlog.connection.level = debug\n"
        "vm_memory_high_watermark.relative = 0.5\nvm_memory_high_watermark.absolute = 1GB\n"
        "management.ssl.certfile = /c.pem\nmanagement.ssl.keyfile = /k.pem\n"
        "management.ssl.port = 15671\n",
    )
    assert (config.host, config.port, config.log_level) == ("0.0.0.0", 5672, "info")
    assert config.memory_bytes == 4 << 30
    assert (config.tls.cert, config.tls.port, config.tls.http_port) == ("/c.pem", None, 15671)
    assert left_of(text) == [
        "# line 2: listeners.tcp.b", "# line 3: listeners.tcp.c", "# line 4: listeners.tcp.d",
        "# line 5: log.connection.level",
    ]  # fmt: skip


def test_of_a_key_that_comes_twice_the_later_value_counts(tmp_path: Path) -> None:
    config, text = migrated(
        tmp_path,
        "listeners.tcp.1 = 5673\nauth_backends.1 = internal\nauth_backends.1 = http\n"
        "listeners.tcp.1 = 5674\nauth_http.user_path = https://accounts/user\n",
    )
    assert (config.port, config.auth_backends) == (5674, ("http",))
    assert "# line" not in text


def test_a_value_in_quotes_may_have_a_number_sign(tmp_path: Path) -> None:
    config, _ = migrated(
        tmp_path,
        "auth_http.user_path = 'https://accounts/#user'  # it's ours\n"
        "load_definitions = /a b.json # not '#'\n  # listeners.tcp.1 = 5673\n"
        "auth_http.vhost_path='https://accounts/v'\nlog.file = \n",
    )
    assert config.auth_http.user_path == "https://accounts/#user"
    assert config.auth_http.vhost_path == "https://accounts/v"
    assert (config.load_definitions, config.port) == ("/a b.json", 5672)


NEEDS = (
    "listeners.ssl.1 = 5671\nauth_backends.1 = cache\n"
    "auth_http.user_path = https://accounts/user\nauth_oauth2.resource_server_id = rabbit\n"
    "auth_oauth2.jwks_uri = https://issuer/keys\nssl_options.cacertfile = /a.pem\n"
    "ssl_options.certfile = /c.pem\nssl_options.keyfile = /k.pem\n"
    "ssl_options.verify = verify_peer\n"
)


@pytest.mark.parametrize("line", EXAMPLE.splitlines())
def test_each_key_of_the_example_is_translated_or_named(line: str) -> None:
    with_line = converted(f"{NEEDS}{line}\n")
    key = line.partition(" = ")[0]
    assert "not known here" not in with_line
    is_named = f"# line 10: {key} = " in with_line
    option = next((row.option for pattern, row in KEYS.items() if fnmatchcase(key, pattern)), "")
    table, _, name = option.rpartition(".")
    is_there = f"\n{name} = " in with_line and (f"[{table}]" in with_line if table else True)
    assert is_named or is_there
