"""The table of the HTTP API: one row for each address and method below /api.

management.py answers what stands here; docs/reference/http.md and /api/openapi.json are made from
it. A new endpoint is a row and, if no operation answers it, a function of ApiRequest. Addresses,
tags and forms are RabbitMQ's; rows with `is_ours` are not. /api/streams, leases and staging are
elsewhere: read_endpoints, staging_endpoints.
"""

from typing import Final

from penstock.http import node_pages
from penstock.http.endpoint import ANY, COLUMNS, LIST_QUERY, STATS_QUERY, Endpoint
from penstock.operation_table import ADMINISTRATORS, MANAGERS, WATCHERS, text

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
        "nodes", "GET", "The only node, in a list.", node_pages.nodes, tags=WATCHERS, query=_LIST
    ),
    Endpoint("nodes/{node}", "GET", "The node.", node_pages.node, tags=WATCHERS, query=_ONE),
    Endpoint(
        "nodes/{node}/memory", "GET", "What the RAM of the node is for.", node_pages.node_memory,
        tags=WATCHERS, query=_ONE,
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
            (
                "certificate-expiration/{within}/{unit}",
                "Fails if a certificate expires within so many days, weeks, months or years.",
                node_pages.check_certificates,
            ),
            ("below-node-connection-limit", "Ok: there is none.", node_pages.check_ok),
            ("metadata-store/initialized", "Ok.", node_pages.check_ok),
            (
                "metadata-store/initialized/with-data", "Ok.", node_pages.check_ok,
            ),
            ("reached-target-cluster-size", "Ok: one node.", node_pages.check_single_node),
            ("quorum-queues-without-elected-leaders/all-vhosts/pattern/{pattern}",
             "Ok: one node leads all.", node_pages.check_ok),
        )
    ),
    Endpoint(
        "healthchecks/node", "GET", "The oldest health check.", node_pages.check_vhosts
    ),
)  # fmt: skip

# What is the same for every broker of Penstock, or empty.
FIXED_ROWS: Final = (
    *(
        Endpoint(path, "GET", "An empty list.", node_pages.nothing, tags=tags, query=_LIST)
        for path, tags in (
            ("extensions", MANAGERS), ("feature-flags", ADMINISTRATORS),
            ("deprecated-features", ADMINISTRATORS), ("deprecated-features/used", ADMINISTRATORS),
            ("shovels", WATCHERS), ("shovels/{vhost}", WATCHERS), ("federation-links", WATCHERS),
            ("federation-links/{vhost}", WATCHERS), ("stream/connections", MANAGERS),
            ("stream/connections/{vhost}", MANAGERS),
        )
    ),
    Endpoint("auth", "GET", "How users log in.", node_pages.auth, tags=(), is_open=True),
    Endpoint(
        "auth/attempts/{node}", "GET", "How many logins there were.", node_pages.auth_attempts,
        tags=WATCHERS, query=_LIST,
    ),
    Endpoint(
        "auth/hash_password/{password}", "GET", "A hash for definitions or a user's PUT.",
        node_pages.hash_password, tags=ADMINISTRATORS,
    ),
    Endpoint("version", "GET", "The versions.", node_pages.version, query=_ONE),
    Endpoint(
        "rebalance/queues", "POST", "Nothing: there is one node.", node_pages.rebalance,
        tags=ADMINISTRATORS, status=204,
    ),
)  # fmt: skip

OUR_ROWS: Final = (
    Endpoint(
        "penstock/processes", "GET", "The processes of the broker, with what they use.",
        node_pages.processes, tags=WATCHERS, query=LIST_QUERY, is_ours=True,
    ),
    Endpoint(
        "penstock/alerts", "GET", "The alerts of all vhosts.", node_pages.alerts, tags=WATCHERS,
        query=LIST_QUERY, is_ours=True,
    ),
    Endpoint(
        "penstock/alarms", "GET", "Whose publishers wait: why, since when, for which queues.",
        node_pages.alarms, tags=WATCHERS, query=LIST_QUERY, is_ours=True,
    ),
    Endpoint(
        "penstock/streams/{vhost}", "GET", "The streams that the user may read.", "list_streams",
        query=LIST_QUERY, is_ours=True,
    ),
    Endpoint(
        "penstock/leases/{vhost}", "GET", "The leases of queues that the user may read.",
        "list_leases", query=LIST_QUERY, is_ours=True,
    ),
    Endpoint(
        "penstock/batches/{vhost}", "GET", "The last batch of each query that the user may use.",
        "list_batches", query=LIST_QUERY, is_ours=True,
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

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    *NODE_ROWS, *HEALTH_ROWS, *FIXED_ROWS, *OUR_ROWS, *VHOST_ROWS,
)  # fmt: skip
