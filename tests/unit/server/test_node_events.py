"""Events that are made of entries of the audit, as a RabbitMQ sends them."""

from typing import Any

import pytest

from penstock.operation_table import AUDITED
from penstock.server.node_events import _MAKERS, events_of

BY = {"user_who_performed_action": "ada"}
POLICY = {"pattern": "^x", "definition": {"max-length": 5}, "priority": 3, "apply-to": "queues"}


@pytest.mark.parametrize(
    ("op", "args", "events"),
    [
        ("add_user", {"name": "ann"}, [("user.created", {"name": "ann"})]),
        ("add_user", {"name": "ann", "tags": ["x"]}, [
            ("user.created", {"name": "ann"}), ("user.tags.set", {"name": "ann", "tags": ["x"]}),
        ]),
        ("delete_users", {"names": ["a", "b"]}, [
            ("user.deleted", {"name": "a"}), ("user.deleted", {"name": "b"}),
        ]),
        ("change_password", {"name": "ann"}, [("user.password.changed", {"name": "ann"})]),
        ("set_permissions", {"user": "ann", "read": ".*"}, [("permission.created", {
            "user": "ann", "vhost": "/", "configure": "", "write": "", "read": ".*",
        })]),
        ("clear_permissions", {"user": "ann"}, [
            ("permission.deleted", {"user": "ann", "vhost": "/"}),
        ]),
        ("set_user_limits", {"user": "ann", "limits": {"max-channels": 5}}, [
            ("user.limits.set", {"username": "ann", "name": "limits", "max-channels": 5}),
        ]),
        ("set_vhost_limits", {"limits": {"max-queues": 5}}, [
            ("parameter.set", {
                "component": "vhost-limits", "name": "limits", "vhost": "/",
                "value": {"max-queues": 5},
            }),
            ("vhost.limits.set", {"name": "limits", "max-queues": 5, "vhost": "/"}),
        ]),
        ("set_policy", {"name": "p", "pattern": "^x", "definition": {"max-length": 5},
                        "priority": 3, "apply_to": "queues"},
         [("policy.set", {"name": "p", "vhost": "/", **POLICY})]),
        ("clear_operator_policy", {"name": "p"}, [
            ("parameter.cleared", {"name": "p", "vhost": "/", "component": "operator_policy"}),
            ("operator.policy.cleared", {"name": "p", "vhost": "/"}),
        ]),
        ("set_global_parameter", {"name": "g", "value": 1}, [
            ("parameter.set", {"name": "g", "component": "global", "value": 1}),
        ]),
        ("delete_vhost", {"name": "v"}, [("vhost.deleted", {"name": "v"})]),
        ("stop", {}, []),
    ],
)  # fmt: skip
def test_an_entry_and_its_events(
    op: str, args: dict[str, Any], events: list[tuple[str, dict[str, Any]]]
) -> None:
    entry = {"event": op, "user": "ada", "from": "10.0.0.7:5", "vhost": "/", "args": args}
    assert events_of(entry) == [(name, {**headers, **BY}) for name, headers in events]


def test_a_login_that_failed() -> None:
    entry = {"event": "login_failed", "user": "eve", "from": "10.0.0.7", "why": "invalid"}
    ((name, headers),) = events_of(entry)
    assert name == "user.authentication.failure"
    assert headers == {
        "name": "eve", "peer_host": "10.0.0.7", "error": "invalid", "connection_type": "network",
    }  # fmt: skip


def test_only_what_is_audited_has_events() -> None:
    assert set(_MAKERS) <= AUDITED
