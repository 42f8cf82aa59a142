"""VHostSettings: what a vhost is started with, checked by whoever made it.

One frozen value, handed in by the server's process, a test or a simulation. What a vhost is told
later (its share of the memory, users) does not stand here.

Not here: the spelling of options and the files they come from (penstock.config).
"""

from dataclasses import dataclass, field

from penstock.access.limits import Limits
from penstock.storage.durability import DISK
from penstock.storage.options import StorageOptions


@dataclass(frozen=True, slots=True)
class VHostSettings:
    """mode: the durability that a confirm stands for: DISK, INTERVAL or OS. memory_bytes: what may
    be counted in RAM. is_strict: queues' own maxima beyond that are refused. storage: of the
    engine. staging_timeout_s: age at which staged files that no batch names are swept;
    lease_alert_s: age from which a lease is told of. Both in seconds. stream_hold_s_max,
    stream_hold_bytes_max: how much more than a stream's limits keep its readers may ask to keep, in
    seconds and in bytes of each partition. limits: of users and of the
    vhost, where an operator has set no others."""

    mode: int = DISK
    memory_bytes: int = 1 << 30
    is_strict: bool = False
    storage: StorageOptions = field(default_factory=StorageOptions)
    staging_timeout_s: float = 86_400.0
    lease_alert_s: float = 3600.0
    stream_hold_s_max: float = 86_400.0
    stream_hold_bytes_max: int = 8 << 30
    limits: Limits = field(default_factory=Limits)
