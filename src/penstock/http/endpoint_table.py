"""The table of the HTTP API: one row for each address and method below /api.

management.py answers what stands here; docs/reference/http.md and /api/openapi.json are made from
it. A new endpoint is a row and, if no operation answers it, a function of ApiRequest. Addresses,
tags and forms are RabbitMQ's; rows with `is_ours` are not. /api/streams, leases and staging are
elsewhere: read_endpoints, staging_endpoints.
"""

from typing import Final

from penstock.http import node_pages
from penstock.http.endpoint import ANY, COLUMNS, LIST_QUERY, STATS_QUERY, Endpoint
from penstock.operation_table import ADMINISTRATORS, text

_ONE: Final = {COLUMNS: LIST_QUERY[COLUMNS]}
_LIST: Final = {**LIST_QUERY, **STATS_QUERY}

NODE_ROWS: Final = (
    Endpoint("whoami", "GET", "Who asks, with which tags.", node_pages.whoami, query=_ONE),
    Endpoint(
        "overview", "GET", "Counts, rates and versions of the whole broker.", node_pages.overview,
        query={**_ONE, **STATS_QUERY},
    ),
    Endpoint(
        "cluster-name", "GET", "The name of the broker.", node_pages.cluster_name, query=_ONE
    ),
    Endpoint(
        "cluster-name", "PUT", "Name the broker.", node_pages.set_cluster_name,
        tags=ADMINISTRATORS, body=(text("name", "the name"),), status=204,
    ),
    Endpoint("vhosts", "GET", "The vhosts.", node_pages.vhosts, query=_LIST),
    Endpoint(
        "vhosts/{vhost}", "GET", "One vhost.", node_pages.vhost, tags=ADMINISTRATORS, vhost=ANY,
        query=_ONE,
    ),
    Endpoint(
        "aliveness-test/{vhost}", "GET", "Whether the vhost answers.", node_pages.aliveness
    ),
)  # fmt: skip

HEALTH_ROWS: Final = (
    *(
        Endpoint(f"health/checks/{name}", "GET", line, function)
        for name, line, function in (
            ("alarms", "Fails while publishers wait.", node_pages.check_alarms),
            ("local-alarms", "The same.", node_pages.check_alarms),
            ("virtual-hosts", "Fails while a vhost is down.", node_pages.check_vhosts),
            ("node-is-quorum-critical", "Ok: one node.", node_pages.check_single_node),
            ("node-is-mirror-sync-critical", "Ok: one node.", node_pages.check_single_node),
            (
                "port-listener/{port}", "Fails unless the broker listens there.",
                node_pages.check_port,
            ),
            (
                "protocol-listener/{protocol}", "Fails unless the broker speaks it.",
                node_pages.check_protocol,
            ),
            (
                "ready-to-serve-clients", "Fails until clients are served.",
                node_pages.check_ready,
            ),
            ("is-in-service", "The same.", node_pages.check_ready),
        )
    ),
)  # fmt: skip

VHOST_ROWS: Final = (
    Endpoint("queues", "GET", "Queues and streams of all vhosts.", rows="queues", query=_LIST),
    Endpoint("queues/{vhost}", "GET", "Those of a vhost.", rows="queues", query=_LIST),
    Endpoint(
        "queues/{vhost}/{queue}", "GET", "One queue or stream.", describes="queues",
        query={**_ONE, **STATS_QUERY},
    ),
)  # fmt: skip

ENDPOINTS: Final[tuple[Endpoint, ...]] = (*NODE_ROWS, *HEALTH_ROWS, *VHOST_ROWS)
