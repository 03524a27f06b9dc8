"""Bytes between sites over gRPC with mutual TLS 1.3: the one home of grpc.

``server`` answers, ``client`` asks. Both know bytes and certificates and nothing of what they mean.
"""

import os
from dataclasses import dataclass

SERVICE = "proxyfl.Node"
SEND = f"/{SERVICE}/Send"
FOLLOW = f"/{SERVICE}/Follow"

KEEPALIVE_SECONDS = 20
KEEPALIVE_TIMEOUT_SECONDS = 10
HANDSHAKE_SECONDS = 10

# gRPC's Python library cannot state a least TLS version. TLS 1.2 needs a cipher suite that fits the
# certificate: with none but RSA's allowed and certificates of sites on P-256, only TLS 1.3 is left.
# The server checks what was negotiated once more (``server``), and tests/transport/test_grpc.py
# tries to downgrade.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES256-GCM-SHA384"


@dataclass(frozen=True)
class Credentials:
    """One end's key, certificate and trusted certificates, in PEM form."""

    key: bytes
    certificate: bytes
    trusted: bytes


def options(largest: int) -> list[tuple[str, int]]:
    """Both ends' settings: bounded sizes, and a dead peer noticed within half a minute."""
    return [
        ("grpc.max_send_message_length", largest),
        ("grpc.max_receive_message_length", largest),
        ("grpc.max_metadata_size", 8192),
        ("grpc.keepalive_time_ms", 1000 * KEEPALIVE_SECONDS),
        ("grpc.keepalive_timeout_ms", 1000 * KEEPALIVE_TIMEOUT_SECONDS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.lookahead_bytes", 8 << 20),
        ("grpc.http2.max_frame_size", 1 << 20),
    ]
