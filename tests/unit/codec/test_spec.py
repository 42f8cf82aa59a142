"""The methods and their bytes, with pamqp as the oracle."""

import pamqp.commands
import pamqp.frame
import pytest

from penstock.codec import spec
from penstock.codec.fields import decode_table, encode_table
from penstock.codec.frames import method_frame
from penstock.codec.method import Method
from penstock.errors import FRAME_ERROR, SYNTAX_ERROR, AMQPConnectionError

METHODS = list(spec.METHODS.values())
# What pamqp has too.
SHARED = [method for method in METHODS if method.CLASS_ID != 9000]


def name_of(method: type[Method]) -> str:
    return method.NAME


def filled(method: type[Method]) -> Method:
    """The method with a value that is not the default in every field."""
    made = method()
    for name, value in vars(made).items():
        other: object = {
            bool: not value,
            int: 200,
            str: "name",
            bytes: b"\x00bytes",
            dict: {"x-key": 5, "nested": {"a": [1, "two", None]}},
        }[type(value)]
        if name == "client_properties":
            other = encode_table({"nested": {"a": ["two", None]}})
        setattr(made, name, other)
    return made


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_every_method_comes_back_from_its_bytes(method: type[Method]) -> None:
    for made in (method(), filled(method)):
        payload = made.encode()
        assert payload[:4] == method.INDEX.to_bytes(4, "big")
        assert spec.decode_method(payload) == made
        assert method.__name__ in repr(made)


@pytest.mark.filterwarnings("ignore:This command is deprecated")
@pytest.mark.parametrize("method", SHARED, ids=name_of)
def test_pamqp_reads_what_we_write_and_writes_what_we_read(method: type[Method]) -> None:
    if method.INDEX not in pamqp.commands.INDEX_MAPPING:
        pytest.skip("pamqp does not know it")
    made = filled(method)
    data = method_frame(3, made.encode())
    size, channel, theirs = pamqp.frame.unmarshal(data)
    assert (size, channel) == (len(data), 3)
    for name, value in vars(made).items():
        given = getattr(theirs, {"type": "exchange_type"}.get(name, name))
        if name == "client_properties":
            value = decode_table(value)[0]
        assert given == value or str(given).encode() == value, name
    if not vars(made):
        theirs = pamqp.commands.INDEX_MAPPING[
            method.INDEX
        ]()  # pamqp has its own idea of what stands in a reserved field
    assert spec.decode_method(pamqp.frame.marshal(theirs, 3)[7:-1]) == made


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_a_method_cut_short_or_too_long_cannot_be_decoded(method: type[Method]) -> None:
    payload = filled(method).encode()
    for wrong in [*(payload[:size] for size in range(len(payload))), payload + b"\x00"]:
        with pytest.raises(AMQPConnectionError) as caught:
            spec.decode_method(wrong)
        assert caught.value.code in (FRAME_ERROR, SYNTAX_ERROR)


def test_a_method_is_named_after_its_class() -> None:
    assert spec.ConnectionUpdateSecretOk.NAME == "connection.update-secret-ok"
    assert spec.TxSelect.NAME == "tx.select"
    assert (spec.BasicAck.CLASS_ID, spec.BasicAck.METHOD_ID) == (60, 80)
    assert len(METHODS) == 69
    assert [method.NAME for method in METHODS if method.HAS_CONTENT] == [
        "basic.publish", "basic.return", "basic.deliver", "basic.get-ok",
    ]  # fmt: skip


def test_only_fields_of_the_method_are_taken() -> None:
    with pytest.raises(TypeError):
        spec.BasicAck(tag=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        spec.BasicGet(reserved_1=1)  # type: ignore[call-arg]
    with pytest.raises(OverflowError):
        spec.BasicQos(prefetch_count=65536).encode()


def test_a_payload_without_its_ids_is_a_frame_error() -> None:
    with pytest.raises(AMQPConnectionError) as caught:
        spec.decode_method(b"\x00\x00\x00")
    assert caught.value.code == 501


def test_an_unknown_method_is_a_command_that_is_invalid() -> None:
    with pytest.raises(AMQPConnectionError) as caught:
        spec.decode_method(b"\x00\x3c\x00\x29")
    error = caught.value
    assert (error.code, error.class_id, error.method_id) == (503, 60, 41)
    assert error.text == "COMMAND_INVALID - unknown method 41 of class 60"


def test_a_payload_that_comes_again_is_decoded_once() -> None:
    """Not one with a tag, which never comes again, nor one with a table, which may be changed; and
    a client that sends many different ones fills no memory."""
    payload = spec.BasicGet(queue="q").encode()
    assert spec.decode_method(payload) is spec.decode_method(bytes(payload))
    for other in (
        spec.BasicReject(delivery_tag=1), spec.QueueBind(queue="q"), spec.BasicGet(queue="q" * 99),
    ):  # fmt: skip
        first, second = (spec.decode_method(other.encode()) for _ in range(2))
        assert first == second == other
        assert first is not second
    for n in range(2 * spec.DECODED_MAX):
        spec.decode_method(spec.BasicGet(queue=f"q{n}").encode())
        assert len(spec._decoded) <= spec.DECODED_MAX


def test_methods_are_equal_by_their_fields_and_class() -> None:
    assert spec.BasicAck(delivery_tag=1) == spec.BasicAck(delivery_tag=1)
    assert spec.BasicAck(delivery_tag=1) != spec.BasicAck(delivery_tag=2)
    assert spec.TxSelect() != spec.TxSelectOk()
    with pytest.raises(TypeError):
        hash(spec.TxSelect())


def test_a_golden_frame() -> None:
    declare = spec.QueueDeclare(queue="q", durable=True, arguments={"x-max-length": 5})
    assert declare.encode().hex() == (
        "0032000a0000017102000000120c782d6d61782d6c656e6774684900000005"
    )


@pytest.mark.parametrize(
    ("code", "table"),
    [(501, b"\0\0"), (502, b"\0\0\0\x09"), (502, b"\0\0\0\x03\x01aZ"), (502, b"\0\0\0\x02\x05a")],
)
def test_a_table_that_stays_bytes_is_checked(code: int, table: bytes) -> None:
    with pytest.raises(AMQPConnectionError) as caught:
        spec.decode_method(b"\x00\x0a\x00\x0b" + table)
    assert caught.value.code == code
