"""Weights offered to a server by their hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from umd_core.device import Buffer
from umd_core.device.tensor import as_bytes
from umd_grpc._pb.umd import runtime_pb2 as pb

LEAST = 64 << 10
"""Bytes below which a hash saves nothing."""


class Offer(NamedTuple):
    """Bytes for byte `offset` of a buffer, and their sha256; b"" when they are not worth one."""

    buffer: Buffer
    offset: int
    data: memoryview
    sha256: bytes


def offers(writes: Sequence[tuple[Buffer, int, Any]], limits: pb.Limits, *, known: bool) -> Iterator[list[Offer]]:
    """Yields writes in pieces that are one transfer each, as many together as may be under way at one time.

    Args:
        writes: (buffer, offset, data).
        limits: the server's.
        known: whether it keeps weights at all.
    """
    most, batch = max(1, limits.wait_count // 2), list[Offer]()
    for buffer, offset, data in writes:
        view = as_bytes(data)
        for at in range(0, len(view), limits.transfer_size) if view else ():
            piece = view[at : at + limits.transfer_size]
            sha256 = hashlib.sha256(piece).digest() if known and len(piece) >= LEAST else b""
            batch.append(Offer(buffer, offset + at, piece, sha256))
            if len(batch) == most:
                yield batch
                batch = []
    if batch:
        yield batch
