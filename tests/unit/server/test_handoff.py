import json

from penstock.access.permissions import Identity
from penstock.codec.fields import encode_table
from penstock.server.handoff import Opened, pack, unpack


def test_all_that_is_known_of_a_client_comes_out_as_it_went_in() -> None:
    opened = Opened(
        name="127.0.0.1:5 -> 127.0.0.1:6", peer_host="127.0.0.1", peer_port=5, host="127.0.0.1",
        port=6, user="änn", vhost="v/\udcff", heartbeat_s=7, frame_max=4096, channel_max=9,
        connected_at_ms=1_700_000_000_000,
        client_properties=encode_table({"raw": b"\xff\x00", "capabilities": {"basic.nack": True}}),
    )  # fmt: skip
    identity = Identity("änn", frozenset({"administrator"}), "^a", "", ".*")
    message = json.loads(json.dumps(pack(opened, identity)))
    again, who = unpack(message)
    assert again == opened
    assert who.facts() == identity.facts()
