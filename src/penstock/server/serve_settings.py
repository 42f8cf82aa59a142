"""ServeSettings: what a broker is started with. ReadyFacts: what it reports when it is ready.

The command line passes the settings to the supervisor and gets the facts back. The values are
checked by the caller (penstock.config). What a user cannot set, such as how long an orderly stop
may take, has its default here, so that tests can use shorter times.
"""

from dataclasses import asdict, dataclass, field

from penstock.access.limits import Limits
from penstock.access.permissions import GUEST_LOOPBACK
from penstock.queues.backing_choice import BackingChoice
from penstock.storage.durability import DISK
from penstock.storage.options import StorageOptions

GIB = 1 << 30
FIX = "fix"
REFUSE = "refuse"
IGNORE = "ignore"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Times in seconds, sizes in bytes.

    data: the directory. host, port: to listen at; port 0: a free one. http_port: the same for HTTP;
    None: no HTTP. memory_bytes: for the queues of all vhosts. mode: durability. is_strict: queues'
    own maxima beyond the budget are refused. handshake_timeout_s: from accept to connection.open.
    half_open_max: clients in the handshake, half_open_bytes_max: bytes kept of what they sent;
    beyond either, one of them is dropped. guest: where the user guest may come from.
    data_permissions: what is done with a data directory in which others may write. notes: lines for
    the log, of the configuration. http_hosts: names under which HTTP is reached;
    http_connections_max: of all clients, http_address_connections_max: of one address;
    http_user_requests_max: under way, of one user. nofile: files and sockets that a process may
    open (server.descriptors). vhost_hang_s: a vhost that does not answer for
    so long is killed. After more than vhost_restarts_max failures within vhost_restart_window_s it
    is down, and started again after vhost_retry_s, after twice as long the next time, and so on; or
    with vhost_restart_strategy "stop_node" the broker stops. A request that ended a vhost's process
    twice is refused for vhost_refusal_s. The HTTP process is treated as a vhost is, but for the
    strategy. staging_bytes_max: of a sink's rows that no batch has moved yet, in each vhost,
    staging_user_bytes_max: of one user; staging_timeout_s: age at which those of no batch are
    swept. lease_alert_s: age from which a reader's lease is reported. stream_hold_s_max,
    stream_hold_bytes_max: how much more than a stream's limits its readers may ask to keep.
    queues: the classes that hold messages.
    """

    data: str = "./penstock-data"
    host: str = "127.0.0.1"
    port: int = 5672
    http_port: int | None = None
    memory_bytes: int = GIB
    staging_bytes_max: int = 8 * GIB
    staging_timeout_s: float = 86_400.0
    lease_alert_s: float = 3600.0
    staging_user_bytes_max: int = 6 * GIB
    stream_hold_s_max: float = 86_400.0
    stream_hold_bytes_max: int = 8 * GIB
    limits: Limits = field(default_factory=Limits)
    mode: int = DISK
    is_strict: bool = False
    log_level: str = "info"
    storage: StorageOptions = field(default_factory=StorageOptions)
    queues: BackingChoice = field(default_factory=BackingChoice)
    handshake_timeout_s: float = 10.0
    half_open_max: int = 1000
    half_open_bytes_max: int = 8 << 20
    guest: str = GUEST_LOOPBACK
    data_permissions: str = FIX
    notes: tuple[str, ...] = ()
    http_hosts: tuple[str, ...] = ()
    http_connections_max: int = 4096
    http_address_connections_max: int = 1024
    http_user_requests_max: int = 256
    silent_close_s: float = 1.0  # before a client is dropped that was refused without an answer
    nofile: int = 1 << 20
    vhost_hang_s: float = 30.0
    vhost_start_s: float = 600.0  # a recovery may take so long
    vhost_restarts_max: int = 3
    vhost_restart_window_s: float = 300.0
    vhost_restart_strategy: str = "continue"
    vhost_retry_s: float = 10.0
    vhost_refusal_s: float = 600.0
    open_s: float = 30.0  # for which a client waits for its vhost to start
    ping_s: float = 2.5  # between two pings; the memory is divided again as often
    stop_s: float = 60.0  # an orderly stop of a vhost, its checkpoint included

    def vhost_settings(self, memory_bytes: int) -> dict[str, object]:
        """Return the settings of a vhost's process with this memory, as JSON."""
        return {
            "mode": self.mode,
            "memory_bytes": memory_bytes,
            "is_strict": self.is_strict,
            "log_level": self.log_level,
            "staging_timeout_s": self.staging_timeout_s,
            "lease_alert_s": self.lease_alert_s,
            "stream_hold_s_max": self.stream_hold_s_max,
            "stream_hold_bytes_max": self.stream_hold_bytes_max,
            "storage": asdict(self.storage),
            "limits": asdict(self.limits),
            "queues": asdict(self.queues),
        }


@dataclass(frozen=True, slots=True)
class ReadyFacts:
    """Facts of a broker that is ready. host, port, http_port (None: no HTTP): where it listens.
    data: its directory. problems: what keeps it from serving clients, such as a vhost that is
    down."""

    host: str
    port: int
    data: str
    memory_bytes: int
    mode: int
    http_port: int | None = None
    problems: tuple[str, ...] = ()
