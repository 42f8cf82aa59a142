"""The rows of a command's list, without the turns that its operation takes."""

from typing import Any

from penstock.broker.operations.kinds import RowAsked
from penstock.broker.operations.pages import LISTS
from penstock.broker.vhost import VHost
from penstock.members import Columns


def rows_of_list(vhost: VHost, op: str) -> list[dict[str, Any]]:
    """All rows of list_queues, list_exchanges, list_bindings, list_channels or list_consumers."""
    kind = LISTS[op]
    found = [kind.row(vhost, thing, RowAsked(Columns())) for thing in kind.all(vhost, {})]
    return [row for row in found if row is not None]
