"""The table of the HTTP API: one row for each address and method below /api.

management.py answers what stands here; docs/reference/http.md and /api/openapi.json are made from
it. A new endpoint is a row and, if no operation answers it, a function of ApiRequest. Addresses,
tags and forms are RabbitMQ's; rows with `is_ours` are not. /api/streams, leases and staging are
elsewhere: read_endpoints, staging_endpoints.
"""

from dataclasses import replace
from typing import Final

from penstock.http import (
    api_pages,
    change_pages,
    dashboard_pages,
    node_pages,
)
from penstock.http.change_pages import OPERATOR_POLICY, POLICY
from penstock.http.endpoint import ANY, COLUMNS, LIST_QUERY, NEW, OPENED, STATS_QUERY, Endpoint
from penstock.operation_table import (
    ADMINISTRATORS,
    MANAGERS,
    OPERATIONS,
    POLICYMAKERS,
    TAIL_LINES,
    U63_MAX,
    WATCHERS,
    any_value,
    field_table,
    flag,
    short_text,
    table,
    text,
    text_or_null,
    texts,
    whole,
    whole_or_null,
)

_ONE: Final = {COLUMNS: LIST_QUERY[COLUMNS]}
_LIST: Final = {**LIST_QUERY, **STATS_QUERY}

NODE_ROWS: Final = (
    Endpoint(
        "login", "POST", "Log in with the form of the dashboard; the answer has a cookie.",
        dashboard_pages.login, tags=(), is_open=True, is_ours=True,
        body=(text("username", "the user"), text("password", "the password, or a token")),
        body_bytes_max=16 << 10,
    ),
    Endpoint(
        "logout", "POST", "End the session of the cookie.", dashboard_pages.logout, tags=(),
        is_open=True, is_ours=True, status=204,
    ),
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
    Endpoint(
        "healthchecks/node/{node}", "GET", "The same, by the node's name.",
        node_pages.check_this_node,
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
    Endpoint(
        "config/effective", "GET", "The broker's options, without secrets.", "show_config",
        query=LIST_QUERY,
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
    Endpoint(
        "openapi.json", "GET", "This table, as OpenAPI 3.1.", api_pages.openapi_document, tags=(),
        is_open=True, is_ours=True,
    ),
    Endpoint(
        "index.html", "GET", "This table, as a page.", api_pages.index_page, tags=(),
        media_type="text/html", is_open=True,
    ),
    Endpoint("version", "GET", "The versions.", node_pages.version, query=_ONE),
    Endpoint(
        "rebalance/queues", "POST", "Nothing: there is one node.", node_pages.rebalance,
        tags=ADMINISTRATORS, status=204,
    ),
)  # fmt: skip

OPERATION_BYTES_MAX: Final = 4 << 20  # of arguments
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
        "penstock/log", "GET", "The last lines of the broker's log.", "log_tail", is_ours=True,
        query={
            "number": f"how many, at most {TAIL_LINES}; 50 if it is not given",
            "level": "of this level or above: debug, info, warning or error",
            "after": "only those after the line of this number",
        },
    ),
    Endpoint(
        "penstock/why/{vhost}", "GET", "Why publishers wait, and which queues nobody consumes.",
        "why", is_ours=True,
    ),
    Endpoint(
        "penstock/why/{vhost}/queues/{queue}", "GET", "Why a queue does not drain.", "why",
        is_ours=True,
    ),
    Endpoint(
        "penstock/why/{vhost}/connections/{connection}", "GET", "Why a connection stands.", "why",
        is_ours=True,
    ),
    Endpoint(
        "penstock/events", "GET", "What changes, once a second, as server-sent events.",
        dashboard_pages.events, is_ours=True, media_type="text/event-stream",
        query={"topics": "overview, queue:VHOST:NAME ..., with commas; names percent-encoded"},
    ),
    *(
        Endpoint(
            f"penstock/history/{address}", "GET", line, dashboard_pages.history, is_ours=True,
            query={"step": "seconds between two samples: 1, 10 or 60"},
        )
        for address, line in (
            ("{vhost}", "Samples of a vhost, of the last minutes, hours or day."),
            ("{vhost}/{queue}", "Samples of a queue, from when somebody has looked at it."),
        )
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
    Endpoint(
        "penstock/operations/{operation}", "POST",
        "Call an operation with the permissions of the user, as `penstock --url` does.",
        change_pages.operation, body=(), body_bytes_max=OPERATION_BYTES_MAX, is_raw=True,
        query={"vhost": "which one, for an operation about a vhost"}, is_ours=True,
    ),
)  # fmt: skip

VHOST_ROWS: Final = (
    Endpoint("queues", "GET", "Queues and streams of all vhosts.", rows="queues", query=_LIST),
    Endpoint(
        "queues/detailed", "GET", "The same, as RabbitMQ 4 has it.", rows="queues", query=_LIST
    ),
    Endpoint("queues/{vhost}", "GET", "Those of a vhost.", rows="queues", query=_LIST),
    Endpoint(
        "queues/{vhost}/{queue}", "GET", "One queue or stream.", describes="queues",
        query={**_ONE, **STATS_QUERY},
    ),
    Endpoint(
        "penstock/queues/{vhost}/{queue}/messages", "GET",
        "Messages with such a key, header or body, which stay where they are.",
        change_pages.browse, vhost=OPENED, is_ours=True,
        query={
            "count": "how many at most, from 1 to 1000",
            "after": "go on after the message of this tag: `after` of the last answer",
            "from": "begin behind so many",
            "last": "begin with the last so many",
            "since": "begin with what came then, in seconds since 1970; not among priorities",
            "older": "only what came so many seconds ago, or earlier",
            "skip": "leave out so many of those that are found",
            "key": "a part of the routing key",
            "header": "NAME:VALUE, or NAME for any value; may be repeated",
            "body": "a part of the body",
            "truncate": "bytes of each body that are shown",
            "encoding": "auto or base64",
        },
    ),
    Endpoint(
        "penstock/queues/{vhost}/{queue}/publishers", "GET",
        "Who has published to it lately, and through which exchange.", rows="publishers",
        is_ours=True, query=_LIST,
    ),
    Endpoint(
        "penstock/queues/{vhost}/{queue}/unacked", "GET",
        "Who has unacknowledged messages, and since when.", rows="unacked", is_ours=True,
        query=_LIST,
    ),
)  # fmt: skip

_TRUE: Final = "true: "
_DURABLE: Final = flag("durable", "kept after a restart")
_AUTO_DELETE: Final = flag("auto_delete", "deleted after its last use")
_ARGUMENTS: Final = field_table("arguments", "arguments as of AMQP")
_PUBLISH: Final = (
    table("properties", "properties of AMQP, by their names"),
    short_text("routing_key", "the routing key"), text("payload", "the body"),
    text("payload_encoding", "string or base64"),
)  # fmt: skip
_GET: Final = (
    whole("count", 1, U63_MAX, "how many messages at most"),
    text("ackmode", "what becomes of them"), text("encoding", "auto or base64"),
    whole_or_null("truncate", 0, meaning="bytes of each body that are shown"),
)  # fmt: skip
_BINDING: Final = (short_text("routing_key", "a key or a pattern", default=""), _ARGUMENTS)
_USER: Final = (
    text_or_null("password", "the password"),
    text_or_null("password_hash", "instead, as RabbitMQ has it"),
    text(
        "hashing_algorithm", "of the hash", default="rabbit_password_hashing_sha256",
    ),
    replace(any_value("tags", "a list, or a text with commas"), value=None),
    table("limits", 'such as {"max-connections": 10}'),
)  # fmt: skip
_PERMISSIONS: Final = (
    text("configure", "a regular expression of names"), text("write", "the same"),
    text("read", "the same"),
)  # fmt: skip
_TOPIC_PERMISSIONS: Final = (
    short_text("exchange", "the topic exchange"),
    text("write", "a regular expression of routing keys"), text("read", "the same"),
)  # fmt: skip
_POLICY: Final = (
    text("pattern", "a regular expression of names"),
    any_value("definition", 'keys and values, such as {"max-length": 1000}'),
    whole("priority", -(1 << 31), 1 << 31, "of several, the highest counts", default=0),
    text("apply-to", "queues, exchanges, all ...", default="all"),
)  # fmt: skip
_VALUE: Final = (any_value("value", "any JSON"),)
_VHOST: Final = (
    text_or_null("description", "what the vhost is for"),
    replace(any_value("tags", "a list, or a text with commas"), value=None),
    text_or_null("default_queue_type", "of queues that are declared without a type"),
    flag("tracing", "copy messages to amq.rabbitmq.trace"),
)  # fmt: skip
DEFINITIONS_BYTES_MAX: Final = 20_000_000
PUBLISH_BYTES_MAX: Final = 20_000_000
_AS_SEEN: Final = {
    "if_messages_at_most": "refuse it if there are more messages",
    "if_generation": "refuse it if penstock.generation of the queue is another: it was deleted",
}


CHANGE_ROWS: Final = (
    # queues, exchanges, bindings
    Endpoint(
        "queues/{vhost}/{queue}", "PUT", "Declare a queue or stream.", "declare_queue",
        vhost=OPENED, body=(_DURABLE, _AUTO_DELETE, _ARGUMENTS), shape=change_pages.made,
    ),
    Endpoint(
        "queues/{vhost}/{queue}", "DELETE", "Delete a queue and its messages.",
        "delete_queue", vhost=OPENED, status=204,
        query={
            "if-empty": _TRUE + "only if it has no messages",
            "if-unused": _TRUE + "only if it has no consumers",
            **_AS_SEEN,
        },
    ),
    Endpoint(
        "queues/{vhost}/{queue}/contents", "DELETE", "Delete its ready messages.",
        "purge_queue", vhost=OPENED, query=_AS_SEEN, status=204,
    ),
    Endpoint(
        "penstock/queues/{vhost}/{queue}/pause", "PUT", "Deliver nothing to its consumers.",
        "pause_queue", vhost=OPENED, is_ours=True, status=204,
    ),
    Endpoint(
        "penstock/queues/{vhost}/{queue}/resume", "PUT", "Deliver to its consumers again.",
        "resume_queue", vhost=OPENED, is_ours=True, status=204,
    ),
    Endpoint(
        "penstock/queues/{vhost}/{queue}/move", "POST",
        "Move ready messages to another queue, or each dead letter to where it died.",
        "move_messages", is_ours=True, body=OPERATIONS["move_messages"].arguments[1:],
    ),
    Endpoint(
        "penstock/queues/{vhost}/{queue}/delete", "POST",
        "Delete the next ready messages, or those that are meant.", "delete_messages",
        vhost=OPENED, is_ours=True, body=OPERATIONS["delete_messages"].arguments[1:],
    ),
    Endpoint(
        "queues/{vhost}/{queue}/actions", "POST", "Does nothing: there are no mirrors.",
        change_pages.queue_action, tags=ADMINISTRATORS, vhost=OPENED,
        body=(text("action", "sync or cancel_sync"),),
    ),
    Endpoint(
        "queues/{vhost}/{queue}/get", "POST", "Get messages, and settle them at once.",
        change_pages.get, vhost=OPENED, body=_GET, shape=change_pages.without_empty,
    ),
    Endpoint(
        "exchanges/{vhost}/{exchange}", "PUT", "Declare an exchange.", "declare_exchange",
        vhost=OPENED, shape=change_pages.made,
        body=(
            short_text("type", "direct, fanout, topic, headers ...", default="direct"), _DURABLE,
            _AUTO_DELETE, flag("internal", "only exchanges can publish to it"), _ARGUMENTS,
        ),
    ),
    Endpoint(
        "exchanges/{vhost}/{exchange}", "DELETE", "Delete an exchange and its bindings.",
        "delete_exchange", vhost=OPENED, status=204,
        query={"if-unused": _TRUE + "only if nothing is bound to it"},
    ),
    Endpoint(
        "exchanges/{vhost}/{exchange}/publish", "POST", "Publish a message.",
        change_pages.publish, vhost=OPENED, body=_PUBLISH, body_bytes_max=PUBLISH_BYTES_MAX,
    ),
    *(
        row
        for destination, what in (("q/{queue}", "a queue"), ("e/{destination}", "an exchange"))
        for row in (
            Endpoint(
                f"bindings/{{vhost}}/e/{{exchange}}/{destination}", "POST", f"Bind {what}.",
                change_pages.bind, vhost=OPENED, body=_BINDING, status=201,
            ),
            Endpoint(
                f"bindings/{{vhost}}/e/{{exchange}}/{destination}/{{properties_key}}", "DELETE",
                f"Delete a binding of {what}.", change_pages.unbind, vhost=OPENED, status=204,
            ),
        )
    ),
    # users
    Endpoint(
        "users", "GET", "Users, with hashes of their passwords.", change_pages.users,
        tags=ADMINISTRATORS, query=_LIST,
    ),
    Endpoint(
        "users/without-permissions", "GET", "Users who may use no vhost.",
        change_pages.users_without_permissions, tags=ADMINISTRATORS, query=_LIST,
    ),
    Endpoint(
        "users/bulk-delete", "POST", "Delete users: all of them, or none.",
        change_pages.delete_users, tags=ADMINISTRATORS, body=(texts("users", "their names"),),
    ),
    Endpoint(
        "users/{name}", "GET", "One user.", change_pages.user, tags=ADMINISTRATORS, query=_ONE
    ),
    Endpoint(
        "users/{name}", "PUT", "Add a user, or replace the password and the tags of one.",
        change_pages.put_user, tags=ADMINISTRATORS, body=_USER,
    ),
    Endpoint("users/{name}", "DELETE", "Delete a user.", "delete_user", status=204),
    # permissions
    *(
        Endpoint(address, "GET", line, "list_permissions", vhost=ANY, query=_LIST)
        for address, line in (
            ("permissions", "What users may do."),
            ("vhosts/{vhost}/permissions", "What users may do in a vhost."),
            ("users/{user}/permissions", "What a user may do."),
        )
    ),
    Endpoint(
        "permissions/{vhost}/{user}", "GET", "What a user may do in a vhost.", "list_permissions",
        vhost=ANY, query=_ONE, shape=change_pages.first,
    ),
    Endpoint(
        "permissions/{vhost}/{user}", "PUT", "Set what a user may do in a vhost.",
        change_pages.set_permissions("set_permissions"), tags=ADMINISTRATORS, vhost=NEW,
        body=_PERMISSIONS,
    ),
    Endpoint(
        "permissions/{vhost}/{user}", "DELETE", "Take a vhost away from a user.",
        "clear_permissions", vhost=ANY, shape=change_pages.removed,
    ),
    *(
        Endpoint(address, "GET", line, "list_topic_permissions", vhost=ANY, query=_LIST)
        for address, line in (
            ("topic-permissions", "Which routing keys users may use."),
            ("vhosts/{vhost}/topic-permissions", "Those of a vhost."),
            ("users/{user}/topic-permissions", "Those of a user."),
        )
    ),
    Endpoint(
        "topic-permissions/{vhost}/{user}", "GET", "Those of a user in a vhost.",
        "list_topic_permissions", vhost=ANY, query=_LIST, shape=change_pages.some,
    ),
    Endpoint(
        "topic-permissions/{vhost}/{user}", "PUT", "Set which routing keys a user may use.",
        change_pages.set_permissions("set_topic_permissions"), tags=ADMINISTRATORS, vhost=NEW,
        body=_TOPIC_PERMISSIONS,
    ),
    Endpoint(
        "topic-permissions/{vhost}/{user}", "DELETE", "Allow the user every routing key again.",
        "clear_topic_permissions", vhost=ANY, shape=change_pages.removed,
    ),
    Endpoint(
        "topic-permissions/{vhost}/{user}/{exchange}", "DELETE",
        "Allow the user every routing key of one exchange again.",
        "clear_topic_permissions", vhost=ANY, shape=change_pages.removed,
    ),
    # limits
    *(
        Endpoint(address, "GET", line, change_pages.vhost_limits, query=_LIST,
                 shape=change_pages.limits_of("vhost"))
        for address, line in (
            ("vhost-limits", "Limits that were set for vhosts."),
            ("vhost-limits/{vhost}", "Limits that were set for a vhost."),
        )
    ),
    *(
        Endpoint(address, "GET", line, change_pages.user_limits, query=_LIST,
                 shape=change_pages.limits_of("user"))
        for address, line in (
            ("user-limits", "Limits that were set for users."),
            ("user-limits/{user}", "Limits that were set for a user."),
        )
    ),
    *(
        row
        for owner in ("vhost", "user")
        for row in (
            Endpoint(
                f"{owner}-limits/{{{owner}}}/{{limit}}", "PUT", f"Set a limit of a {owner}.",
                change_pages.set_limit, tags=ADMINISTRATORS, vhost=ANY,
                body=(any_value("value", "a number, -1 for no limit"),),
            ),
            Endpoint(
                f"{owner}-limits/{{{owner}}}/{{limit}}", "DELETE", f"Clear a limit of a {owner}.",
                change_pages.clear_limit, tags=ADMINISTRATORS, vhost=ANY,
            ),
        )
    ),
    # policies and parameters
    *(
        row
        for word, component, clear, tags in (
            ("policies", POLICY, "clear_policy", POLICYMAKERS),
            ("operator-policies", OPERATOR_POLICY, "clear_operator_policy", ADMINISTRATORS),
        )
        for row in (
            Endpoint(word, "GET", f"The {word}.", change_pages.policies(component),
                     tags=POLICYMAKERS, query=_LIST),
            Endpoint(f"{word}/{{vhost}}", "GET", f"The {word} of a vhost.",
                     change_pages.policies(component), tags=POLICYMAKERS, query=_LIST),
            Endpoint(f"{word}/{{vhost}}/{{name}}", "GET", f"One of the {word}.",
                     change_pages.policies(component), tags=POLICYMAKERS, query=_ONE),
            Endpoint(f"{word}/{{vhost}}/{{name}}", "PUT", f"Set one of the {word}.",
                     change_pages.set_policy(component), tags=tags, body=_POLICY),
            Endpoint(f"{word}/{{vhost}}/{{name}}", "DELETE", f"Delete one of the {word}.", clear,
                     tags=tags, status=204),
        )
    ),
    *(
        Endpoint(address, "GET", line, change_pages.parameters, tags=POLICYMAKERS, query=query)
        for address, line, query in (
            ("parameters", "Parameters of vhosts.", _LIST),
            ("parameters/{component}", "Those of a component.", _LIST),
            ("parameters/{component}/{vhost}", "Those of a component in a vhost.", _LIST),
            ("parameters/{component}/{vhost}/{name}", "One parameter.", _ONE),
        )
    ),
    Endpoint(
        "parameters/{component}/{vhost}/{name}", "PUT", "Store a parameter of a vhost.",
        change_pages.set_parameter, tags=POLICYMAKERS, body=_VALUE,
    ),
    Endpoint(
        "parameters/{component}/{vhost}/{name}", "DELETE", "Delete a parameter of a vhost.",
        "clear_parameter", status=204,
    ),
    Endpoint(
        "global-parameters", "GET", "Parameters of the whole broker.", "list_global_parameters",
        query=_LIST,
    ),
    Endpoint(
        "global-parameters/{name}", "GET", "One of them.", change_pages.global_parameter,
        tags=POLICYMAKERS, query=_ONE,
    ),
    Endpoint(
        "global-parameters/{name}", "PUT", "Store a parameter of the whole broker.",
        "set_global_parameter", body=_VALUE, shape=change_pages.made,
    ),
    Endpoint(
        "global-parameters/{name}", "DELETE", "Delete a parameter of the whole broker.",
        "clear_global_parameter", status=204,
    ),
    # vhosts
    Endpoint(
        "vhosts/{vhost}", "PUT", "Add a vhost, or change what is said about one.",
        change_pages.put_vhost, tags=ADMINISTRATORS, vhost=NEW, body=_VHOST,
    ),
    Endpoint(
        "vhosts/{vhost}", "DELETE", "Delete a vhost and everything in it.",
        "delete_vhost", of={"vhost": "name"}, vhost=ANY, status=204,
    ),
    Endpoint(
        "vhosts/{vhost}/start/{node}", "POST", "Restart a vhost, also one that is down.",
        change_pages.start_vhost, tags=ADMINISTRATORS, vhost=ANY,
    ),
    # definitions
    *(
        row
        for address, of in (("definitions", "the broker"), ("definitions/{vhost}", "a vhost"))
        for row in (
            Endpoint(
                address, "GET", f"Definitions of {of}.", change_pages.definitions,
                tags=ADMINISTRATORS, vhost=ANY,
                query={"download": "the file's name, for browsers"},
            ),
            Endpoint(
                address, "POST", f"Import definitions of {of}: all, or nothing.",
                change_pages.import_definitions, tags=ADMINISTRATORS, vhost=ANY, body=(),
                body_bytes_max=DEFINITIONS_BYTES_MAX, is_raw=True,
                query={"leave_out": _TRUE + "leave out what Penstock has not"},
            ),
        )
    ),
)  # fmt: skip

# What the dashboard changes, and RabbitMQ's API cannot, or says nothing about.
OUR_CHANGE_ROWS: Final = (
    Endpoint(
        "penstock/exchanges/{vhost}/{exchange}/route", "POST",
        "Which queues a message would go to; nothing is published.", "route", vhost=OPENED,
        body=(
            short_text("routing_key", "the routing key"),
            table("properties", "properties of AMQP, by their names"),
        ), is_ours=True,
    ),
    Endpoint(
        "penstock/permissions/{vhost}/{user}/test", "GET", "Whether a user may do something.",
        change_pages.test_permission, tags=ADMINISTRATORS, vhost=ANY, is_ours=True,
        query={
            "verb": "configure, write or read", "name": "the queue or exchange",
            "routing_key": "at a topic exchange",
            "resource": "queue or exchange, for a server of `[auth_http]`",
        },
    ),
    Endpoint(
        "penstock/users/{name}/tags", "PUT", "Set a user's tags, and leave the password.",
        "set_user_tags", body=(texts("tags", "they replace all"),), status=204, is_ours=True,
    ),
    Endpoint(
        "penstock/users/{name}/password", "PUT", "Change a user's password, and leave the tags.",
        "change_password", body=(text("password", "the new one"),), status=204, is_ours=True,
    ),
    *(
        Endpoint(
            address, "POST", f"Import definitions of {of}, and say what was new.",
            change_pages.import_definitions, tags=ADMINISTRATORS, vhost=ANY, body=(),
            body_bytes_max=DEFINITIONS_BYTES_MAX, is_raw=True, is_ours=True,
            query={
                "leave_out": _TRUE + "leave out what Penstock has not",
                "dry_run": _TRUE + "change nothing, and say what would be new",
            },
        )
        for address, of in (
            ("penstock/definitions", "the broker"), ("penstock/definitions/{vhost}", "a vhost")
        )
    ),
)  # fmt: skip

CLIENT_ROWS: Final = (
    *(
        Endpoint(path, "GET", line, rows=kind, query=_LIST)
        for path, line, kind in (
            ("connections", "Clients' connections.", "connections"),
            ("vhosts/{vhost}/connections", "Those to a vhost.", "connections"),
            ("connections/username/{user}", "Those of a user.", "connections"),
            ("connections/{connection}/channels", "The channels of one.", "channels"),
            ("channels", "Channels.", "channels"),
            ("vhosts/{vhost}/channels", "Those of a vhost.", "channels"),
            ("consumers", "Consumers of all vhosts.", "consumers"),
            ("consumers/{vhost}", "Those of a vhost.", "consumers"),
        )
    ),
    Endpoint(
        "connections/{connection}", "GET", "One connection.", describes="connections",
        query={**_ONE, **STATS_QUERY},
    ),
    Endpoint(
        "connections/{connection}", "DELETE", "Close it; the client gets the header X-Reason.",
        change_pages.close_connection, status=204,
    ),
    Endpoint(
        "penstock/connections/{connection}/channels/{number}", "DELETE",
        "Close a channel; the client gets the header X-Reason, and its unacknowledged messages "
        "go back.", change_pages.close_connection, status=204, is_ours=True,
    ),
    Endpoint(
        "connections/username/{user}", "DELETE", "Close those of a user.",
        change_pages.close_connection, status=204,
    ),
    Endpoint(
        "channels/{channel}", "GET", "One channel.", describes="channels",
        query={**_ONE, **STATS_QUERY},
    ),
    Endpoint(
        "penstock/connections/closed", "GET", "The last 100 that ended of each vhost, and why.",
        rows="closed_connections", query=_LIST, is_ours=True,
    ),
)  # fmt: skip

EXCHANGE_ROWS: Final = (
    *(
        Endpoint(path, "GET", line, rows=kind, of=of, query=_LIST)
        for path, line, kind, of in (
            ("exchanges", "Exchanges of all vhosts.", "exchanges", {}),
            ("exchanges/{vhost}", "Those of a vhost.", "exchanges", {}),
            ("bindings", "Bindings of all vhosts.", "bindings", {}),
            ("bindings/{vhost}", "Those of a vhost.", "bindings", {}),
            ("queues/{vhost}/{queue}/bindings", "Those to a queue.", "bindings", {}),
            (
                "exchanges/{vhost}/{exchange}/bindings/source", "Those from an exchange.",
                "bindings", {},
            ),
            (
                "exchanges/{vhost}/{exchange}/bindings/destination", "Those to an exchange.",
                "bindings", {"exchange": "destination"},
            ),
            (
                "bindings/{vhost}/e/{exchange}/q/{queue}", "Those from an exchange to a queue.",
                "bindings", {},
            ),
            (
                "bindings/{vhost}/e/{exchange}/e/{destination}", "Those between two exchanges.",
                "bindings", {},
            ),
        )
    ),
    Endpoint(
        "exchanges/{vhost}/{exchange}", "GET", "One exchange.", describes="exchanges",
        query={**_ONE, **STATS_QUERY},
    ),
    *(
        Endpoint(
            f"bindings/{{vhost}}/e/{{exchange}}/{to}/{{properties_key}}", "GET", "One binding.",
            describes="bindings", query=_ONE,
        )
        for to in ("q/{queue}", "e/{destination}")
    ),
)  # fmt: skip

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    *NODE_ROWS, *HEALTH_ROWS, *FIXED_ROWS, *OUR_ROWS, *VHOST_ROWS, *CLIENT_ROWS, *EXCHANGE_ROWS,
    *CHANGE_ROWS, *OUR_CHANGE_ROWS,
)  # fmt: skip
