"""The tables: complete where they must be, and the same for both roles."""

from penstock.codec import spec
from penstock.protocol.states import (
    CHANNEL_FROM_CLIENT,
    CHANNEL_FROM_SERVER,
    CLIENT_METHODS,
    CONNECTION_FROM_CLIENT,
    CONNECTION_FROM_SERVER,
    SERVER_METHODS,
    ChannelState,
    ConnectionState,
    Machines,
    Role,
)

CONNECTION = {index for index, method in spec.METHODS.items() if method.CLASS_ID == 10}


def test_every_method_is_somebodys() -> None:
    connection = {
        index for table in (CONNECTION_FROM_CLIENT, CONNECTION_FROM_SERVER) for _, index in table
    }
    channel = {index for table in (CHANNEL_FROM_CLIENT, CHANNEL_FROM_SERVER) for _, index in table}
    assert connection == CONNECTION
    assert channel == set(spec.METHODS) - CONNECTION


def test_a_request_is_one_sides_and_its_answer_the_others() -> None:
    by_name = {method.NAME: index for index, method in spec.METHODS.items()}
    both = {"channel.flow", "basic.cancel"}
    for name, index in by_name.items():
        answer = by_name.get(f"{name}-ok")
        if answer is None or index in CONNECTION or name in ("channel.open", "channel.close"):
            continue
        assert index in CLIENT_METHODS, name
        assert answer in SERVER_METHODS, name
        assert (index in SERVER_METHODS) == (name in both), name


def test_every_state_can_be_reached_and_left() -> None:
    for tables, states, last in (
        ((CONNECTION_FROM_CLIENT, CONNECTION_FROM_SERVER), ConnectionState, ConnectionState.CLOSED),
        ((CHANNEL_FROM_CLIENT, CHANNEL_FROM_SERVER), ChannelState, None),
    ):
        edges = [(at, to) for table in tables for (at, _), to in table.items() if at is not to]
        first = ConnectionState.HEADER if states is ConnectionState else ChannelState.FAULTED
        assert {to for _, to in edges} | {first} == set(states)
        assert {at for at, _ in edges} | ({last} if last else set()) == set(states)


def test_both_closes_cross_to_the_same_end() -> None:
    close, close_ok = spec.ChannelClose.INDEX, spec.ChannelCloseOk.INDEX
    client, server = CHANNEL_FROM_CLIENT, CHANNEL_FROM_SERVER
    for first, second in ((client, server), (server, client)):
        state = second[first[ChannelState.OPEN, close], close]
        assert state is ChannelState.BOTH_CLOSING
        assert second[first[state, close_ok], close_ok] is ChannelState.CLOSED
        assert first[second[state, close_ok], close_ok] is ChannelState.CLOSED


def test_the_roles_read_the_same_tables_from_their_sides() -> None:
    server, client = Machines(Role.SERVER), Machines(Role.CLIENT)
    assert server.connection_in is client.connection_out
    assert server.connection_out is client.connection_in
    assert server.channel_in is client.channel_out
    assert server.channel_out is client.channel_in
    assert server.own_close is client.peer_close
    assert server.channel_peer_close not in server.channel_discards
