"""Policies on the command line: rabbitmqctl's words."""

import pytest

from tests.helpers.fake_control import FakeControl


def test_a_policy_is_set(capsys: pytest.CaptureFixture[str]) -> None:
    counts = {"queues": 2, "exchanges": 0}
    broker = FakeControl(set_policy=counts, set_operator_policy=counts)
    words = ["short", "^a", '{"max-length": 5}']
    more = ["--priority", "-3", "--apply-to", "classic_queues", "-p", "/x"]
    assert broker.run("set_policy", *words, *more) == 0
    assert broker.run("set_operator_policy", *words) == 0
    given = {"name": "short", "pattern": "^a", "definition": {"max-length": 5}}
    assert broker.asked == [
        ("set_policy", "/x", {**given, "priority": -3, "apply_to": "classic_queues"}),
        ("set_operator_policy", "/", {**given, "priority": 0, "apply_to": "all"}),
    ]
    assert capsys.readouterr().out.splitlines() == [
        "policy 'short' set: it applies to 2 queues and 0 exchanges",
        "operator policy 'short' set: it applies to 2 queues and 0 exchanges",
    ]


def test_a_policy_is_cleared() -> None:
    broker = FakeControl()
    assert broker.run("clear_policy", "short", "-p", "/x") == 0
    assert broker.run("clear_operator_policy", "short") == 0
    assert broker.asked == [
        ("clear_policy", "/x", {"name": "short"}),
        ("clear_operator_policy", "/", {"name": "short"}),
    ]


def test_policies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "vhost": "/", "name": "p", "pattern": "^a", "apply-to": "all",
        "definition": {"max-length": 5}, "priority": 1,
    }  # fmt: skip
    broker = FakeControl(list_policies=[row], list_operator_policies=[row])
    assert broker.run("list_policies") == 0
    assert broker.run("list_operator_policies", "name", "apply-to") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-1].split("\t") == ["p", "all"]
    assert "{'max-length': 5}" in "".join(out) or '{"max-length": 5}' in "".join(out)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["p", "^a"], "Missing argument 'JSON'"),
        (["p", "^a", "max-length=5"], 'expected JSON, an object such as {"max-length"'),
        (["p", "^a", "{}", "--priority", "high"], "'high' is not a valid integer"),
    ],
)
def test_what_is_not_right_is_64(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = FakeControl()
    assert broker.run("set_policy", *words) == 64
    assert told in capsys.readouterr().err
    assert not broker.asked


def test_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(
        list_parameters=[{"component": "shovel", "name": "a", "value": {"b": 1}}],
        list_global_parameters=[{"name": "cluster_name", "value": "lab"}],
    )
    assert broker.run("set_parameter", "shovel", "a", '{"b": 1}', "-p", "/x") == 0
    assert broker.run("clear_parameter", "shovel", "a") == 0
    assert broker.run("set_global_parameter", "cluster_name", '"lab"') == 0
    assert broker.run("clear_global_parameter", "cluster_name") == 0
    assert broker.asked == [
        ("set_parameter", "/x", {"component": "shovel", "name": "a", "value": {"b": 1}}),
        ("clear_parameter", "/", {"component": "shovel", "name": "a"}),
        ("set_global_parameter", None, {"name": "cluster_name", "value": "lab"}),
        ("clear_global_parameter", None, {"name": "cluster_name"}),
    ]
    assert broker.run("list_parameters") == broker.run("list_global_parameters") == 0
    assert capsys.readouterr().out.splitlines()[-1].split("\t") == ["cluster_name", "lab"]
    assert broker.run("set_global_parameter", "cluster_name", "lab") == 64
    assert "given 'lab', expected JSON" in capsys.readouterr().err


def test_what_is_said_of_a_vhost() -> None:
    broker = FakeControl()
    words = ["--description", "d", "--tags", "a,b", "--default-queue-type", "quorum"]
    assert broker.run("add_vhost", "v", *words) == 0
    assert broker.run("update_vhost_metadata", "v", "--tags", "") == 0
    assert broker.asked == [
        (
            "add_vhost", None,
            {"name": "v", "description": "d", "tags": "a,b", "default_queue_type": "quorum"},
        ),
        ("update_vhost_metadata", None, {"name": "v", "tags": ""}),
    ]  # fmt: skip
