"""The name of the node, as RabbitMQ's HTTP API and metrics call what runs a broker.

RabbitMQ's is "rabbit@" and the machine's name, and clients put it into addresses: ours has the same
form. Nothing is connected by it.
"""

import functools
import platform


@functools.cache
def node_name() -> str:
    """Return "penstock@" and the name of this machine."""
    return f"penstock@{platform.node()}"
