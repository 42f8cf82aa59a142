"""What stays different from RabbitMQ's HTTP API: patterns of lines of http_api.differences, under
words of the sentence of docs/reference/compatibility.md that has the reason."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

DIFFERENCES: dict[str, tuple[str, ...]] = {
    "other reasons are texts of our own": (
        "PUT permissions/{vhost}/{user} (user=bob) | reason*",
        "POST queues/{vhost}/{queue}/actions again | reason*",
    ),
    "Addresses of RabbitMQ 3.11 to 4, and of plugins that are not switched on there": (
        "GET health/checks/* | status 404, not 200", "GET deprecated-features* | status 404, *",
        "GET shovels* | status 40?, not 200", "GET federation-links* | status 40?, not 200",
        "GET stream/connections* | status 40?, not 200", "GET config/effective | status 404, *",
        "GET auth/hash_password/{password} | status 404, *", "GET version | status 404, not 200",
        "GET queues/detailed | status 404, not 200",
    ),
    "What Erlang's machine and its files have": (
        "* | *garbage_collection.* missing", "GET overview | listeners[].socket_opts.*",
        "GET nodes* | *config_files[] missing", "GET nodes* | *ra_open_file_metrics.*",
        "GET nodes* | *metrics_gc_queue_length.*",
        "GET queues* | *backing_queue_status.next_deliver_seq_id missing",
        "GET queues* | *backing_queue_status.target_ram_count str, not number*",
        "GET extensions | [] missing", "GET feature-flags | [] missing",
    ),
    "no rates of what the node itself counts": (
        "GET nodes* | *_details missing", "GET overview | message_stats.disk_*",
    ),
    "an empty text in a list of connections, where RabbitMQ has null": (
        "GET *connections | [].peer_cert_* null, not str",
        "GET *connections | [].ssl_* null, not str",
    ),
    "With `disable_stats` rows have no members": (
        "GET queues[?]disable_stats=* | [].* missing",
    ),
    "are a 404 in definitions": ("GET definitions/{vhost} (vhost=none) | status 400, not 404",),
    "Parameters of other components than": (
        "DELETE parameters/{component}/{vhost}/{name} (component=none) | status 404, not 400",
    ),
    "may leave out what has a default": ("POST definitions/{vhost} | status 400, not 204",),
    "where RabbitMQ answers 500": ("POST definitions again | status 500, not 400",),
}  # fmt: skip


def _is_like(line: str, pattern: str) -> bool:
    return fnmatchcase(line, pattern.replace("[]", "[[]]"))


def reason(line: str) -> str:
    """The words that this difference stands under; "" if it is to be none."""
    for words, patterns in DIFFERENCES.items():
        if any(_is_like(line, pattern) for pattern in patterns):
            return words
    return ""


def unused(lines: Iterable[str]) -> list[str]:
    """The patterns that no line is like."""
    found = list(lines)
    return [
        pattern for patterns in DIFFERENCES.values() for pattern in patterns
        if not any(_is_like(line, pattern) for line in found)
    ]  # fmt: skip
