"""Bytes between sites over gRPC with mutual TLS 1.3: the one home of grpc.

``server`` answers, ``client`` asks. Both know bytes and certificates and nothing of what they mean.
A message travels in pieces of at most ``PIECE`` bytes, so that neither end holds the whole of it.
"""

import os
import sys
from dataclasses import dataclass

from proxyfl.errors import TransportError

SERVICE = "proxyfl.Node"
SEND = f"/{SERVICE}/Send"
FOLLOW = f"/{SERVICE}/Follow"

KEEPALIVE_SECONDS = 20
KEEPALIVE_TIMEOUT_SECONDS = 10
HANDSHAKE_SECONDS = 10
PIECE = 1 << 20

# gRPC's Python library cannot state a least TLS version. TLS 1.2 needs a cipher suite that fits the
# certificate: with none but RSA's allowed and certificates of sites on P-256, only TLS 1.3 is left.
# gRPC reads the variable once, when it is imported. The server checks what was negotiated once more
# (``server``), and tests/transport/test_grpc.py tries to downgrade.
_VARIABLE = "GRPC_SSL_CIPHER_SUITES"
_SUITES = "ECDHE-RSA-AES256-GCM-SHA384"

if "grpc" in sys.modules and os.environ.get(_VARIABLE) != _SUITES:
    raise TransportError(
        "grpc was imported before proxyfl.transport.grpc, so TLS 1.2 could not be ruled out. "
        f"Import proxyfl.transport.grpc first, or start Python with {_VARIABLE}={_SUITES}."
    )
os.environ[_VARIABLE] = _SUITES

# gRPC prints a line for each handshake that fails, so strangers could fill a site's log.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


@dataclass(frozen=True)
class Credentials:
    """One end's key, certificate and trusted certificates, in PEM form."""

    key: bytes
    certificate: bytes
    trusted: bytes


def options(*, sent: int, received: int) -> list[tuple[str, int]]:
    """Both ends' settings: bounded sizes, and a dead peer noticed within half a minute."""
    return [
        ("grpc.max_send_message_length", sent),
        ("grpc.max_receive_message_length", received),
        ("grpc.max_metadata_size", 8192),
        ("grpc.keepalive_time_ms", 1000 * KEEPALIVE_SECONDS),
        ("grpc.keepalive_timeout_ms", 1000 * KEEPALIVE_TIMEOUT_SECONDS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.lookahead_bytes", 8 << 20),
        ("grpc.http2.max_frame_size", 1 << 20),
    ]
