"""Operations on clients' connections.

The client of one that is closed gets 320 CONNECTION_FORCED with the reason; the vhost is to blame
then, not the client, so its messages go back without an attempt that counts.
"""

from typing import Final

from penstock.broker.channel import ChannelOwner
from penstock.broker.operations.call import Call, Functions, Slices
from penstock.errors import CONNECTION_FORCED
from penstock.operation_table import WATCHERS

CLOSE_STEPS: Final = 64  # to end one: its channels end, what they have goes back


def sees_all(call: Call) -> bool:
    """Return whether the caller sees the connections of all users, not only its own."""
    return call.is_operator or not call.identity.tags.isdisjoint(WATCHERS)


def _close_connections(call: Call) -> None:
    call.in_slices(_closed(call))


def _closed(call: Call) -> Slices:
    """Close them; the caller's own connection after the answer."""
    vhost, args = call.vhost, call.args
    name, user, text = args.text("name"), args.text("user"), args.text("reason")
    count = 0
    own: ChannelOwner | None = None
    for peer in list(vhost.handlers):
        assert isinstance(peer, ChannelOwner), "every client has channels"
        is_meant = (not name or peer.name == name) and (not user or peer.facts.user == user)
        if not is_meant or not (sees_all(call) or peer.facts.user == call.identity.name):
            continue
        count += 1
        if peer is call.owner:
            own = peer
            continue
        peer.shutdown(CONNECTION_FORCED, text)
        vhost.budget.left -= CLOSE_STEPS
        yield
    if own is not None:
        vhost.timers.call_at(vhost.clock.monotonic(), lambda: own.shutdown(CONNECTION_FORCED, text))
    return {"closed": count}


FUNCTIONS: Final[Functions] = {"close_connections": _close_connections}
