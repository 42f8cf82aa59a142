"""Operations on policies, which penstock.broker.policies explains.

A change is answered when it is as safe as the vhost's durability says, and all queues and exchanges
have it.
"""

from typing import Final

from penstock.broker.operations.call import Call, Functions
from penstock.broker.policies import EXCHANGE, OPERATOR_POLICY, POLICY, QUEUE, Counts
from penstock.broker.vhost import VHost


def _set(component: str, call: Call) -> None:
    args, vhost = call.args, call.vhost
    name = args.text("name")
    value = {
        "pattern": args.text("pattern"), "definition": args.table("definition"),
        "priority": args.whole("priority"), "apply-to": args.text("apply_to"),
    }  # fmt: skip

    def done(counts: Counts) -> None:
        found = {"queues": counts[component, name, QUEUE]}
        found["exchanges"] = counts[component, name, EXCHANGE]
        call.settled(lsn, found)

    lsn = vhost.set_policy(component, name, value, done)


def _clear(component: str, call: Call) -> None:
    def done(_counts: Counts) -> None:
        call.settled(lsn, {})

    lsn = call.vhost.clear_policy(component, call.args.text("name"), done)


def _rows(component: str, vhost: VHost) -> list[dict[str, object]]:
    """Return the rows of all policies, or all operator policies, by name."""
    return [
        {"vhost": vhost.name, "name": policy.name, **policy.value()}
        for policy in vhost.policies.all(component)
    ]


def _set_policy(call: Call) -> None:
    _set(POLICY, call)


def _clear_policy(call: Call) -> None:
    _clear(POLICY, call)


def _list_policies(call: Call) -> None:
    call.reply(_rows(POLICY, call.vhost))


def _set_operator_policy(call: Call) -> None:
    _set(OPERATOR_POLICY, call)


def _clear_operator_policy(call: Call) -> None:
    _clear(OPERATOR_POLICY, call)


def _list_operator_policies(call: Call) -> None:
    call.reply(_rows(OPERATOR_POLICY, call.vhost))


FUNCTIONS: Final[Functions] = {
    "set_policy": _set_policy,
    "clear_policy": _clear_policy,
    "list_policies": _list_policies,
    "set_operator_policy": _set_operator_policy,
    "clear_operator_policy": _clear_operator_policy,
    "list_operator_policies": _list_operator_policies,
}
