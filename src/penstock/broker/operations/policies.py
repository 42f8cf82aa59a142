"""Operations on policies, which penstock.broker.policies explains, and on parameters.

Parameters are stored, and mean nothing here: those of RabbitMQ's shovels and federation. A change
of a policy is answered when it is as safe as the vhost's durability says, and all queues and
exchanges have it.
"""

import json
from typing import Final

from penstock.broker.operations.call import Call, Functions
from penstock.broker.policies import (
    EXCHANGE,
    OPERATOR_POLICY,
    POLICY,
    QUEUE,
    VALUE_BYTES_MAX,
    Counts,
)
from penstock.broker.refusals import not_found
from penstock.broker.vhost import VHost
from penstock.queues.queue_set import bytes_of, text_of
from penstock.storage.index import routing_table


def _set(component: str, call: Call) -> None:
    args, vhost = call.args, call.vhost
    name = args.text("name")
    value = {
        "pattern": args.text("pattern"), "definition": args.table("definition"),
        "priority": args.whole("priority"), "apply-to": args.text("apply_to"),
    }  # fmt: skip

    def done(counts: Counts) -> None:
        of_queues, of_exchanges = (counts[component, name, kind] for kind in (QUEUE, EXCHANGE))
        found = {"queues": of_queues, "exchanges": of_exchanges, "is_new": is_new}
        call.settled(lsn, found)

    is_new = all(policy.name != name for policy in vhost.policies.all(component))
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


PARAMETERS_MAX: Final = 1000  # of a vhost


def _set_parameter(call: Call) -> None:
    args, engine = call.args, call.vhost.engine
    key = args.text("component").encode(), bytes_of(args.text("name"))
    data = json.dumps(args.value("value"), sort_keys=True, separators=(",", ":")).encode()
    if len(data) > VALUE_BYTES_MAX:
        raise args.wrong("value", f"given {len(data)} bytes, expected at most {VALUE_BYTES_MAX}")
    known = _parameters(call.vhost)
    if key not in known and len(known) >= PARAMETERS_MAX:
        raise args.wrong("name", f"expected at most {PARAMETERS_MAX} parameters of a vhost")
    lsn = engine.apply_topology(routing_table.set_parameter(*key, data))
    call.settled(lsn, {"is_new": key not in known})


def _clear_parameter(call: Call) -> None:
    component, name = call.args.text("component"), call.args.text("name")
    key = component.encode(), bytes_of(name)
    if key not in _parameters(call.vhost):
        raise not_found(f"parameter {name!r} of {component}")
    call.settled(call.vhost.engine.apply_topology(routing_table.clear_parameter(*key)), {})


def parameter_rows(vhost: VHost) -> list[dict[str, object]]:
    """Return the parameters that are stored only, as `list_parameters` does."""
    return [
        {"component": component.decode(), "name": text_of(name), "value": json.loads(value)}
        for (component, name), value in sorted(_parameters(vhost).items())
    ]


def _parameters(vhost: VHost) -> dict[tuple[bytes, bytes], bytes]:
    policies = (POLICY.encode(), OPERATOR_POLICY.encode())
    known = vhost.engine.routing.parameters
    return {key: value for key, value in known.items() if key[0] not in policies}


FUNCTIONS: Final[Functions] = {
    "set_policy": lambda call: _set(POLICY, call),
    "clear_policy": lambda call: _clear(POLICY, call),
    "list_policies": lambda call: call.reply(_rows(POLICY, call.vhost)),
    "set_operator_policy": lambda call: _set(OPERATOR_POLICY, call),
    "clear_operator_policy": lambda call: _clear(OPERATOR_POLICY, call),
    "list_operator_policies": lambda call: call.reply(_rows(OPERATOR_POLICY, call.vhost)),
    "set_parameter": _set_parameter,
    "clear_parameter": _clear_parameter,
    "list_parameters": lambda call: call.reply(parameter_rows(call.vhost)),
}
