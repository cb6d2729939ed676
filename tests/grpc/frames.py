"""Frames of sessions: handles, a program that adds two buffers, and what answers say."""

from __future__ import annotations

from typing import Any

import numpy as np

import umd_core as umd
from umd_grpc._pb.umd import runtime_pb2 as pb

X = np.arange(6, dtype=np.float32)
SIZE = X.nbytes


def handle(number: int, generation: int = 1) -> int:
    """Returns a handle as clients make them."""
    return number | generation << 32


A, B, C, D = (handle(number) for number in range(1, 5))
PROGRAM, FENCE = handle(1), handle(9)


def add_program() -> bytes:
    """Returns a program that adds two arrays as large as X."""
    return bytes(umd.translate("Add", [X, X]))


def submit(a: int, b: int, out: int, **fields: Any) -> pb.Submit:
    """Returns the command that adds two buffers, of the size of X."""
    return pb.Submit(program=fields.pop("program", PROGRAM), buffers=[a, b, out], sizes=[SIZE] * 3, **fields)


def values(data: bytes) -> list[float]:
    """Returns what the bytes of a buffer mean."""
    return [float(value) for value in np.frombuffer(data, np.float32)]


def status(reply: Any) -> int:
    """Returns the status of a reply that is an error."""
    assert reply.WhichOneof("result") == "error", reply
    return int(reply.error.status)
