"""Frames: the bytes that a proxy's mass travels as.

    b"ProxyFL" | version, 1 byte | a safetensors file: length of the header, 8 bytes; header, JSON;
    values, float32

The header's metadata hold round, sender, model fingerprint and the PushSum weight (as
``float.hex``, hence exact). ``frame[8:]`` opens in any safetensors reader. It is written here
rather than by the library, so that equal messages give equal bytes (the library orders metadata by
a hash that changes from process to process), and read here, so that nothing in it is interpreted
beyond what is expected. Nothing is ever unpickled.

Guarantees:
    * ``decode(encode(message), ...)`` returns the message bit for bit;
    * ``decode`` returns what was expected or raises TransportError with the reason: any other
      bytes from any origin raise nothing else, and cost no more memory than the frame itself;
    * values and weights that are not finite neither leave nor enter.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxyfl.errors import TransportError

VERSION = 2

_MAGIC = b"ProxyFL"
_START = len(_MAGIC) + 1
_HEADER_LIMIT = 4096
_METADATA = {"round", "sender", "weight", "model"}


@dataclass(frozen=True)
class Message:
    """One client's share for another: values = theta_j, weight = P_kj w_j."""

    round: int
    sender: int
    weight: float
    values: Tensor
    model: str


def encode(message: Message) -> bytes:
    """The frame for ``message``; TransportError if it must not travel."""
    where = f"Client {message.sender}, round {message.round}"
    values = message.values.detach()
    if values.dtype != torch.float32 or values.ndim != 1:
        raise TransportError(
            f"{where}: expected flat float32 values, got {values.dtype} of shape "
            f"{tuple(values.shape)}."
        )
    if min(message.round, message.sender) < 0:
        raise TransportError(f"{where}: expected a round and a sender of at least 0.")
    numbers = values.cpu().contiguous().numpy()
    _check_finite(where, message.weight, numbers)
    header = _header(message)
    if len(header) > _HEADER_LIMIT:
        raise TransportError(
            f"{where}: the model fingerprint has {len(message.model)} characters, too long for a "
            f"frame. Use a digest."
        )
    data = numbers.astype("<f4", copy=False).data
    return b"".join([_MAGIC, bytes([VERSION]), len(header).to_bytes(8, "little"), header, data])


def decode(
    frame: bytes | memoryview,
    *,
    expect_sender: int,
    expect_round: int,
    expect_model: str,
    expect_size: int,
) -> Message:
    """The message in ``frame``, if it is the expected one; TransportError with the reason
    otherwise."""
    examined = examine(
        frame,
        expect_sender=expect_sender,
        expect_round=expect_round,
        expect_model=expect_model,
        expect_size=expect_size,
    )
    return Message(expect_round, expect_sender, examined.weight, examined.to_tensor(), expect_model)


@dataclass(frozen=True)
class Examined:
    """A frame that is the expected one: its weight, its values where they lie, and the largest
    magnitude of them."""

    weight: float
    values: "np.ndarray[Any, np.dtype[np.float32]]"
    largest: float

    def to_tensor(self) -> Tensor:
        """The values as a tensor of its own, writable and in this machine's byte order."""
        return torch.from_numpy(self.values.astype(np.float32))


def examine(
    frame: bytes | memoryview,
    *,
    expect_sender: int,
    expect_round: int,
    expect_model: str,
    expect_size: int,
) -> Examined:
    """Checks a frame as ``decode`` does and returns its parts without a copy of the values."""
    where = f"Frame expected from client {expect_sender} for round {expect_round}"
    start = _values_start(where, frame)
    header = _parse_header(where, bytes(frame[_START + 8 : start]))
    metadata, layout = header["__metadata__"], header["values"]
    expected = {"sender": str(expect_sender), "round": str(expect_round), "model": expect_model}
    for key, value in expected.items():
        if metadata[key] != value:
            raise TransportError(
                f"{where}: it says {key} {metadata[key]!r:.80}, expected {value!r}. "
                "Check that both sides run the same round, client ids and proxy architecture."
            )
    if layout != {"dtype": "F32", "shape": [expect_size], "data_offsets": [0, 4 * expect_size]}:
        raise TransportError(
            f"{where}: expected {expect_size} float32 values, it announces {layout!r:.120}."
        )
    if len(frame) - start != 4 * expect_size:
        length = len(frame) - start
        raise TransportError(
            f"{where}: truncated or too long: {length} bytes of values, expected {4 * expect_size}."
        )
    weight = _weight(where, metadata["weight"])
    numbers = np.frombuffer(frame, dtype="<f4", offset=start, count=expect_size)
    largest = _check_finite(where, weight, numbers)
    return Examined(weight, numbers, largest)


def _header(message: Message) -> bytes:
    size = message.values.numel()
    metadata = {
        "round": str(message.round),
        "sender": str(message.sender),
        "weight": float(message.weight).hex(),
        "model": message.model,
    }
    layout = {"dtype": "F32", "shape": [size], "data_offsets": [0, 4 * size]}
    text = json.dumps({"__metadata__": metadata, "values": layout}, separators=(",", ":")).encode()
    # safetensors aligns the values to 8 bytes
    return text + b" " * (-len(text) % 8)


def _values_start(where: str, frame: bytes | memoryview) -> int:
    if len(frame) < _START + 8:
        raise TransportError(
            f"{where}: {len(frame)} bytes are too few for a frame. It was cut off on the way."
        )
    if frame[: len(_MAGIC)] != _MAGIC:
        raise TransportError(
            f"{where}: not a ProxyFL frame: it begins with {bytes(frame[: len(_MAGIC)])!r}. Does "
            "another program use this address?"
        )
    if frame[_START - 1] != VERSION:
        raise TransportError(
            f"{where}: it has wire version {frame[_START - 1]}, this program speaks {VERSION}. "
            "Install the same release on both sides."
        )
    length = int.from_bytes(frame[_START : _START + 8], "little")
    if length > _HEADER_LIMIT or _START + 8 + length > len(frame):
        raise TransportError(
            f"{where}: a header of {length} bytes in a frame of {len(frame)}; at most "
            f"{_HEADER_LIMIT} are allowed."
        )
    return _START + 8 + length


def _parse_header(where: str, text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise TransportError(f"{where}: its header is not JSON: {error}.") from error
    if not isinstance(header, dict) or set(header) != {"__metadata__", "values"}:
        raise TransportError(
            f"{where}: expected a header with __metadata__ and values, got {header!r:.120}."
        )
    metadata = header["__metadata__"]
    if not isinstance(metadata, dict) or set(metadata) != _METADATA:
        raise TransportError(
            f"{where}: expected metadata {sorted(_METADATA)}, got {metadata!r:.120}."
        )
    if not all(isinstance(value, str) for value in metadata.values()):
        raise TransportError(f"{where}: expected metadata that are strings, got {metadata!r:.120}.")
    return header


def _weight(where: str, text: str) -> float:
    try:
        return float.fromhex(text)
    except (ValueError, OverflowError) as error:
        raise TransportError(
            f"{where}: expected the weight as a hexadecimal float, got {text!r:.40}."
        ) from error


def _check_finite(
    where: str, weight: float, numbers: "np.ndarray[Any, np.dtype[np.float32]]"
) -> float:
    """The largest magnitude of ``numbers``; TransportError unless all is finite."""
    if not 0 <= weight < math.inf:
        raise TransportError(f"{where}: expected a finite weight >= 0, got {weight}.")
    # A NaN or an infinity shows in the least or the greatest: no array of flags is made.
    ends = [] if not numbers.size else [float(numbers.min()), float(numbers.max())]
    if not all(math.isfinite(end) for end in ends):
        infinite = int(numbers.size - np.isfinite(numbers).sum())
        raise TransportError(
            f"{where}: {infinite} of {numbers.size} values are not finite. Did that client's "
            f"training diverge?"
        )
    return max(map(abs, ends), default=0.0)
