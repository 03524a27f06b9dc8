"""Frames: exact both ways, readable by safetensors, and deaf to everything else."""

import json
import math
import struct

import pytest
import safetensors.torch
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from proxyfl.errors import TransportError
from proxyfl.transport.wire import Message, decode, encode

MODEL = "mlp-784-200-200-10"
MESSAGE = Message(round=12, sender=3, weight=1 / 3, values=torch.linspace(-1, 1, 7), model=MODEL)
FRAME = encode(MESSAGE)


def read(
    frame: bytes, *, sender: int = 3, round: int = 12, model: str = MODEL, size: int = 7
) -> Message:
    return decode(
        frame, expect_sender=sender, expect_round=round, expect_model=model, expect_size=size
    )


def forged(header: object, values: bytes = b"", *, version: int = 2) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return b"ProxyFL" + bytes([version]) + struct.pack("<Q", len(text)) + text + values


def header_of(frame: bytes) -> dict[str, dict[str, object]]:
    length = struct.unpack("<Q", frame[8:16])[0]
    return json.loads(frame[16 : 16 + length])  # type: ignore[no-any-return]


def bits(values: Tensor) -> list[int]:
    return values.view(torch.int32).tolist()


@settings(max_examples=100)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=40),
    st.floats(min_value=0, allow_nan=False, allow_infinity=False),
    st.integers(0, 2**40),
    st.integers(0, 2**40),
    st.text(max_size=60),
)
@example([-0.0, 1e-45, 3.4028234663852886e38], 5e-324, 0, 0, 'a "quoted" ä\n')
def test_messages_come_back_bit_for_bit(
    values: list[float], weight: float, round: int, sender: int, model: str
) -> None:
    """Any finite values, weight, ids and model name survive encode and decode exactly."""
    sent = Message(round, sender, weight, torch.tensor(values, dtype=torch.float32), model)
    got = read(encode(sent), sender=sender, round=round, model=model, size=len(values))
    assert (got.round, got.sender, got.weight, got.model) == (round, sender, weight, model)
    assert bits(got.values) == bits(sent.values)


def test_the_frame_is_a_safetensors_file() -> None:
    """After the eight bytes of magic and version, the official reader finds the same values and
    metadata."""
    assert torch.equal(safetensors.torch.load(FRAME[8:])["values"], MESSAGE.values)
    assert header_of(FRAME)["__metadata__"] == {
        "round": "12",
        "sender": "3",
        "weight": (1 / 3).hex(),
        "model": MODEL,
    }


def test_frames_of_the_safetensors_library_are_read() -> None:
    """What the official writer makes of the same message decodes, so the format is theirs and not a
    dialect."""
    metadata = {"round": "12", "sender": "3", "weight": (0.75).hex(), "model": MODEL}
    frame = b"ProxyFL\x02" + safetensors.torch.save({"values": MESSAGE.values}, metadata)
    got = read(frame)
    assert got.weight == 0.75
    assert torch.equal(got.values, MESSAGE.values)


def test_equal_messages_give_equal_frames() -> None:
    """Encoding is a function of the message: strides, gradients and history of the tensor leave no
    trace."""
    strided = torch.stack([MESSAGE.values, torch.zeros(7)], dim=1)[:, 0].requires_grad_()
    assert encode(Message(12, 3, 1 / 3, strided, MODEL)) == FRAME


def test_overhead_is_what_is_not_values() -> None:
    """Beside 4 bytes per value a frame has few others, and the values are aligned to 8 bytes."""
    overhead = len(FRAME) - 4 * len(MESSAGE.values)
    assert overhead % 8 == 0
    assert 0 < overhead < 300


def test_decoded_values_are_the_receivers_own() -> None:
    """Decoded values can be written to, and the frame stays as it was."""
    read(FRAME).values.zero_()
    assert torch.equal(read(FRAME).values, MESSAGE.values)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message(0, 0, 1.0, torch.tensor([1.0, math.nan]), "m"), "1 of 2 values are not finite"),
        (Message(0, 0, 1.0, torch.tensor([-math.inf]), "m"), "1 of 1 values are not finite"),
        (Message(0, 0, math.inf, torch.ones(1), "m"), "finite weight >= 0, got inf"),
        (Message(0, 0, -1.0, torch.ones(1), "m"), "finite weight >= 0, got -1.0"),
        (Message(0, 0, math.nan, torch.ones(1), "m"), "finite weight >= 0, got nan"),
        (
            Message(0, 0, 1.0, torch.ones(1, dtype=torch.float64), "m"),
            "float32 values, got torch.float64",
        ),
        (Message(0, 0, 1.0, torch.ones(1, 1), "m"), r"shape \(1, 1\)"),
        (Message(-1, 0, 1.0, torch.ones(1), "m"), "at least 0"),
        (Message(0, 0, 1.0, torch.ones(1), "m" * 5000), "5000 characters"),
    ],
)
def test_what_must_not_travel_is_refused(message: Message, reason: str) -> None:
    """A diverged proxy, a wrong type and an impossible weight are refused at the sender, with its
    id and the round."""
    with pytest.raises(TransportError, match=rf"Client 0, round -?\d: .*{reason}"):
        encode(message)


@pytest.mark.parametrize(
    ("expected", "reason"),
    [
        ({"sender": 4}, "says sender '3', expected '4'"),
        ({"round": 11}, "says round '12', expected '11'"),
        ({"model": "cnn"}, "says model 'mlp-784-200-200-10', expected 'cnn'"),
        ({"size": 8}, "expected 8 float32 values"),
        ({"size": 6}, "expected 6 float32 values"),
    ],
)
def test_the_wrong_message_is_refused(expected: dict[str, object], reason: str) -> None:
    """A frame of another sender, round, model or size is refused with what it says and what was
    expected."""
    with pytest.raises(TransportError, match=reason):
        read(FRAME, **expected)  # type: ignore[arg-type]


def _with(**changes: object) -> bytes:
    header = header_of(FRAME)
    header["__metadata__"].update(changes)
    return forged(header, FRAME[-28:])


def _layout(**changes: object) -> bytes:
    header = header_of(FRAME)
    header["values"].update(changes)
    return forged(header, FRAME[-28:])


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "0 bytes are too few"),
        (FRAME[:15], "15 bytes are too few"),
        (b"\x80\x05" + FRAME[2:], "not a ProxyFL frame"),
        (FRAME[:7] + b"\x01" + FRAME[8:], "wire version 1, this program speaks 2"),
        (FRAME[:-1], "truncated or too long: 27 bytes"),
        (FRAME + b"\x00", "truncated or too long: 29 bytes"),
        (FRAME[:40], "a header of"),
        (FRAME[:8] + b"\xff" * 8 + FRAME[16:], "a header of 18446744073709551615 bytes"),
        (forged(b"\xff\xfe{}"), "not JSON"),
        (forged(b"[" * 4000), "not JSON"),
        (forged(b"[]"), "expected a header"),
        (forged({}), "expected a header"),
        (forged({"__metadata__": 1, "values": 2}), "expected metadata"),
        (forged({**header_of(FRAME), "more": {}}, FRAME[-28:]), "expected a header"),
        (_with(extra="x"), "expected metadata"),
        (_with(round=12), "metadata that are strings"),
        (_with(weight="one"), "hexadecimal float"),
        (_with(weight="0x1p99999"), "hexadecimal float"),
        (_with(weight="nan"), "finite weight"),
        (_with(weight="-0x1p+0"), "finite weight"),
        (_with(sender="03"), "says sender '03'"),
        (_layout(dtype="F64"), "it announces"),
        (_layout(shape=[2**60]), "it announces"),
        (_layout(shape=[7, 1]), "it announces"),
        (_layout(data_offsets=[4, 32]), "it announces"),
        (_layout(shape=None), "it announces"),
        (FRAME[:-4] + struct.pack("<f", math.nan), "1 of 7 values are not finite"),
        (FRAME[:-28] + struct.pack("<f", math.inf) + FRAME[-24:], "1 of 7 values are not finite"),
    ],
)
def test_malformed_frames_are_refused(frame: bytes, reason: str) -> None:
    """Whatever is wrong with a frame, decode says so, and from whom and for which round it was
    expected."""
    with pytest.raises(
        TransportError, match=f"Frame expected from client 3 for round 12: .*{reason}"
    ):
        read(frame)


@settings(max_examples=300)
@given(st.binary(max_size=400), st.booleans())
def test_random_bytes_are_refused(noise: bytes, disguised: bool) -> None:
    """Random bytes, bare or behind a valid beginning, raise TransportError and nothing else."""
    with pytest.raises(TransportError):
        read(FRAME[:8] + noise if disguised else noise)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=300)
@given(st.sampled_from(["__metadata__", "values"]), st.data())
def test_mutated_headers_are_refused_or_harmless(part: str, data: st.DataObject) -> None:
    """A header with any field replaced by any JSON value is refused, or decodes to what was
    expected."""
    header = header_of(FRAME)
    field = data.draw(st.sampled_from([None, *sorted(header[part])]))
    value = data.draw(json_values)
    forgery = {**header, part: value if field is None else {**header[part], field: value}}
    _decodes_as_expected_or_refuses(forged(forgery, FRAME[-28:]))


@settings(max_examples=500)
@given(
    st.lists(
        st.tuples(st.integers(0, len(FRAME) - 1), st.integers(0, 255)), min_size=1, max_size=4
    ),
    st.data(),
)
def test_mutated_frames_are_refused_or_harmless(
    changes: list[tuple[int, int]], data: st.DataObject
) -> None:
    """A frame with bytes changed, cut or doubled is refused, or decodes to finite values of the
    expected message."""
    frame = bytearray(FRAME)
    for position, byte in changes:
        frame[position] = byte
    cut = data.draw(st.integers(0, len(frame)))
    _decodes_as_expected_or_refuses(bytes(frame))
    _decodes_as_expected_or_refuses(bytes(frame[:cut]))
    _decodes_as_expected_or_refuses(bytes(frame + frame[cut:]))


def _decodes_as_expected_or_refuses(frame: bytes) -> None:
    try:
        got = read(frame)
    except TransportError:
        return
    assert (got.round, got.sender, got.model, got.values.shape) == (12, 3, MODEL, (7,))
    assert 0 <= got.weight < math.inf
    assert got.values.isfinite().all()
