import pytest

from penstock.broker.in_flight import (
    HANDLING,
    MESSAGES,
    NOTHING,
    SHARED,
    SIZE,
    TURN,
    InFlight,
    parsed,
    signature,
)
from penstock.broker.publish import SHARED_PLACES
from penstock.clock import ManualClock
from penstock.codec.spec import (
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    QueueDeclare,
    QueueDelete,
    QueueDeleteOk,
)
from penstock.errors import ChannelError
from tests.helpers.broker_rig import BrokerRig

ANN = signature("ann", MESSAGES)
BOB = signature("bob", MESSAGES)


class Watched:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = bytearray(SIZE)
        self.it = InFlight(self.clock.monotonic, self.memory)

    def state(self) -> tuple[int, str, str]:
        state, _, user, operation = parsed(bytes(self.memory))
        return state, user, operation


def test_a_read_and_the_request_in_it_are_named_while_they_are_handled() -> None:
    watched = Watched()
    assert watched.state() == (NOTHING, "", "")
    watched.it.begin_read(ANN)
    assert watched.state() == (HANDLING, "ann", MESSAGES)
    watched.it.begin("ann", "queue.declare")
    assert watched.state() == (HANDLING, "ann", "queue.declare")
    watched.it.end()
    assert watched.state() == (HANDLING, "ann", MESSAGES)
    watched.it.end_read()
    assert watched.state() == (TURN, "ann", "queue.declare")
    watched.it.turned()
    assert watched.state()[0] == NOTHING


def test_a_turn_for_several_requests_blames_none_of_them() -> None:
    watched = Watched()
    watched.it.begin_read(ANN)
    watched.it.end_read()
    assert watched.state() == (TURN, "ann", MESSAGES)
    watched.it.begin_read(BOB)
    watched.it.end_read()
    assert watched.state()[0] == NOTHING
    watched.it.turned()
    watched.it.begin_read(BOB)
    watched.it.end_read()
    assert watched.state() == (TURN, "bob", MESSAGES)


def test_the_time_is_that_of_the_beginning() -> None:
    watched = Watched()
    watched.clock.advance(7.5)
    watched.it.begin("ann", "backup")
    watched.clock.advance(1.0)
    assert parsed(bytes(watched.memory))[1] == 7.5


@pytest.mark.parametrize("last", ["blameless", "freeze"])
def test_the_end_is_the_last_that_is_written(last: str) -> None:
    watched = Watched()
    watched.it.begin_read(ANN)
    getattr(watched.it, last)()
    watched.it.end_read()
    watched.it.turned()
    watched.it.begin("bob", "backup")
    assert watched.state()[0] == (NOTHING if last == "blameless" else HANDLING)


def test_names_of_any_length_and_bytes_fit() -> None:
    watched = Watched()
    watched.it.begin("\udcff" * 300, "x" * 70_000)
    assert watched.state()[1].startswith("???")
    assert len(watched.memory) == SIZE


def test_a_refused_request_is_told_why_until_the_time_is_over() -> None:
    watched = Watched()
    watched.it.refuse([{"user": "ann", "operation": "queue.declare", "seconds": 60.0}])
    watched.it.begin("ann", "queue.delete")
    watched.it.begin("bob", "queue.declare")
    with pytest.raises(ChannelError, match="declare of user 'ann' is refused for 60 s") as e:
        watched.it.begin("ann", "queue.declare")
    assert e.value.code == 403
    watched.clock.advance(60.0)
    watched.it.begin("ann", "queue.declare")


def test_an_operation_that_is_refused_closes_its_channel_only() -> None:
    rig = BrokerRig()
    rig.vhost.in_flight.refuse([{"user": "guest", "operation": "queue.declare", "seconds": 60.0}])
    client = rig.client().open()
    assert client.call(1, QueueDeclare(queue="q"), ChannelClose).reply_code == 403
    client.send(1, ChannelCloseOk())
    client.call(2, ChannelOpen(), ChannelOpenOk)
    client.call(2, QueueDelete(queue="q"), QueueDeleteOk)


THROUGH = f"{MESSAGES} through exchange 'events'"


def test_what_others_have_added_to_is_nobodys_until_the_turn_ends() -> None:
    watched = Watched()
    watched.it.begin_read(ANN)
    watched.it.share(b"events")
    watched.it.share(b"other")
    assert watched.state() == (SHARED, "ann", THROUGH)
    watched.it.end_read()
    assert watched.state() == (SHARED, "ann", THROUGH)
    watched.it.begin_read(ANN)
    assert watched.state() == (HANDLING, "ann", MESSAGES)
    watched.it.end_read()
    assert watched.state() == (SHARED, "ann", THROUGH)
    watched.it.turned()
    assert watched.state()[0] == NOTHING
    watched.it.begin_read(ANN)
    watched.it.end_read()
    assert watched.state() == (TURN, "ann", MESSAGES)


def test_an_operation_after_it_has_its_own_blame() -> None:
    watched = Watched()
    watched.it.begin_read(ANN)
    watched.it.share(b"events")
    watched.it.begin("ann", "queue.declare")
    assert watched.state() == (HANDLING, "ann", "queue.declare")
    watched.it.end()
    assert watched.state() == (HANDLING, "ann", MESSAGES)


def test_nothing_is_shared_while_nothing_is_handled() -> None:
    watched = Watched()
    watched.it.share(b"events")
    assert watched.state()[0] == NOTHING
    watched.it.begin_read(ANN)
    watched.it.end_read()
    watched.it.share(b"events")
    assert watched.state() == (TURN, "ann", MESSAGES)


def published(rig: BrokerRig, exchange: str, key: str) -> tuple[int, str]:
    """The state, and the operation, after a publish in one read."""
    memory = bytearray(SIZE)
    rig.vhost.in_flight = InFlight(rig.vhost.clock.monotonic, memory)
    client = rig.client().open()
    rig.vhost.in_flight.begin_read(ANN)
    client.publish(1, exchange, key, b"x")
    state, _, user, operation = parsed(bytes(memory))
    assert user == "ann"
    return state, operation


def test_a_publish_to_queues_that_others_bound_is_nobodys() -> None:
    rig = BrokerRig()
    rig.vhost.topology.declare_exchange("events", "fanout")
    for number in range(SHARED_PLACES):
        rig.vhost.declare_queue(f"q{number}")
    for number in range(SHARED_PLACES - 1):
        rig.vhost.bind_queue(f"q{number}", "events", "")
    assert published(rig, "events", "") == (HANDLING, MESSAGES)
    rig.vhost.bind_queue(f"q{SHARED_PLACES - 1}", "events", "")
    assert published(rig, "events", "") == (SHARED, THROUGH)


def test_a_publish_whose_dead_letter_goes_on_is_nobodys() -> None:
    rig = BrokerRig()
    arguments: dict[str, object] = {"x-max-length": 0, "x-dead-letter-exchange": "events"}
    rig.vhost.topology.declare_exchange("events", "fanout")
    rig.vhost.declare_queue("q", arguments=arguments)
    assert published(rig, "", "q") == (SHARED, THROUGH)
