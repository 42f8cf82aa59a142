"""`penstock completion`: scripts of shells, and what they complete; and names that were meant."""

import subprocess
import sys

import pytest
from click.shell_completion import ShellComplete

from penstock.cli.main import CommandRefusedError, cli, main
from penstock.errors import PenstockError
from tests.helpers.fake_control import FakeControl


def completed(broker: FakeControl, *words: str) -> list[str]:
    """What the shell is told for these words, the last of which is not complete."""
    made = ShellComplete(cli, {"obj": broker}, "penstock", "_PENSTOCK_COMPLETE")
    return [item.value for item in made.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert f"_PENSTOCK_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_names_are_completed_from_the_broker() -> None:
    broker = FakeControl(
        names=lambda prefix, **_: [f"{prefix}ers"], list_vhosts=[{"name": "/"}, {"name": "/x"}],
        list_users=[{"name": "ann"}, {"name": "bob"}],
    )  # fmt: skip
    assert completed(broker, "purge_queue", "ord") == ["orders"]
    assert completed(broker, "purge", "queue", "-p", "/x", "ord") == ["orders"]
    assert broker.asked[-1] == (
        "names", "/x", {"kind": "queues", "prefix": "ord", "limit": 1000}
    )  # fmt: skip
    assert completed(broker, "delete_exchange", "l") == ["lers"]
    assert completed(broker, "delete_vhost", "/x") == ["/x"]
    assert completed(broker, "list_queues", "-p", "/") == ["/", "/x"]
    assert completed(broker, "delete_user", "") == ["ann", "bob"]
    assert completed(broker, "add_user", "a") == []
    assert completed(broker, "declare_queue", "a") == []


def test_commands_options_and_columns_are_completed() -> None:
    broker = FakeControl()
    assert completed(broker, "list_top") == ["list_topic_permissions"]
    assert completed(broker, "list-q") == ["list_queues"]
    assert completed(broker, "list_queues", "messages_u") == [
        "messages_unacknowledged", "messages_unacknowledged_ram",
    ]  # fmt: skip
    assert "--sort" in completed(broker, "list_queues", "--s")
    assert completed(broker, "--u") == ["--url"]
    assert completed(broker, "--url", "http://there", "list_q") == ["list_queues"]
    assert completed(broker, "list_queues", "--u") == ["--url"]
    assert not broker.asked


def test_a_broker_that_is_away_completes_nothing() -> None:
    class Away(PenstockError):
        pass

    assert completed(FakeControl(names=Away("no"), list_users=OSError()), "get", "a") == []


def test_the_shell_s_protocol_works_as_a_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c",
         "import sys; from penstock.cli.main import main; sys.argv[0]='penstock'; main()"],
        env={"_PENSTOCK_COMPLETE": "bash_complete", "COMP_WORDS": "penstock list_lea",
             "COMP_CWORD": "1", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "plain,list_leases\n", done.stderr


@pytest.mark.parametrize(
    ("text", "names", "told"),
    [
        ("no queue 'ordrs' in vhost '/x'", ["orders", "other"], "did you mean 'orders'?"),
        ("no user 'an'", [], "did you mean 'ann'?"),
        (
            "no queue 'zzz' in vhost '/'",
            ["orders"],
            "see: penstock list_queues",
        ),
        (
            "no queue 'zzz' in vhost 'my shop'",
            [],
            "see: penstock list_queues -p 'my shop'",
        ),
        ("queue 'zzz' in vhost '/' in use", ["orders"], ""),
    ],
)
def test_the_name_that_was_meant(
    text: str, names: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = CommandRefusedError(404, f"NOT_FOUND - {text}")
    broker = FakeControl(
        purge_queue=refused, delete_user=refused, names=names, list_users=[{"name": "ann"}]
    )
    words = ["purge_queue", "q", "--yes"] if "queue" in text else ["delete_user", "q"]
    assert broker.run(*words) == (66 if "queue" in text else 67)
    end = f"; {told}" if told else ""
    assert capsys.readouterr().err == f"penstock: NOT_FOUND - {text}{end}\n"
