"""Large bodies leave the store in pieces: in order, whole or not at all, and nothing stays open."""

import base64
import errno
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from penstock.broker.background_tasks import STEPS_MAX
from penstock.broker.broker_queue import BrokerQueue
from penstock.broker.output import PIECE_BYTES
from penstock.codec.frames import content_frames, method_frame
from penstock.codec.properties import BasicProperties
from penstock.codec.spec import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicGetOk,
    BasicPublish,
    BasicQos,
    BasicQosOk,
    BasicReject,
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ConfirmSelect,
    ConfirmSelectOk,
    ConnectionClose,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from penstock.errors import DiskFullError
from penstock.message import LARGE_FROM
from penstock.storage.files.durability import DISK
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.builds import pure_only
from tests.helpers.operation_rig import OperationRig
from tests.helpers.reads import Reads, counted_reads
from tests.helpers.vhost_rig import classic

METHOD, BODY = 1, 3
BASIC_ACK = b"\x00\x3c\x00\x50"


def body_of(mib: int, mark: int = 0) -> bytes:
    """Bytes in which each piece differs from the others."""
    return b"".join(bytes([mark, i & 0xFF, i >> 8]) * 1024 for i in range((mib << 20) // 3072 + 1))


LARGE = body_of(3)


class Frame(NamedTuple):
    kind: int
    channel: int
    payload: bytes


def frames_of(data: bytes) -> list[Frame]:
    """The whole frames in these bytes."""
    found: list[Frame] = []
    at = 0
    while at < len(data):
        end = at + 8 + int.from_bytes(data[at + 3 : at + 7], "big")
        assert data[end - 1] == 0xCE
        channel = int.from_bytes(data[at + 1 : at + 3], "big")
        found.append(Frame(data[at], channel, data[at + 7 : end - 1]))
        at = end
    return found


@pytest.fixture
def rig() -> Iterator[BrokerRig]:
    rig = BrokerRig()
    yield rig
    # Whatever happened, no body stands open when all clients have gone.
    for client in rig.clients:
        client.lose()
    assert open_bodies(rig) == []


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return counted_reads(monkeypatch)


def open_bodies(rig: BrokerRig) -> list[str]:
    """Paths of bodies that somebody reads, deleted ones included."""
    disk = rig.fs.disk
    names = {rig.fs._find(path): path for path in own_files(rig)}
    return [
        names.get(number, "deleted")
        for number, count in rig.fs.handles.items()
        if count and getattr(disk.nodes[number], "volatile", b"")[:4] == b"POWN"
    ]


def own_files(rig: BrokerRig) -> list[str]:
    """All own files of both stores."""
    found: list[str] = []
    for name in ("msg_store_persistent", "msg_store_transient"):
        place = f"{rig.vhost.engine.path}/{name}"
        for at in rig.fs.list(place):
            if rig.fs.is_dir(f"{place}/{at}"):
                found += [f"{place}/{at}/{file}" for file in rig.fs.list(f"{place}/{at}")]
    return found


def declared(client: RigClient, name: str = "q", *, durable: bool = True) -> None:
    client.call(1, QueueDeclare(queue=name, durable=durable), QueueDeclareOk)


def filled(rig: BrokerRig, *bodies: bytes, persistent: bool = True) -> RigClient:
    """A client that has published these to the durable queue q."""
    client = rig.client().open()
    declared(client)
    for body in bodies:
        client.publish(1, "", "q", body, delivery_mode=2 if persistent else 1)
    rig.turn()
    return client


def begun(rig: BrokerRig, *, no_ack: bool = False) -> RigClient:
    """A client to which a delivery from q is under way: it has got the first piece."""
    client = rig.client().open()
    send_one_piece(client)
    client.send(1, BasicConsume(queue="q", no_ack=no_ack))
    rig.turn()
    assert 0 < sent_bytes(client) <= 2 * PIECE_BYTES
    return client


def send_one_piece(client: RigClient) -> None:
    """The transport is full after the next piece of a body."""
    outlet = client.outlet
    plain = type(outlet).send

    def send(data: bytes) -> None:
        plain(outlet, data)
        if len(data) > 1 << 16:
            outlet.is_writable = False

    outlet.send = send  # type: ignore[method-assign]
    outlet.is_writable = True


def sent_bytes(client: RigClient) -> int:
    return sum(len(data) for data in client.outlet.sent)


def take_all(client: RigClient) -> None:
    """The client takes all there is."""
    outlet = client.outlet
    if "send" in outlet.__dict__:
        del outlet.send
    outlet.is_writable = True
    client.handler.writable(True)
    client.rig.turn()


def ready(rig: BrokerRig, name: str = "q") -> int:
    queue = rig.vhost.table.usable(name)
    assert queue is not None
    return queue.len()


# ---- whole, and in order -------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("no_ack", [True, False])
def test_a_consumer_gets_large_bodies_whole(rig: BrokerRig, persistent: bool, no_ack: bool) -> None:
    bodies = [LARGE, b"small", body_of(2, 1), body_of(1, 2)]
    filled(rig, *bodies, persistent=persistent)
    client = rig.client().open()
    client.call(1, BasicConsume(queue="q", no_ack=no_ack), BasicConsumeOk)
    rig.turn()
    messages = client.messages()
    assert [message.body for message in messages] == bodies
    tags = [m.method.delivery_tag for m in messages if isinstance(m.method, BasicDeliver)]
    assert tags == [1, 2, 3, 4]
    if not no_ack:
        client.send(1, BasicAck(delivery_tag=4, multiple=True))
        rig.turn()
    client.lose()
    assert ready(rig) == 0


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("no_ack", [True, False])
def test_basic_get_gets_them_one_after_the_other(
    rig: BrokerRig, persistent: bool, no_ack: bool
) -> None:
    bodies = [LARGE, body_of(2, 1), b"small"]
    client = filled(rig, *bodies, persistent=persistent)
    for _ in bodies:
        client.send(1, BasicGet(queue="q", no_ack=no_ack))
    assert len(open_bodies(rig)) == 1, "the second waits until the first was sent"
    rig.turn()
    messages = client.messages()
    assert [message.body for message in messages] == bodies
    found = [m.method for m in messages if isinstance(m.method, BasicGetOk)]
    assert [method.message_count for method in found] == [2, 1, 0]
    client.lose()
    assert ready(rig) == (0 if no_ack else 3)


def test_a_large_mandatory_message_without_a_queue_is_returned_in_pieces(rig: BrokerRig) -> None:
    client = rig.client().open()
    send_one_piece(client)
    client.publish(1, "", "nowhere", LARGE, mandatory=True)
    rig.turn()
    assert sent_bytes(client) <= 2 * PIECE_BYTES
    take_all(client)
    (message,) = client.messages()
    assert isinstance(message.method, BasicReturn)
    assert message.body == LARGE


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_around_the_threshold(rig: BrokerRig, more: int) -> None:
    """A smaller one is read whole; what comes out is what came in."""
    body = body_of(2)[: LARGE_FROM + more]
    filled(rig, body)
    rig.restart()
    client = rig.client().open()
    send_one_piece(client)
    client.send(1, BasicConsume(queue="q"))
    rig.turn()
    assert len(open_bodies(rig)) == (more >= 0)
    assert (sent_bytes(client) < len(body)) == (more >= 0)
    take_all(client)
    assert client.bodies() == [body]


def test_the_body_is_never_in_ram(rig: BrokerRig, reads: Reads) -> None:
    filled(rig, LARGE)
    client = begun(rig)
    assert rig.vhost.monitor.other_bytes >= PIECE_BYTES, "what is in RAM of it is counted"
    queue = rig.vhost.table.usable("q")
    assert isinstance(queue, BrokerQueue)
    assert queue.amq.ram_bytes() < PIECE_BYTES
    take_all(client)
    assert client.bodies() == [LARGE]
    assert reads.longest <= PIECE_BYTES


def test_nor_after_a_restart(rig: BrokerRig, reads: Reads) -> None:
    filled(rig, LARGE, body_of(2, 1), b"small")
    rig.restart()
    client = rig.client().open()
    client.call(1, BasicConsume(queue="q"), BasicConsumeOk)
    rig.turn()
    assert client.bodies() == [LARGE, body_of(2, 1), b"small"]
    client.lose()
    assert ready(rig) == 3
    assert reads.longest <= PIECE_BYTES


@pytest.mark.parametrize("why", ["rejected", "expired", "maxlen"])
@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("to_durable", [True, False])
def test_nor_when_it_is_dead_lettered(
    rig: BrokerRig, why: str, persistent: bool, to_durable: bool, reads: Reads
) -> None:
    client = rig.client().open()
    declared(client, "dead", durable=to_durable)
    arguments: dict[str, object] = {
        "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"
    }  # fmt: skip
    if why == "maxlen":
        arguments["x-max-length"] = 1
    client.call(1, QueueDeclare(queue="src", durable=True, arguments=arguments), QueueDeclareOk)
    properties: dict[str, object] = {"delivery_mode": 2 if persistent else 1}
    if why == "expired":
        properties["expiration"] = "1000"
    client.publish(1, "", "src", LARGE, **properties)
    rig.turn()
    if why == "rejected":
        client.send(1, BasicGet(queue="src"))
        rig.turn()
        assert client.bodies() == [LARGE]
        client.send(1, BasicReject(delivery_tag=1, requeue=False))
    elif why == "expired":
        rig.tick(2.0)
    else:
        client.publish(1, "", "src", b"newer", delivery_mode=2)
    rig.turn()
    assert (ready(rig, "src"), ready(rig, "dead")) == (why == "maxlen", 1)
    checkpointed(rig, client)
    assert len(own_files(rig)) == 1, "one body, in one store"
    client.send(1, BasicGet(queue="dead", no_ack=True))
    rig.turn()
    assert client.bodies() == [LARGE]
    checkpointed(rig, client)
    assert own_files(rig) == []
    assert reads.longest <= PIECE_BYTES


def test_nor_when_it_goes_to_queues_of_all_sorts(rig: BrokerRig, reads: Reads) -> None:
    """One file in each store, whatever the queues."""
    client = rig.client().open()
    names = {"d1": True, "d2": True, "t1": False, "t2": False}
    for name, durable in names.items():
        declared(client, name, durable=durable)
        client.call(1, QueueBind(queue=name, exchange="amq.fanout"), QueueBindOk)
    for mode in (2, 1):
        client.publish(1, "amq.fanout", "", LARGE, delivery_mode=mode)
        rig.turn()
        assert [ready(rig, name) for name in names] == [1, 1, 1, 1]
        checkpointed(rig, client)
        assert len(own_files(rig)) == mode, "transient: one for all"
        for name in names:
            client.send(1, BasicGet(queue=name, no_ack=True))
            rig.turn()
            assert client.bodies() == [LARGE]
        checkpointed(rig, client)
        assert own_files(rig) == []
    assert reads.longest <= PIECE_BYTES


# ---- channels, and what else is said -------------------------------------------------------------


def test_other_channels_speak_between_body_frames_and_its_own_waits(rig: BrokerRig) -> None:
    filled(rig, LARGE)
    client = begun(rig)
    client.send(2, ChannelOpen())
    client.send(1, QueueDeclare(queue="mine"))
    client.send(2, QueueDeclare(queue="other"))
    rig.turn()
    data = b"".join(client.outlet.sent)
    client.pump()
    take_all(client)
    data += b"".join(client.outlet.sent)
    found = frames_of(data)
    bodies = [i for i, frame in enumerate(found) if frame.kind == BODY]
    within = found[bodies[0] : bodies[-1]]
    assert {frame.channel for frame in within if frame.kind == METHOD} == {2}
    assert sum(len(found[i].payload) for i in bodies) == len(LARGE)
    client.pump()
    assert [m.queue for m in client.methods(QueueDeclareOk)] == ["other", "mine"]
    assert client.bodies() == [LARGE]


def test_large_bodies_of_several_channels_take_turns(rig: BrokerRig) -> None:
    filled(rig, body_of(2, 1), body_of(2, 2))
    client = rig.client().open(1).open(2)
    for channel in (1, 2):
        client.call(channel, BasicQos(prefetch_count=1), BasicQosOk)
    for channel in (1, 2):
        client.send(channel, BasicConsume(queue="q"))
    rig.turn()
    found = frames_of(b"".join(client.outlet.sent))
    order = [frame.channel for frame in found if frame.kind == BODY]
    assert set(order[: len(order) // 4]) == {1, 2}
    client.pump()
    assert sorted(client.bodies()) == [body_of(2, 1), body_of(2, 2)]


def test_confirms_of_its_channel_wait_behind_it(rig: BrokerRig) -> None:
    filled(rig, LARGE)
    client = rig.client().open()
    client.call(1, ConfirmSelect(), ConfirmSelectOk)
    declared(client, "t")
    send_one_piece(client)
    client.send(1, BasicConsume(queue="q"))
    rig.turn()
    client.publish(1, "", "t", b"one", delivery_mode=2)
    rig.turn()
    assert BASIC_ACK not in b"".join(client.outlet.sent)
    take_all(client)
    assert [ack.delivery_tag for ack in client.methods(BasicAck)] == [1]
    assert client.bodies() == [LARGE]


def test_the_bodies_that_a_user_is_sent_count_as_what_waits_for_that_user(rig: BrokerRig) -> None:
    """Each is a piece in RAM: with many channels they would fill the memory that all share."""
    filled(rig, LARGE)
    client = begun(rig)
    waiting = rig.vhost.usage.output
    assert waiting.of("guest") == client.handler.output.large_bytes() >= PIECE_BYTES
    take_all(client)
    assert client.bodies() == [LARGE]
    assert waiting.of("guest") == 0
    rest = begun_again(rig, client)
    assert waiting.of("guest") >= PIECE_BYTES
    rest.lose()
    rig.turn()
    assert waiting.of("guest") == 0


def begun_again(rig: BrokerRig, first: RigClient) -> RigClient:
    """The same delivery, to another client."""
    first.lose()
    rig.turn()
    return begun(rig)


def test_nothing_more_is_delivered_on_its_channel_until_it_was_sent(rig: BrokerRig) -> None:
    filled(rig, LARGE, b"next")
    client = begun(rig)
    assert ready(rig) == 1
    other = rig.client().open()
    other.call(1, BasicConsume(queue="q"), BasicConsumeOk)
    rig.turn()
    assert other.bodies() == [b"next"], "for whoever has room"
    take_all(client)
    assert client.bodies() == [LARGE]


def test_a_client_that_does_not_read_its_answers_is_not_read(rig: BrokerRig) -> None:
    filled(rig, LARGE)
    client = begun(rig)
    name = "q" * 250  # whose name is most of an answer
    for _ in range(20_000):
        if client.outlet.is_paused:
            break
        client.send(1, QueueDeclare(queue=name))
    assert client.outlet.is_paused
    take_all(client)
    assert not client.outlet.is_paused
    assert client.bodies() == [LARGE]


def test_small_messages_of_another_channel_do_not_keep_a_large_body_back(rig: BrokerRig) -> None:
    """The transport is full again as soon as they were sent; a piece goes all the same."""
    filled(rig, LARGE)
    client = begun(rig)
    before = client.handler.output.large_bytes()
    assert before
    for _ in range(2 * len(LARGE) // PIECE_BYTES):
        client.outlet.is_writable = True
        client.handler.writable(True)
        client.outlet.is_writable = False  # what others had to say has filled it
        rig.turn()
    assert not client.handler.output.lanes
    assert client.bodies() == [LARGE]


def test_a_turn_sends_no_more_than_some_pieces(rig: BrokerRig) -> None:
    """Other clients are served between the pieces, also of one that takes all at once."""
    body = body_of(10)
    filled(rig, body, body)
    clients = [rig.client().open(), rig.client().open()]
    for client in clients:
        client.send(1, BasicConsume(queue="q"))
    rig.vhost.turn()
    sent = [sent_bytes(client) for client in clients]
    assert 0 < sum(sent) <= (STEPS_MAX + 1) * PIECE_BYTES
    assert abs(sent[0] - sent[1]) <= 2 * PIECE_BYTES, "they take turns"
    rig.turn()
    for client in clients:
        assert client.bodies() == [body]


# ---- the message goes meanwhile ------------------------------------------------------------------


def acked(rig: BrokerRig, client: RigClient) -> None:
    client.send(1, BasicAck(delivery_tag=1))


def rejected(rig: BrokerRig, client: RigClient) -> None:
    client.send(1, BasicReject(delivery_tag=1, requeue=False))


def purged(rig: BrokerRig, client: RigClient) -> None:
    other = rig.client().open()
    other.call(1, QueuePurge(queue="q"), QueuePurgeOk)


def deleted(rig: BrokerRig, client: RigClient) -> None:
    other = rig.client().open()
    other.call(1, QueueDelete(queue="q"), QueueDeleteOk)


def checkpointed(rig: BrokerRig, client: RigClient) -> None:
    """What nobody needs is deleted."""
    for _ in range(3):
        rig.tick(60.0)
        assert rig.vhost.engine.checkpoint()


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("no_ack", [True, False])
@pytest.mark.parametrize("what", [acked, rejected, purged, deleted])
def test_it_is_delivered_to_its_end_whatever_becomes_of_the_message(
    rig: BrokerRig, what: Callable[[BrokerRig, RigClient], None], no_ack: bool, persistent: bool
) -> None:
    if no_ack and what in (acked, rejected):
        pytest.skip("there is nothing to settle")
    filled(rig, LARGE, persistent=persistent)
    client = begun(rig, no_ack=no_ack)
    what(rig, client)
    rig.turn()
    checkpointed(rig, client)
    if what is not purged and not (what is deleted and not persistent):
        assert open_bodies(rig) == ["deleted"], "its file has no name any more"
    take_all(client)
    assert client.bodies() == [LARGE]
    assert open_bodies(rig) == []
    if not no_ack and what is purged:
        client.send(1, BasicAck(delivery_tag=1))
    rig.turn()
    checkpointed(rig, client)
    assert own_files(rig) == []


def test_a_body_in_a_shared_file_is_delivered_to_its_end_too(rig: BrokerRig) -> None:
    """What the library has put there."""
    rig.vhost.engine.state.store.own_file_from = 8 << 20
    publisher = filled(rig)
    queue = rig.vhost.table.usable("q")
    assert isinstance(queue, BrokerQueue)
    queue.amq.publish(b"", LARGE, DISK)
    rig.turn()
    rig.restart()
    checkpointed(rig, publisher)
    assert own_files(rig) == []
    client = begun(rig)
    client.send(1, BasicAck(delivery_tag=1))
    rig.turn()
    checkpointed(rig, client)
    assert rig.vhost.engine.state.store.live_count == 0
    take_all(client)
    assert client.bodies() == [LARGE]


# ---- the client goes meanwhile -------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("no_ack", [True, False])
def test_a_connection_that_dies_gives_it_back(
    rig: BrokerRig, no_ack: bool, persistent: bool
) -> None:
    filled(rig, LARGE, persistent=persistent)
    before = rig.vhost.monitor.other_bytes
    client = begun(rig, no_ack=no_ack)
    assert len(open_bodies(rig)) == 1
    client.lose()
    assert open_bodies(rig) == []
    assert rig.vhost.monitor.other_bytes == before
    assert ready(rig) == 1
    other = rig.client().open()
    other.call(1, BasicConsume(queue="q"), BasicConsumeOk)
    rig.turn()
    (message,) = other.messages()
    assert isinstance(message.method, BasicDeliver)
    assert message.method.redelivered
    assert message.body == LARGE


def test_a_channel_that_is_closed_gets_its_content_to_the_end_and_then_the_answer(
    rig: BrokerRig,
) -> None:
    filled(rig, LARGE)
    client = begun(rig)
    client.send(1, ChannelClose(reply_code=200, reply_text="", class_id=0, method_id=0))
    rig.turn()
    assert ready(rig) == 1
    take_all(client)
    found = frames_of(b"".join(client.outlet.sent))
    assert [frame.kind for frame in found].count(METHOD) == 3
    assert found[-1].kind == METHOD
    assert sum(len(frame.payload) for frame in found if frame.kind == BODY) == len(LARGE)
    client.pump()
    assert len(client.methods(ChannelCloseOk)) == 1
    client.open(1)
    client.send(1, BasicGet(queue="q"))
    rig.turn()
    assert client.bodies() == [LARGE]


def test_a_connection_that_is_closed_in_order_gives_it_back(rig: BrokerRig) -> None:
    filled(rig, LARGE)
    client = begun(rig, no_ack=True)
    client.send(0, ConnectionClose(reply_code=200, reply_text="", class_id=0, method_id=0))
    rig.turn()
    assert client.outlet.is_closed
    assert open_bodies(rig) == []
    assert ready(rig) == 1


def test_after_a_crash_in_the_middle_it_is_delivered_again(rig: BrokerRig) -> None:
    filled(rig, LARGE)
    begun(rig, no_ack=True)
    rig.restart()
    client = rig.client().open()
    client.call(1, BasicConsume(queue="q", no_ack=True), BasicConsumeOk)
    rig.turn()
    assert client.bodies() == [LARGE]


# ---- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("no_ack", [True, False])
def test_a_damaged_body_is_never_whole_and_ends_the_connection(
    rig: BrokerRig, no_ack: bool, persistent: bool
) -> None:
    filled(rig, LARGE, b"next", persistent=persistent)
    (path,) = own_files(rig)
    rig.fs.damage_flip(path, len(LARGE) // 2)
    client = rig.client().open()
    client.send(1, BasicConsume(queue="q", no_ack=no_ack))
    rig.turn()
    data = b"".join(client.outlet.sent)
    found = frames_of(data)
    assert sum(len(frame.payload) for frame in found if frame.kind == BODY) < len(LARGE)
    assert found[-1].kind == METHOD
    assert found[-1].channel == 0
    client.outlet.sent = [frame_bytes(found[-1])]
    (closed,) = client.methods(ConnectionClose)
    assert closed.reply_code == 541
    assert [text for kind, text in rig.events if kind == "corruption" and path in text]
    # It is not delivered again, to whoever; what is behind it is.
    other = rig.client().open()
    other.call(1, BasicConsume(queue="q"), BasicConsumeOk)
    rig.turn()
    assert other.bodies() == [b"next"]
    assert not other.outlet.must_close
    assert rig.fs.exists(path), "it stays for salvage"


def frame_bytes(frame: Frame) -> bytes:
    head = bytes([frame.kind]) + frame.channel.to_bytes(2, "big")
    return head + len(frame.payload).to_bytes(4, "big") + frame.payload + b"\xce"


def test_a_body_that_is_cut_off_ends_the_connection(rig: BrokerRig) -> None:
    filled(rig, LARGE)
    (path,) = own_files(rig)
    client = begun(rig)
    file = rig.fs.open(path)
    file.truncate(1 << 20)
    file.close()
    take_all(client)
    assert client.outlet.must_close
    assert [text for kind, text in rig.events if kind == "corruption" and "cut off" in text]


def test_an_error_of_the_disk_in_the_middle_ends_the_connection(
    rig: BrokerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(rig, LARGE, b"next")
    (path,) = own_files(rig)
    client = begun(rig)
    plain = rig.fs.on_read

    def on_read(at: str, data: bytearray, start: int, stop: int) -> bytes:
        if at == path:
            raise OSError(errno.EIO, "Input/output error", path)
        return plain(at, data, start, stop)

    monkeypatch.setattr(rig.fs, "on_read", on_read)
    take_all(client)
    assert client.outlet.must_close
    assert [text for kind, text in rig.events if kind == "corruption" and path in text]
    other = rig.client().open()
    other.call(1, BasicConsume(queue="q"), BasicConsumeOk)
    rig.turn()
    assert other.bodies() == [b"next"]


# ---- a full disk ---------------------------------------------------------------------------------


@pure_only
@pytest.mark.parametrize("error", [DiskFullError("/data", 0, 1), OSError(errno.EIO, "no")])
def test_what_cannot_be_logged_at_its_end_is_acknowledged_later(
    rig: BrokerRig, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    filled(rig, LARGE)
    client = begun(rig, no_ack=True)
    queue = rig.vhost.table.usable("q")
    assert isinstance(queue, BrokerQueue)
    asked: list[list[int]] = []

    def refuse(tags: list[int], mode: int) -> int:
        asked.append(list(tags))
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(queue.amq, "ack", refuse)
        take_all(client)
    assert client.bodies() == [LARGE]
    assert asked
    assert not client.outlet.must_close
    rig.tick(2.0)
    assert queue.counts.deliver_no_ack == 1
    assert queue.amq.depth() == 0


# ---- from a stream -------------------------------------------------------------------------------


def stream_with(rig: BrokerRig, *bodies: bytes) -> RigClient:
    """A client that has published these to the stream s."""
    client = rig.client().open()
    arguments: dict[str, object] = {"x-queue-type": "stream"}
    method = QueueDeclare(queue="s", durable=True, arguments=arguments)
    client.call(1, method, QueueDeclareOk)
    for body in bodies:
        client.publish(1, "", "s", body, headers={"size": len(body)})
    rig.turn()
    return client


def reader(rig: BrokerRig, *, begin: bool = True, prefetch: int = 10) -> RigClient:
    """A client that reads the stream from its first record on."""
    client = rig.client(consumer_cancel_notify=True).open()
    client.call(1, BasicQos(prefetch_count=prefetch), BasicQosOk)
    if begin:
        client.send(1, BasicConsume(queue="s", arguments={"x-stream-offset": "first"}))
        rig.turn()
    return client


@pytest.mark.parametrize("restarts", [False, True])
def test_large_records_leave_a_stream_in_pieces_and_in_order(
    rig: BrokerRig, reads: Reads, restarts: bool
) -> None:
    bodies = [b"small", LARGE, body_of(2, 1), b"x" * 1000, body_of(1, 2)]
    stream_with(rig, *bodies)
    if restarts:
        rig.restart()
        reader(rig)  # the first one beside the making of the page's index
    reads.longest = 0
    client = reader(rig)
    messages = client.messages()
    assert [message.body for message in messages] == bodies
    properties = [BasicProperties.decode(message.header) for message in messages]
    headers = [one.headers or {} for one in properties]
    assert [one["size"] for one in headers] == [len(body) for body in bodies]
    assert [one["x-stream-offset"] for one in headers] == [0, 1, 2, 3, 4]
    assert reads.longest <= 1 << 20


def test_what_a_filter_leaves_out_is_not_read(rig: BrokerRig, reads: Reads) -> None:
    stream_with(rig, LARGE, b"small")
    reads.longest = 0
    client = reader(rig, begin=False)
    arguments: dict[str, object] = {
        "x-stream-offset": "first", "x-stream-filter": "none", "x-stream-match-unfiltered": False
    }  # fmt: skip
    client.call(1, BasicConsume(queue="s", arguments=arguments), BasicConsumeOk)
    rig.turn()
    assert client.bodies() == []
    assert page_files_open(rig) == 2, "the writer's and the reader's"


def page_files_open(rig: BrokerRig) -> int:
    """How many handles the pages of the stream have."""
    return sum(
        count for number, count in rig.fs.handles.items()
        if getattr(rig.fs.disk.nodes[number], "volatile", b"")[4:8] == b"PAGE"
    )  # fmt: skip


@pytest.mark.parametrize("how", ["closed", "retention"])
def test_a_record_that_is_being_read_is_read_to_its_end_or_closed(rig: BrokerRig, how: str) -> None:
    stream_with(rig, LARGE)
    client = reader(rig, begin=False)
    send_one_piece(client)
    client.send(1, BasicConsume(queue="s", arguments={"x-stream-offset": "first"}))
    rig.turn()
    assert 0 < sent_bytes(client) <= 2 * PIECE_BYTES
    if how == "closed":
        client.lose()
        again = reader(rig)
        assert again.bodies() == [LARGE]
        return
    other = rig.client().open()
    other.call(1, QueueDelete(queue="s"), QueueDeleteOk)
    for _ in range(3):
        rig.tick(60.0)
        assert rig.vhost.engine.checkpoint()
    take_all(client)
    assert client.bodies() == [LARGE]


def test_a_damaged_record_ends_the_connection_and_then_the_consumer(rig: BrokerRig) -> None:
    """It is known then: the next reader is told where it is, and keeps its connection."""
    stream_with(rig, b"small", LARGE)
    rig.restart()
    (path,) = [
        f"{directory}/{name}"
        for directory in stream_directories(rig) for name in rig.fs.list(directory)
        if name.endswith(".page")
    ]  # fmt: skip
    rig.fs.damage_flip(path, len(LARGE) // 2)
    first = reader(rig)
    assert first.outlet.must_close
    assert [text for kind, text in rig.events if kind == "corruption" and path in text]
    again = reader(rig)
    assert not again.outlet.must_close
    assert again.bodies() == [b"small"]
    assert len(again.methods(BasicCancel)) == 1


def stream_directories(rig: BrokerRig) -> list[str]:
    place = f"{rig.vhost.engine.path}/streams"
    return [f"{place}/{name}" for name in rig.fs.list(place)]


# ---- in a transaction, and to queues that differ -------------------------------------------------


@pytest.mark.parametrize("how", ["commit", "rollback", "lose", "crash"])
def test_a_transaction_does_not_read_the_bodies_that_it_publishes(
    rig: BrokerRig, reads: Reads, how: str
) -> None:
    client = rig.client().open()
    declared(client, "q")
    arguments: dict[str, object] = {"x-message-ttl": 60_000}
    method = QueueDeclare(queue="other", durable=True, arguments=arguments)
    client.call(1, method, QueueDeclareOk)
    for name in ("q", "other"):
        client.call(1, QueueBind(queue=name, exchange="amq.fanout"), QueueBindOk)
    client.call(1, TxSelect(), TxSelectOk)
    client.publish(1, "amq.fanout", "", LARGE, delivery_mode=2)
    client.publish(1, "amq.fanout", "", b"small", delivery_mode=2)
    rig.turn()
    assert (ready(rig), ready(rig, "other")) == (0, 0)
    assert len(own_files(rig)) == 1
    if how in ("lose", "rollback"):
        if how == "lose":
            client.lose()
        else:
            client.call(1, TxRollback(), TxRollbackOk)
        checkpointed(rig, client)
        assert own_files(rig) == []
        return
    client.call(1, TxCommit(), TxCommitOk)
    assert reads.longest <= PIECE_BYTES
    if how == "crash":
        rig = BrokerRig(fs=rig.fs.crash("lost"))
    assert (ready(rig), ready(rig, "other")) == (2, 2)
    client = rig.client().open()
    for name in ("q", "other"):
        client.send(1, BasicGet(queue=name, no_ack=True))
        client.send(1, BasicGet(queue=name, no_ack=True))
    rig.turn()
    assert client.bodies() == [LARGE, b"small"] * 2
    checkpointed(rig, client)
    assert own_files(rig) == []


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("is_mixed", [True, False])
@pytest.mark.parametrize("crashes", [True, False])
def test_nor_when_it_is_dead_lettered_to_queues_with_their_own_expiries(
    rig: BrokerRig, reads: Reads, persistent: bool, is_mixed: bool, crashes: bool
) -> None:
    client = rig.client().open()
    for n in range(3):
        arguments: dict[str, object] = {"x-message-ttl": 60_000 + n}
        is_durable = not (is_mixed and n == 2)
        method = QueueDeclare(queue=f"d{n}", durable=is_durable, arguments=arguments)
        client.call(1, method, QueueDeclareOk)
        client.call(1, QueueBind(queue=f"d{n}", exchange="amq.fanout"), QueueBindOk)
    arguments = {"x-dead-letter-exchange": "amq.fanout"}
    client.call(1, QueueDeclare(queue="q", durable=True, arguments=arguments), QueueDeclareOk)
    client.publish(1, "", "q", LARGE, delivery_mode=2 if persistent else 1)
    client.send(1, BasicGet(queue="q"))
    rig.turn()
    assert client.bodies() == [LARGE]
    client.send(1, BasicReject(delivery_tag=1, requeue=False))
    rig.turn()
    assert [ready(rig, name) for name in ("q", "d0", "d1", "d2")] == [0, 1, 1, 1]
    assert reads.longest <= PIECE_BYTES
    names = ["d0", "d1", "d2"]
    if crashes:
        rig.vhost.engine.sync()
        rig = BrokerRig(fs=rig.fs.crash("lost"))
        names = names[: 2 if is_mixed else 3] if persistent else []
        assert ready(rig, "q") == 0
    client = rig.client().open()
    for name in names:
        client.send(1, BasicGet(queue=name, no_ack=True))
        rig.turn()
        assert client.bodies() == [LARGE]
    checkpointed(rig, client)
    assert own_files(rig) == []


# ---- looked at -----------------------------------------------------------------------------------


def test_who_only_looks_at_a_large_message_does_not_read_it(reads: Reads) -> None:
    rig = OperationRig()
    filled(rig, LARGE, LARGE)
    rig.restart()
    client = rig.client().open()
    channel = client.handler.channels[1]
    declared(client)
    reads.longest = 0
    row = rig.result("describe_row", kind="queues", name="q")
    assert row["penstock"]["oldest_ready_s"] == 0
    (first, _) = rig.result("box.browse", channel, name="q", after=None, n=2)
    assert (first["header"], first["body"]) == (None, None)
    assert rig.refusal("peek", channel, queue="q", count=2).code == 311
    found = rig.result("delete_messages", queue="q", count=2, older=1, dry_run=True)
    assert found["deleted"] == 0
    found = rig.result("browse_messages", queue="q", count=2, truncate=10, encoding="base64")
    first, _ = found["messages"]
    assert first["payload_bytes"] == len(LARGE)
    assert base64.b64decode(first["payload"]) == LARGE[:10]
    classic(rig.vhost.queues["q"]).amq.tick(rig.clock.wall_ms())
    assert reads.longest < LARGE_FROM
    found = rig.result("browse_messages", queue="q", count=1)
    assert base64.b64decode(found["messages"][0]["payload"]) == LARGE
    peeked = rig.result("peek", queue="q", count=2)
    assert [one["body"] for one in peeked["messages"]] == [LARGE, LARGE]


@pytest.mark.parametrize("exchange", ["", "amq.fanout"])
def test_a_queue_may_go_while_a_large_body_comes(rig: BrokerRig, exchange: str) -> None:
    client, other = filled(rig), rig.client().open()
    declared(other, "r")
    for name in ("q", "r"):
        other.call(1, QueueBind(queue=name, exchange="amq.fanout"), QueueBindOk)
    client.call(1, ConfirmSelect(), ConfirmSelectOk)
    publish = method_frame(1, BasicPublish(exchange=exchange, routing_key="q").encode())
    content = content_frames(1, BasicProperties(delivery_mode=2).encode(), LARGE, 131_072)
    client.raw(publish + content[:-20])
    rig.turn()
    other.call(1, QueueDelete(queue="q"), QueueDeleteOk)
    client.raw(content[-20:])
    rig.turn()
    assert client.methods(BasicAck) == [BasicAck(delivery_tag=1)]
    assert ready(rig, "r") == int(exchange != "")
    checkpointed(rig, client)  # a body that no queue has is deleted then
