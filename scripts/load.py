"""Clients of a running server, in a process of their own: what `soak.py` and tests put a server under load with.

    python scripts/load.py steady ADDRESS CLIENTS    so many clients that ask for a small result now and then
    python scripts/load.py flood ADDRESS             one client that submits work as fast as it is let

`steady` reads lines from stdin, each with a number of requests and the seconds between two of one client, on average;
it answers each with one line: a JSON array with the seconds that every request took. Both print `ready` first.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import grpc
import numpy as np

import umd_core as umd
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.client.remote import RemoteDevice
from umd_grpc.messages import wire

SMALL, LARGE = 256, 64
FRAMES, FIRST = 4_000, 1 << 21
HANDLES, PROGRAM = [n | 1 << 32 for n in (1, 2, 3)], 1 | 1 << 32


class Steady:
    """One client: a session, and the small program that it runs."""

    def __init__(self, address: str, seed: int) -> None:
        self._device: Any = RemoteDevice(address)
        self._x = np.ones(SMALL, np.float32)
        self._program = umd.translate("Add", [self._x, self._x])
        self._chance = random.Random(seed)
        self.seconds: list[float] = []
        self._ask()

    def _ask(self) -> None:
        """Runs the program on two arrays of 1 KiB and reads its result."""
        (y,) = self._device.run(self._program, [self._x, self._x])
        if y.numpy()[-1] != 2:
            raise AssertionError("1 + 1 is 2")

    def run(self, count: int, pause: float) -> None:
        """Asks so many times, after pauses that are `pause` seconds on average."""
        self.seconds = []
        for _ in range(count):
            time.sleep(self._chance.expovariate(1 / pause) if pause else 0.0)
            start = time.perf_counter()
            self._ask()
            self.seconds.append(time.perf_counter() - start)


def steady(address: str, clients: int) -> None:
    """Serves the lines of stdin; see the module."""
    all_of_them = [Steady(address, number) for number in range(clients)]
    _say("ready")
    for line in sys.stdin:
        count, pause = line.split()
        share = -(-int(count) // clients)
        threads = [threading.Thread(target=each.run, args=(share, float(pause))) for each in all_of_them]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        _say(json.dumps([seconds for each in all_of_them for seconds in each.seconds]))


def flood(address: str) -> NoReturn:
    """Submits matrix products without an end, as fast as the server reads them.

    Messages are put together beforehand, but for the frames' numbers, so that this client costs next to no time of a
    processor that the server and the other clients share with it.
    """
    frames = itertools.count(FIRST, FRAMES)
    with grpc.insecure_channel(address) as channel:
        method: Any = channel.stream_stream("/umd.runtime.Runtime/Session")
        message = _numbered(_submission())
        responses = method(itertools.chain([_setting_up()], (message(first) for first in frames)))
        _say("ready")
        for raw in responses:
            for reply in pb.SessionResponse.FromString(raw).replies:
                if reply.HasField("error"):
                    raise SystemExit(f"the flood is refused: {reply.error.message}")
    raise SystemExit("the flood has ended")


def _setting_up() -> bytes:
    """Returns the message that opens a session and makes three buffers and a program."""
    x = np.ones((LARGE, LARGE), np.float32)
    program = bytes(umd.translate("MatMul", [x, x]))
    opening = [
        pb.Frame(seq=1, open=pb.Open(protocol=1)),
        pb.Frame(seq=2, allocate=pb.Allocate(handles=HANDLES, sizes=[x.nbytes] * len(HANDLES))),
        pb.Frame(seq=3, load=pb.Load(handle=PROGRAM, program=program)),
    ]
    return pb.SessionRequest(frames=opening).SerializeToString()


def _submission() -> bytes:
    """Returns a frame that runs the program, without its number."""
    size = 4 * LARGE * LARGE
    return pb.Frame(submit=pb.Submit(program=PROGRAM, buffers=HANDLES, sizes=[size] * 3)).SerializeToString()


def _numbered(body: bytes) -> Callable[[int], bytes]:
    """Returns what makes a message of FRAMES such frames, numbered from a number on that takes four bytes."""
    head = wire.head(1, 5 + len(body)) + b"\x08"
    rows = np.tile(np.frombuffer(head + bytes(4) + body, np.uint8), (FRAMES, 1))
    shifts, more = np.array([0, 7, 14, 21]), np.array([0x80, 0x80, 0x80, 0])

    def message(first: int) -> bytes:
        numbers = np.arange(first, first + FRAMES)[:, None]
        rows[:, len(head) : len(head) + 4] = (numbers >> shifts) & 0x7F | more
        return rows.tobytes()

    return message


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Does what the arguments say."""
    if sys.argv[1] == "flood":
        flood(sys.argv[2])
    steady(sys.argv[2], int(sys.argv[3]))


if __name__ == "__main__":
    main()
