"""What a server and its workers say to each other arrives as it was sent, and nothing else is taken for it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import umd_core as umd
from umd_core.device import Caps
from umd_core.dtypes import BY_CODE
from umd_core.errors import InternalError, QuotaError, UmdError
from umd_grpc.limits import DEFAULT
from umd_grpc.server.port import Setup
from umd_grpc.server.transfer import Transfer
from umd_grpc.server.worker.counting import WorkerMeter
from umd_grpc.server.worker.launch import ending
from umd_grpc.server.worker.messages import (
    read_caps,
    read_plain_error,
    read_setup,
    read_transfer,
    write_caps,
    write_error,
    write_setup,
    write_transfer,
)
from umd_grpc.server.worker.pipe import Pipe

LARGE = 8 << 20


@pytest.fixture
def pipes() -> Iterator[tuple[Pipe, Pipe]]:
    """Both ends of a pipe."""
    ends = [Pipe(end) for end in socket.socketpair()]
    yield ends[0], ends[1]
    for pipe in ends:
        pipe.close()


HEADERS = st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=20) | st.none(), max_size=4)


@given(st.lists(st.tuples(HEADERS, st.binary(max_size=300)), max_size=20))
@settings(max_examples=50, deadline=None)
def test_messages_arrive_in_order(messages: list[tuple[dict[str, Any], bytes]]) -> None:
    ours, theirs = map(Pipe, socket.socketpair())
    for header, payload in messages:
        ours.send(header, payload)
    assert [theirs.receive() for _ in messages] == messages
    ours.close()
    assert theirs.receive() is None
    theirs.close()


def test_sending_never_waits(pipes: tuple[Pipe, Pipe]) -> None:
    """Far more than the system holds is sent before anybody receives; what may change is copied."""
    ours, theirs = pipes
    data = bytearray(b"\1" * LARGE)
    ours.send({"number": 0}, memoryview(data), changes=True)
    data[:] = b"\2" * LARGE
    for number in range(1, 5):
        ours.send({"number": number}, memoryview(data))
    for number in range(5):
        assert theirs.receive() == ({"number": number}, bytes([2 if number else 1]) * LARGE)


def test_both_ends_speak_at_once(pipes: tuple[Pipe, Pipe]) -> None:
    def speak(pipe: Pipe) -> None:
        for number in range(50):
            pipe.send({"number": number}, bytes(200_000))

    threads = [threading.Thread(target=speak, args=(pipe,)) for pipe in pipes]
    for thread in threads:
        thread.start()
    for number in range(50):
        for pipe in pipes:
            assert pipe.receive() == ({"number": number}, bytes(200_000))
    for thread in threads:
        thread.join(20)


@given(st.binary(max_size=64))
@settings(max_examples=100, deadline=None)
def test_anything_else_is_the_end(raw: bytes) -> None:
    """Bytes that are no message, and messages that are cut off."""
    there, here = socket.socketpair()
    there.sendall(raw)
    there.close()
    pipe = Pipe(here)
    while (message := pipe.receive()) is not None:
        assert isinstance(message[0], dict)
    pipe.close()


@pytest.mark.parametrize("raw", [b"\xff" * 12, b"\2\0\0\0" + bytes(8) + b"[]", b"\1\0\0\0" + bytes(8) + b"{"])
def test_lengths_that_are_too_large_and_what_is_no_object(raw: bytes) -> None:
    there, here = socket.socketpair()
    there.sendall(raw)
    pipe = Pipe(here)
    assert pipe.receive() is None
    pipe.close()
    there.close()


# values


def test_values_arrive_as_they_were() -> None:
    device = umd.open_device("sim:0")
    assert read_caps(write_caps(device.caps())) == device.caps()
    device.close()
    types = frozenset({(BY_CODE[1], BY_CODE[2]), (BY_CODE[1],)})
    caps = Caps({"some": types, "every": None}, 1, 2, 3, frozenset({"queues"}))
    assert read_caps(write_caps(caps)) == caps
    setup = Setup(7, b"\0\1", "anna", DEFAULT, 2.5, b"\xff", 60)
    assert read_setup(write_setup(setup)) == setup
    transfer = Transfer(9, 1 << 40, writes=True, sha256=b"\7" * 32)
    assert read_transfer(write_transfer(transfer)) == transfer


def test_errors_keep_their_facts() -> None:
    found = read_plain_error(write_error(QuotaError("memory", 10, 0.5), "here"))
    assert isinstance(found, QuotaError)
    assert found.facts() == QuotaError("memory", 10, 0.5).facts()
    other = read_plain_error(write_error(KeyError("secret"), "here"))
    assert isinstance(other, InternalError)
    assert "secret" not in str(other)


@pytest.mark.parametrize(
    ("code", "text"),
    [(0, "exit code 0"), (3, "exit code 3"), (-9, "signal 9 (SIGKILL)"), (-200, "signal 200"), (None, "cannot be")],
)
def test_how_a_process_ended(code: int | None, text: str) -> None:
    assert text in ending(code)


@given(st.lists(st.tuples(st.sampled_from(["take", "give", "ops", "limit", "tell"]), st.integers(1, 100)), max_size=60))
def test_what_a_worker_counts_is_told_once(steps: list[tuple[str, int]]) -> None:
    """With a quota or without, and when that changes: all that was told is what was used, less what was refused."""
    told = {"memory": 0, "ops": 0}

    def take_in(header: Any) -> None:
        for name in told:
            told[name] += header.get(name, 0)

    def ask(header: Any) -> bytes:
        take_in(header)
        if told["memory"] + header.get("take_memory", 0) > 200:
            raise QuotaError("memory", 200, 1.0)
        told["memory"] += header.get("take_memory", 0)
        told["ops"] += header.get("take_ops", 0)
        return b""

    meter = WorkerMeter(1, ask, lambda header, payload: take_in(header), limited=False)
    memory = ops = 0
    for what, count in steps:
        if what == "limit":
            meter.limited = not meter.limited
        elif what == "tell":
            take_in(meter.untold())
        elif what == "give":
            count = min(count, memory)
            meter.give_memory(count)
            memory -= count
        else:
            try:
                (meter.take_memory if what == "take" else meter.take_ops)(count)
            except UmdError:
                continue
            memory, ops = (memory + count, ops) if what == "take" else (memory, ops + count)
    take_in(meter.untold())
    assert told == {"memory": memory, "ops": ops}
