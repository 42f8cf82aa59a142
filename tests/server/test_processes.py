"""The tree of processes as it really runs: hand-over, kills, hangs, giving up, create and delete.

Everything here is a real process; what is waited for is always a condition.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands, frame

from penstock.server.control import ControlClient, ControlError, NoServerError
from penstock.storage.files.data_directory import hash_name
from tests.helpers.live_broker import FEW_RESTARTS, HASTY, LiveBroker, is_gone, wait_until
from tests.helpers.wire import HEARTBEAT, PROTOCOL_HEADER, Ended, Wire, open_channel

pytestmark = pytest.mark.real

BRIEF = {"PENSTOCK_HANDSHAKE_TIMEOUT": "2"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    """One that a test may stop and kill."""
    with LiveBroker(tmp_path / "data") as live:
        yield live


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    """One for all tests that leave it as they find it."""
    with LiveBroker(tmp_path_factory.mktemp("shared") / "data", environment=FEW_RESTARTS) as live:
        yield live


class Ending:
    """Ends a broker that was launched and not waited for."""

    def __init__(self, broker: LiveBroker) -> None:
        self.close = broker.kill


def control(broker: LiveBroker, op: str, vhost: str | None = None, **args: object) -> Any:
    with ControlClient(str(broker.data)) as client:
        return client.call(op, vhost, **args)


def vhosts(broker: LiveBroker) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in control(broker, "list_vhosts")}


def state_of(broker: LiveBroker, name: str) -> str:
    return str(vhosts(broker)[name]["state"])


def pid_of(broker: LiveBroker, name: str = "/") -> int:
    return int(vhosts(broker)[name]["pid"] or 0)


def add_vhost(broker: LiveBroker, name: str) -> None:
    control(broker, "add_vhost", name=name)
    control(broker, "set_permissions", name, user="guest", configure=".*", write=".*", read=".*")


def confirmed_publish(wire: Wire, queue: str, count: int) -> None:
    wire.ask(commands.Confirm.Select(), commands.Confirm.SelectOk)
    for n in range(count):
        wire.publish(1, queue, b"%d" % n, properties=b"\x10\x00\x02")
    done = 0
    while done < count:
        done = wire.expect(commands.Basic.Ack, 1).delivery_tag


def count_of(wire: Wire, queue: str) -> int:
    answer = wire.ask(commands.Queue.Declare(queue=queue, passive=True), commands.Queue.DeclareOk)
    return int(answer.message_count or 0)


def refused(broker: LiveBroker, vhost: str, user: str = "guest") -> tuple[int, str]:
    """What connection.open of that vhost is answered with."""
    with Wire(broker) as wire:
        wire.hello()
        wire.log_in(user, user)
        wire.agree()
        wire.send(commands.Connection.Open(virtual_host=vhost))
        return wire.closed()


def entered(broker: LiveBroker) -> Wire | None:
    """A channel to "/", of a client that tries once."""
    wire = Wire(broker)
    try:
        wire.open().channel()
    except (Ended, AssertionError):
        wire.sock.close()
        return None
    return wire


def reopened(broker: LiveBroker, pid: int) -> Wire:
    """A channel to "/" once its process is another."""
    wait_until(
        lambda: pid_of(broker) not in (0, pid) and state_of(broker, "/") == "running",
        "another process",
    )
    return open_channel(broker)


# --- the hand-over ---


def test_everything_sent_at_once_arrives(shared: LiveBroker) -> None:
    """Handshake, channel, declare and 300 publishes in one piece."""
    methods: list[tuple[int, Any]] = [
        (0, commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US")),
        (0, commands.Connection.TuneOk(2047, 131072, 0)),
        (0, commands.Connection.Open("/")),
        (1, commands.Channel.Open()),
        (1, commands.Confirm.Select()),
        (1, commands.Queue.Declare(queue="q", durable=True)),
    ]
    data = PROTOCOL_HEADER + b"".join(frame.marshal(method, at) for at, method in methods)
    one = frame.marshal(commands.Basic.Publish(routing_key="q"), 1)
    for n in range(300):
        body = b"%050d" % n
        header = (
            b"\x02\0\x01\0\0\0\x0f\0\x3c\0\0" + len(body).to_bytes(8, "big") + b"\x10\0\x02\xce"
        )
        data += one + header + b"\x03\0\x01" + len(body).to_bytes(4, "big") + body + b"\xce"
    with Wire(shared) as wire:
        wire.send_raw(data)
        wire.expect(commands.Connection.Start)
        wire.expect(commands.Connection.Tune)
        wire.expect(commands.Connection.OpenOk)
        wire.expect(commands.Channel.OpenOk, 1)
        wire.expect(commands.Confirm.SelectOk, 1)
        wire.expect(commands.Queue.DeclareOk, 1)
        while wire.expect(commands.Basic.Ack, 1).delivery_tag < 300:
            pass
        assert count_of(wire, "q") == 300


def test_each_vhost_is_a_process_and_the_supervisor_holds_no_client(shared: LiveBroker) -> None:
    add_vhost(shared, "second")
    assert state_of(shared, "second") == "stopped"
    with Wire(shared).open("/"), Wire(shared).open("second"):
        assert pid_of(shared, "/") != pid_of(shared, "second")
        found = control(shared, "list_connections")
        assert {row["vhost"] for row in found} >= {"/", "second"}

    def held() -> int:
        return len(list(Path(f"/proc/{shared.pid}/fd").iterdir()))

    before = held()
    wires = [Wire(shared).open("second") for _ in range(20)]
    wait_until(lambda: held() < before + 20, "the supervisor to let go")
    for wire in wires:
        wire.channel()
        wire.sock.close()


def test_who_may_not_is_told(shared: LiveBroker) -> None:
    assert refused(shared, "none") == (530, "NOT_ALLOWED - vhost none not found")
    control(shared, "add_user", name="ann", password="ann")
    text = "NOT_ALLOWED - access to vhost '/' refused for user 'ann'"
    assert refused(shared, "/", "ann") == (530, text)


def test_permissions_hold_at_once_for_open_connections(shared: LiveBroker) -> None:
    control(shared, "add_user", name="bob", password="bob")
    control(shared, "set_permissions", "/", user="bob", configure="^a", write="", read="")
    with Wire(shared) as wire:
        wire.open(user="bob")
        wire.channel()
        wire.declare("a1")
        control(shared, "set_permissions", "/", user="bob", configure="^b", write="", read="")
        control(shared, "list_connections")  # the vhost has answered: it has heard what came before
        wire.send(commands.Queue.Declare(queue="a2", exclusive=True), 1)
        assert wire.channel_closed()[0] == 403
        wire.channel()
        wire.declare("b1")
        control(shared, "delete_user", name="bob")
        assert wire.closed() == (320, "CONNECTION_FORCED - user 'bob' was deleted")


def test_limits_hold_for_open_connections_once_they_are_set(shared: LiveBroker) -> None:
    add_vhost(shared, "limited")
    with Wire(shared) as wire:
        wire.open("limited")
        assert vhosts(shared)["limited"]["rss_bytes"] > 0, "it is known as soon as it runs"
        for _ in range(10):
            control(shared, "set_vhost_limits", "limited", limits={"max-queues": 0})
            wire.channel()
            wire.send(commands.Queue.Declare(queue="q", exclusive=True), 1)
            assert wire.channel_closed()[0] == 406
            control(shared, "clear_vhost_limits", "limited", limit="max-queues")
            wire.channel()
            wire.declare("q")
            wire.ask(commands.Queue.Delete(queue="q"), commands.Queue.DeleteOk)
            wire.ask(commands.Channel.Close(reply_code=200, class_id=0, method_id=0),
                     commands.Channel.CloseOk)  # fmt: skip
    control(shared, "delete_vhost", name="limited")


# --- failures ---


def test_a_killed_vhost_is_back_with_what_was_confirmed(shared: LiveBroker) -> None:
    add_vhost(shared, "other")
    with open_channel(shared) as wire, Wire(shared).open("other") as bystander:
        bystander.channel()
        bystander.declare("b")
        wire.declare("k", durable=True, exclusive=False)
        confirmed_publish(wire, "k", 50)
        pid, other = pid_of(shared), pid_of(shared, "other")
        os.kill(pid, signal.SIGKILL)
        wire.ended()
        with reopened(shared, pid) as again:
            assert count_of(again, "k") == 50
        assert vhosts(shared)["/"]["restarts"] >= 1
        assert count_of(bystander, "b") == 0
        assert pid_of(shared, "other") == other


def test_a_hung_vhost_is_replaced(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data", environment=HASTY) as broker:

        def pid_that_serves() -> int:
            found = vhosts(broker)["/"]
            return int(found["pid"]) if found["state"] == "running" else 0

        with wait_until(lambda: entered(broker), "a client to get in") as wire:
            pid = wait_until(pid_that_serves, "a process")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
            wire.ended()
        wait_until(lambda: is_gone(pid), "the end of the hung process")
        with wait_until(lambda: entered(broker), "a client to get in again"):
            pass
        assert "did not answer for" in broker.log_text()


def test_one_that_fails_too_often_stays_down_alone(shared: LiveBroker) -> None:
    add_vhost(shared, "third")
    with Wire(shared).open("third"):
        pass
    for _ in range(3):
        pid = wait_until(lambda: pid_of(shared, "third"), "a process")
        wait_until(lambda: state_of(shared, "third") == "running", "it to run")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: pid_of(shared, "third") != pid, "its end")  # type: ignore[misc]
    wait_until(lambda: state_of(shared, "third") == "down", "it to be down")
    code, text = refused(shared, "third")
    assert code == 541
    assert text.startswith(
        "INTERNAL_ERROR - vhost 'third' is down: its process was killed (SIGKILL)"
    )
    with open_channel(shared):
        pass
    control(shared, "restart_vhost", name="third")
    with Wire(shared).open("third"):
        pass


def test_a_damaged_vhost_stays_down_and_says_where(broker: LiveBroker) -> None:
    add_vhost(broker, "other")
    with Wire(broker).open("other") as wire:
        wire.channel()
        wire.declare("q", durable=True, exclusive=False)
    broker.stop()
    directory = broker.data / "vhosts" / hash_name(b"other")
    (checkpoint,) = directory.glob("checkpoint-*")
    data = bytearray(checkpoint.read_bytes())
    data[len(data) // 2] ^= 0xFF
    checkpoint.write_bytes(data)
    broker.start()
    code, text = refused(broker, "other")
    assert code == 541
    assert checkpoint.name in text
    row = vhosts(broker)["other"]
    assert "at byte" in row["error"]
    assert row["why"].startswith(f"failed: {row['error']}; the log has more, in lines of ")
    assert row["since"].startswith("2")
    assert vhosts(broker)["other"]["restarts"] == 0
    with open_channel(broker):
        pass


def test_the_strategy_may_be_that_nothing_serves(tmp_path: Path) -> None:
    environment = {
        "PENSTOCK_VHOST_RESTARTS_MAX": "0",
        "PENSTOCK_VHOST_RESTART_STRATEGY": "stop_node",
    }
    with LiveBroker(tmp_path / "data", environment=environment) as broker:
        os.kill(pid_of(broker), signal.SIGKILL)
        assert broker.process is not None
        assert broker.process.wait(120) == 74
        assert "vhost '/' is down" in broker.log_text()


def below(broker: LiveBroker) -> dict[str, int]:
    """The processes below the supervisor, as `ps` calls them."""
    titles = {}
    for pid in broker.pids()[1:]:
        with contextlib.suppress(OSError):
            titles[Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]] = pid
    return titles


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no template")
def test_processes_are_copies_of_a_template_which_they_do_not_need(broker: LiveBroker) -> None:
    before = below(broker)
    assert set(before) == {"penstock template", "penstock vhost"}
    os.kill(before["penstock template"], signal.SIGKILL)
    os.kill(before["penstock vhost"], signal.SIGKILL)
    wait_until(lambda: pid_of(broker) not in (0, before["penstock vhost"]), "the next one")
    with open_channel(broker) as wire:
        wire.declare("q", durable=True, exclusive=False)
    assert set(below(broker)) == {"penstock vhost"}


def test_vhosts_end_with_their_supervisor(broker: LiveBroker) -> None:
    with open_channel(broker) as wire:
        wire.declare("q", durable=True, exclusive=False)
        confirmed_publish(wire, "q", 5)
        vhost = pid_of(broker)
        os.kill(broker.pid, signal.SIGKILL)
        assert wire.closed()[0] == 320
        wait_until(lambda: is_gone(vhost), "the end of the vhost")
    broker.kill()
    broker.start()
    with open_channel(broker) as wire:
        assert count_of(wire, "q") == 5


def test_a_vhost_that_lost_its_supervisor_is_waited_for(tmp_path: Path) -> None:
    second = LiveBroker(tmp_path / "data")

    def serves() -> bool:
        try:
            return state_of(second, "/") == "running"
        except NoServerError:  # its control socket is not there yet
            return False

    with LiveBroker(tmp_path / "data") as broker, contextlib.closing(Ending(second)):
        orphan = pid_of(broker)
        os.kill(orphan, signal.SIGSTOP)
        os.kill(broker.pid, signal.SIGKILL)
        assert broker.process is not None
        broker.process.wait()
        second.launch()
        try:
            wait_until(lambda: "waits: " in second.log_text(), "the second to wait")
        finally:
            os.kill(orphan, signal.SIGCONT)
        wait_until(serves, "the second to serve")
        wait_until(lambda: is_gone(orphan), "the end of the orphan")


# --- vhosts come and go ---


def test_a_deleted_vhost_is_gone_with_its_clients(shared: LiveBroker) -> None:
    add_vhost(shared, "v")
    directory = shared.data / "vhosts" / hash_name(b"v")
    with Wire(shared).open("v") as wire:
        wire.channel()
        wire.declare("q", durable=True, exclusive=False)
        confirmed_publish(wire, "q", 5)
        pid = pid_of(shared, "v")
        control(shared, "delete_vhost", name="v")
        wire.ended()
    assert is_gone(pid)
    assert not directory.exists()
    assert refused(shared, "v")[0] == 530
    with pytest.raises(ControlError, match="no vhost 'v'"):
        control(shared, "delete_vhost", name="v")
    add_vhost(shared, "v")
    with Wire(shared).open("v") as wire:
        wire.channel()
        wire.send(commands.Queue.Declare(queue="q", passive=True), 1)
        assert wire.channel_closed()[0] == 404


def test_vhosts_and_users_outlive_a_kill(broker: LiveBroker) -> None:
    add_vhost(broker, "v")
    control(broker, "add_user", name="ann", password="ann", tags=["management"])
    broker.kill()
    broker.start()
    assert set(vhosts(broker)) == {"/", "v"}
    assert {"name": "ann", "tags": ["management"]} in control(broker, "list_users")
    with Wire(broker).open("v"):
        pass


def test_a_vhost_that_an_operator_stopped_stays_stopped(broker: LiveBroker) -> None:
    add_vhost(broker, "third")
    with Wire(broker).open("third") as wire:
        wire.channel()
        wire.declare("q", durable=True, exclusive=False)
        confirmed_publish(wire, "q", 3)
        control(broker, "stop_vhost", name="third")
        assert wire.closed()[0] == 320
    row = vhosts(broker)["third"]
    assert (row["state"], row["why"], row["pid"]) == ("stopped", "stopped by an operator", None)
    told = "INTERNAL_ERROR - vhost 'third' is down: an operator has stopped it"
    assert refused(broker, "third") == (541, told)
    with pytest.raises(ControlError) as error:
        control(broker, "list_queues", "third")
    assert (error.value.code, error.value.text) == (541, told)
    with open_channel(broker):
        pass
    found = control(broker, "status")
    assert found["is_healthy"] is True
    control(broker, "await_startup")

    broker.restart()
    assert vhosts(broker)["third"] == {**row, "memory_bytes": 0}
    assert refused(broker, "third") == (541, told)
    assert "vhost 'third' stays stopped: an operator has stopped it at " in broker.log_text()
    control(broker, "start_vhost", name="third")
    assert state_of(broker, "third") == "running"
    with Wire(broker).open("third") as wire:
        wire.channel()
        assert count_of(wire, "q") == 3
    broker.restart()
    with Wire(broker).open("third"):
        pass


def test_the_default_vhost_can_be_stopped_too(broker: LiveBroker) -> None:
    with open_channel(broker) as wire:
        control(broker, "stop_vhost", name="/")
        assert wire.closed()[0] == 320
    broker.restart()
    assert " is ready: " in broker.ready_line
    assert refused(broker, "/")[0] == 541
    control(broker, "start_vhost", name="/")
    with open_channel(broker):
        pass


def test_starting_and_stopping_what_there_is_not_or_what_is_so_already(shared: LiveBroker) -> None:
    def error(op: str, name: str) -> tuple[int, str]:
        with pytest.raises(ControlError) as found:
            control(shared, op, name=name)
        return found.value.code, found.value.text

    for op in ("stop_vhost", "start_vhost"):
        assert error(op, "nothing") == (404, "NOT_FOUND - no vhost 'nothing'")
    assert error("start_vhost", "/") == (406, "PRECONDITION_FAILED - vhost '/' runs already")
    add_vhost(shared, "fourth")
    control(shared, "stop_vhost", name="fourth")  # nobody has opened it
    code, text = error("stop_vhost", "fourth")
    assert code == 406
    assert text.startswith("PRECONDITION_FAILED - vhost 'fourth' is stopped already, since 2")
    code, text = error("restart_vhost", "fourth")
    assert code == 406
    assert text.startswith("PRECONDITION_FAILED - vhost 'fourth' was stopped by an operator")
    control(shared, "start_vhost", name="fourth")
    assert state_of(shared, "fourth") == "running"
    control(shared, "stop_vhost", name="fourth")
    control(shared, "delete_vhost", name="fourth")
    add_vhost(shared, "fourth")
    with Wire(shared).open("fourth"):
        pass
    control(shared, "delete_vhost", name="fourth")


def test_the_memory_is_shared_by_all_that_run(tmp_path: Path) -> None:
    whole = 64 << 20
    with LiveBroker(tmp_path / "data", "--memory", "64MiB") as broker:
        add_vhost(broker, "v")
        with Wire(broker).open("v"), open_channel(broker) as wire:
            assert sum(row["memory_bytes"] for row in vhosts(broker).values()) <= whole
            wire.declare("q", durable=True, exclusive=False)
            confirmed_publish(wire, "q", 100)

            def parts() -> bool:
                rows = vhosts(broker)
                return bool(rows["/"]["memory_bytes"] > 2 * rows["v"]["memory_bytes"])

            wait_until(parts, "the vhost that holds something to get more")
            assert sum(row["memory_bytes"] for row in vhosts(broker).values()) <= whole


# --- clients that are no good ---


def test_a_thousand_half_handshakes(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data", environment=BRIEF) as broker, contextlib.ExitStack() as ends:
        socks = [
            ends.enter_context(socket.create_connection((broker.host, broker.port)))
            for _ in range(1000)
        ]
        for sock in socks[::2]:
            sock.sendall(PROTOCOL_HEADER)
        with wait_until(lambda: entered(broker), "another to get in") as wire:
            wire.declare()
        for sock in socks:
            sock.settimeout(120)
            try:
                while sock.recv(4096):
                    pass
            except ConnectionResetError:
                pass
        assert wait_until(lambda: control(broker, "status")["half_open"] == 0)


def test_a_client_that_is_silent_is_closed_and_one_that_beats_is_not(shared: LiveBroker) -> None:
    with Wire(shared) as silent, Wire(shared) as beating:
        silent.open(heartbeat_s=1)
        beating.open(heartbeat_s=60)
        beating.send_raw(HEARTBEAT)
        silent.ended()
        beating.send_raw(HEARTBEAT)
        beating.channel()


# --- ends ---


def test_a_stop_tells_the_clients_and_leaves_a_clean_store(broker: LiveBroker) -> None:
    with open_channel(broker) as wire:
        wire.declare("q", durable=True, exclusive=False)
        confirmed_publish(wire, "q", 5)
        control(broker, "stop")
        assert wire.closed()[0] == 320
    assert broker.process is not None
    assert broker.process.wait(120) == 0
    assert not (broker.data / "control.sock").exists()
    broker.kill()
    broker.start()
    with open_channel(broker) as wire:
        assert count_of(wire, "q") == 5


def test_sigterm_is_an_orderly_stop(broker: LiveBroker) -> None:
    with open_channel(broker) as wire:
        pids = broker.pids()
        os.kill(broker.pid, signal.SIGTERM)
        assert wire.closed()[0] == 320
        for pid in pids:
            wait_until(lambda pid=pid: is_gone(pid), "the end")  # type: ignore[misc]
    assert broker.process is not None
    assert broker.process.wait(120) == 0


def test_the_directory_and_the_port_belong_to_one(broker: LiveBroker, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "serve", "--http-port", "off", "--data"]
    same_data = [*command, str(broker.data), "--port", "0"]
    same_port = [*command, str(tmp_path / "other"), "--port", str(broker.port)]
    for arguments, code in ((same_data, 75), (same_port, 69)):
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert done.returncode == code, done.stderr
    with open_channel(broker):
        pass


def test_the_control_socket_is_its_owners(shared: LiveBroker) -> None:
    path = shared.data / "control.sock"
    assert path.stat().st_mode & 0o777 == 0o600
    status = control(shared, "status")
    assert status["port"] == shared.port
    assert json.dumps(status)
    with pytest.raises(ControlError, match="unknown argument 'nmae', did you mean 'name'") as wrong:
        control(shared, "add_vhost", nmae="v")
    assert wrong.value.code == 406
