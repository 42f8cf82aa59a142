"""Arguments of rabbitmqadmin: `penstock declare queue name=q durable=false` as our own arguments.

They are understood if a command is one of KEYS and all its arguments are key=value with its keys;
so a name or a body that contains "=" stays what it is.
"""

import json
from collections.abc import Mapping
from typing import Final

import click

# By command and key: the option that has the value, or the place of the argument. An option with
# "!" before it means the contrary; -a may be repeated for the members of an object.
KEYS: Final[Mapping[str, Mapping[str, int | str]]] = {
    "add_user": {"name": 0, "password": 1, "tags": "--tag"},
    "add_vhost": {"name": 0},
    "clear_permissions": {"user": 0},
    "clear_policy": {"name": 0},
    "declare_binding": {
        "source": 0, "destination": 1, "routing_key": 2, "destination_type": "--to",
        "arguments": "-a",
    },
    "declare_exchange": {
        "name": 0, "type": "--type", "durable": "!--transient", "auto_delete": "--auto-delete",
        "internal": "--internal", "arguments": "-a",
    },
    "declare_queue": {
        "name": 0, "queue_type": "--type", "type": "--type", "durable": "!--transient",
        "auto_delete": "--auto-delete", "arguments": "-a",
    },
    "delete_exchange": {"name": 0},
    "delete_queue": {"name": 0},
    "delete_user": {"name": 0},
    "delete_vhost": {"name": 0},
    "get": {"queue": 0, "count": "-n", "requeue": "--requeue"},
    "publish": {"routing_key": 0, "payload": 1, "exchange": "-e", "properties": "-P"},
    "purge_queue": {"name": 0},
    "set_permissions": {"user": 0, "configure": 1, "write": 2, "read": 3},
    "set_policy": {
        "name": 0, "pattern": 1, "definition": 2, "priority": "--priority",
        "apply_to": "--apply-to",
    },
}  # fmt: skip
# Values of `ackmode` of `get`, which is older than `requeue`.
REQUEUES: Final = ("ack_requeue_true", "reject_requeue_true")


def without_keys(command: str, args: list[str]) -> list[str]:
    """Return the arguments of a command as our own. Raises click.UsageError if one is missing."""
    given: dict[str, str] = {}
    options: list[str] = []
    for word in args:
        key, equals, value = word.partition("=")
        key = key.replace("-", "_")
        if word.startswith("-") or (options and options[-1] in ("-p", "--vhost", "--data")):
            options.append(word)
        elif equals and (key in (*KEYS.get(command, ()), "vhost") or key == "ackmode"):
            given[key] = value
        else:
            return args
    if command not in KEYS or not given:
        return args
    if given.get("exchange") == "amq.default":
        given["exchange"] = ""
    if command == "get":  # rabbitmqadmin puts messages back unless it is told otherwise
        given["requeue"] = str(given.pop("ackmode", REQUEUES[0]) in REQUEUES)
    keys = {**KEYS[command], "vhost": "-p"}
    places: dict[int, str] = {}
    for key, value in given.items():
        place = keys[key]
        if isinstance(place, int):
            places[place] = value
        else:
            options += _option(place, key, value)
    for key, place in keys.items():
        if isinstance(place, int) and place < max(places, default=0) and place not in places:
            raise click.UsageError(f"{command}: {key}=... is missing")
    return [*options, "--", *(places[place] for place in sorted(places))]


def _option(option: str, key: str, value: str) -> list[str]:
    """Return an option with its value; a flag if it is on."""
    if value.lower() in ("true", "false"):
        is_on = (value.lower() == "true") != option.startswith("!")
        return [option.lstrip("!")] if is_on else []
    if not value.startswith("{"):
        return [option, value]
    try:
        found = json.loads(value)
    except ValueError as error:
        raise click.UsageError(f"{key}: given {value!r}, expected a JSON object") from error
    return [
        word
        for name, one in found.items()
        for word in (option, f"{name}={one if isinstance(one, str) else json.dumps(one)}")
    ]
