"""What stays different from RabbitMQ, and why: patterns of sessions, under the heading of
docs/reference/compatibility.md that has the reason."""

from fnmatch import fnmatchcase

DIFFERENCES: dict[str, tuple[str, ...]] = {
    "Texts of errors": (
        "method/short", "method/empty", "method/*-cut", "method/*-trailing",
        "method/declare-no-table", "frame/end", "frame/type-*", "frame/heartbeat-*",
        "frame/large", "frame/largest", "frame/hello-again", "frame/text", "frame/header-zero",
        "frame/body-zero", "declare/stream/x-stream-max-segment-size-bytes/more",
        "topics/write", "topics/write-none", "topics/write-user", "topics/write-vhost",
        "topics/write-half", "topics/write-unknown", "topics/read", "topics/clear",
        "topics/replace", "limits/user/channels", "limits/user/channels-later",
    ),
    "What RabbitMQ breaks on": (
        "table/*/unknown-letter", "table/*/letter-U", "table/*/cut-*", "table/*/no-value",
        "content/headers-*", "content/flags-*", "content/trailing", "content/no-flags",
        "method/class", "method/method", "method/file", "frame/header-short",
        "declare/plain/x-queue-master-locator/text", "declare/plain/x-queue-master-locator/int",
        "declare/classic/x-queue-master-locator/text",
        "declare/classic/x-queue-master-locator/int", "stream/offset-what", "stream/offset-bool",
        "stream/offset-double", "stream/offset-minus",
    ),
    "Arguments": (
        "declare/plain/x-delivery-limit/*", "declare/classic/x-delivery-limit/*",
        "declare/quorum/x-delivery-limit/text", "declare/quorum/x-max-priority/*",
        "declare/quorum/x-delivery-limit/bool", "declare/quorum/x-delivery-limit/double",
        "declare/stream/x-max-length/*", "declare/[!s]*/x-message-ttl/large",
        "declare/[!s]*/x-expires/large", "declare/[!s]*/x-expires/century",
    ),
    "Tables": (
        "table/*/deep-400", "table/*/deep-1000", "table/*/deep-list-1000", "headers/table*",
        "binding/unbind-width",
    ),
    "Names": ("name/queue/nul", "name/*/latin", "name/*/cut"),
    "Exchanges": ("exchange/x-random/*", "system/passive-amq-event"),
    "Queues": ("state/quorum/delete-if-*", "state/foreign/unbind", "state/foreign/unbind-other"),
    "Streams": ("stream/delete-if-*", "stream/nack"),
    "Messages": (
        "properties/mode-*", "properties/expiration-plus", "properties/bcc-list", "copies/bcc",
        "alternate/default", "content/too-much", "content/large-size",
    ),
    "Policies": (
        "policy/length/quorum", "policy/overflow/full",
    ),
    "Confirms and transactions": (
        "confirm/rejected", "tx/reject-publish", "policy/overflow/classic",
    ),
    "Connections and channels": (
        "handshake/version-0-8", "handshake/version-0-9", "channel/reopen-at-once",
        "unexpected/channel/basic.return", "unexpected/channel/basic.deliver",
        "unexpected/channel/basic.get-ok",
    ),
}  # fmt: skip


def reason(session: str) -> str:
    """The heading that this session's difference stands under; "" if it is to be none."""
    for heading, patterns in DIFFERENCES.items():
        if any(fnmatchcase(session, pattern) for pattern in patterns):
            return heading
    return ""
