import json

from penstock.access.limits import Limits
from penstock.queues.backing_choice import DEFAULT
from penstock.server.serve_settings import ServeSettings
from penstock.storage.durability import OS
from penstock.storage.options import StorageOptions


def test_what_a_vhost_is_told_crosses_a_processs_border() -> None:
    storage = StorageOptions(checkpoint_seconds=5, interval_ms=7)
    settings = ServeSettings(mode=OS, is_strict=True, log_level="debug", storage=storage)
    told = json.loads(json.dumps(settings.vhost_settings(123)))
    assert StorageOptions.of(told.pop("storage")) == storage
    assert Limits(**told.pop("limits")) == Limits()
    queues = told.pop("queues")
    assert queues == {"backing_queue": DEFAULT, "allowed_backing_queues": []}
    assert told == {
        "mode": OS, "memory_bytes": 123, "is_strict": True, "log_level": "debug",
        "staging_timeout_s": 86_400.0, "lease_alert_s": 3600.0,
        "stream_hold_s_max": 86_400.0, "stream_hold_bytes_max": 8 << 30,
    }  # fmt: skip
