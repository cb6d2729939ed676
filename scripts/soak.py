"""Long runs against a real server on loopback: what must stay flat stays flat, and every byte comes back.

    python scripts/soak.py              every part, as long as it takes (about three quarters of an hour)
    python scripts/soak.py --scale 0.01 the same, a hundredth as long
    python scripts/soak.py killed fuzz  some parts

Each part prints one JSON line with what it saw. The exit code is 1 when something grew, was lost or broke.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError as UnreadableError
from soak_bulk import bulk
from soak_server import MEBIBYTE, Sample, Server, served

import umd_core as umd
from umd_core.encoding import decode
from umd_core.errors import DecodeError, UmdError
from umd_core.ir import TensorDesc
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.client import Client, Request
from umd_grpc.messages import wire

SESSION = "/umd.runtime.Runtime/Session"
PROCESSES, STEADY, PAUSE_SECONDS, ROUNDS = 3, 21, 0.15, 5
FAIR = 3.0
"""How many times the quiet p99 the others' may be beside a client that floods."""
MOST = {"rss": 48 * MEBIBYTE, "shared": 0, "threads": 2, "files": 4, "segments": 0}
"""What the server may have more of after a part: allocators keep some memory."""
MOST_HERE = {"shared": 0, "threads": 16, "files": 16, "segments": 0}
"""The same of this process: gRPC's threads come and go, and end connections later; its memory is nobody's affair."""


Facts = dict[str, Any]
Part = Callable[[Server, int, random.Random], Facts]


def translates(server: Server, count: int, chance: random.Random) -> Facts:
    """Translations, some from the cache and some not."""
    shapes = [(chance.randrange(1, 64), chance.randrange(1, 64)) for _ in range(4096)]

    def requests() -> Iterator[Request]:
        for shape in itertools.islice(itertools.cycle(shapes), count):
            yield Request("Add", [TensorDesc("f32", shape)] * 2, {}, "")

    with Client(server.address) as client:
        failed = sum(isinstance(answer, UmdError) for answer in client.submit_batch(requests()))
    return {"failed": failed}


def submissions(server: Server, count: int, chance: random.Random) -> Facts:
    """Submissions of a loaded program, and now and then new buffers."""
    device: Any = umd.open_device(f"grpc://{server.address}/sim:0")
    x = np.arange(256, dtype=np.float32)
    program = device.program(umd.translate("Add", [x, x]))
    wrong = 0
    for start in range(0, count, 500):
        tensors = [device.tensor(x) for _ in range(3)]
        for _ in range(min(500, count - start)):
            device.submit(program, [tensor.binding for tensor in tensors])
        wrong += not np.array_equal(tensors[2].numpy(), x + x)
    device.close()
    return {"wrong": wrong}


def cancelled(server: Server, count: int, chance: random.Random) -> Facts:
    """Sessions whose stream is cancelled at once, or in the middle of something."""
    opening = pb.SessionRequest(frames=[pb.Frame(seq=1, open=pb.Open(protocol=1))])
    working = pb.SessionRequest(
        frames=[*opening.frames, pb.Frame(seq=2, allocate=pb.Allocate(handles=[1 | 1 << 32], sizes=[1 << 16]))]
    )
    with grpc.insecure_channel(server.address) as channel:
        method: Any = channel.stream_stream(SESSION)
        for number in range(count):
            call = method(iter([(working if number % 2 else opening).SerializeToString()]))
            if number % 4 == 3:
                next(iter(call))
            call.cancel()
    return {}


CLIENT = """
import sys, grpc
from umd_grpc._pb.umd import runtime_pb2 as pb
frames = [pb.Frame(seq=1, open=pb.Open(protocol=1))]
frames += [pb.Frame(seq=n, allocate=pb.Allocate(handles=[n | 1 << 32], sizes=[1 << 20])) for n in range(2, 34)]
def messages():
    yield pb.SessionRequest(frames=frames).SerializeToString()
    seq = 100
    while True:
        seq += 1
        write = pb.WriteRange(buffer=2 | 1 << 32, offset=0, data=bytes(1 << 16))
        yield pb.SessionRequest(frames=[pb.Frame(seq=seq, write=write)]).SerializeToString()
call = grpc.insecure_channel(sys.argv[1]).stream_stream("/umd.runtime.Runtime/Session")(messages())
next(iter(call))
print("ready", flush=True)
for _ in call: pass
"""


def killed(server: Server, count: int, chance: random.Random) -> Facts:
    """Clients that are killed with memory in hand and writes under way."""
    kept = 0
    for _ in range(count):
        client = subprocess.Popen([sys.executable, "-c", CLIENT, server.address], stdout=subprocess.PIPE)
        assert client.stdout is not None
        if chance.random() < 0.8:
            client.stdout.readline()
        time.sleep(chance.random() * 0.05)
        client.kill()
        client.wait()
        client.stdout.close()
        kept += not server.settle()
    return {"kept_memory": kept}


def sessions(server: Server, count: int, chance: random.Random) -> Facts:
    """Many idle sessions at one time."""
    before = server.sample()
    opening = pb.SessionRequest(frames=[pb.Frame(seq=1, open=pb.Open(protocol=1))]).SerializeToString()
    ends = threading.Event()

    def messages() -> Iterator[bytes]:
        yield opening
        ends.wait()

    channels = [grpc.insecure_channel(server.address, [("umd.channel", i)]) for i in range(-(-count // 100))]
    calls = [channels[i % len(channels)].stream_stream(SESSION)(messages()) for i in range(count)]
    opened = sum(pb.SessionResponse.FromString(next(iter(call))).replies[0].HasField("opened") for call in calls)
    during = server.sample()
    ends.set()
    for call in calls:
        call.cancel()
    for channel in channels:
        channel.close()
    return {"opened": opened, "missing": count - opened, "mebibytes": (during.rss - before.rss) // MEBIBYTE}


@contextlib.contextmanager
def load(*arguments: str) -> Generator[subprocess.Popen[str]]:
    """A process of `load.py` for a while; it is ready."""
    command = [sys.executable, str(Path(__file__).with_name("load.py")), *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"{arguments[0]} did not begin")
        yield process
    finally:
        process.kill()
        process.communicate()


def flood(server: Server, count: int, chance: random.Random) -> Facts:
    """64 clients in load: 63 that ask for a little now and then, with and without one that floods the server.

    Both are measured in turn, with the same sessions; each p99 is the median of those of its rounds.
    """
    quiet, loud = list[float](), list[float]()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(load("steady", server.address, str(STEADY))) for _ in range(PROCESSES)]
        for _ in range(ROUNDS):
            quiet.append(_p99(clients, count // ROUNDS))
            with load("flood", server.address):
                loud.append(_p99(clients, count // ROUNDS))
    ratio = statistics.median(loud) / statistics.median(quiet)
    return {
        "clients": PROCESSES * STEADY + 1,
        "quiet_p99_ms": [round(1e3 * seconds, 3) for seconds in quiet],
        "flooded_p99_ms": [round(1e3 * seconds, 3) for seconds in loud],
        "ratio": round(ratio, 2),
        "unfair": ratio > FAIR,
    }


def _p99(clients: list[subprocess.Popen[str]], count: int) -> float:
    """Returns the 99th percentile of the seconds that so many requests of all clients take."""
    for client in clients:
        assert client.stdin is not None
        client.stdin.write(f"{-(-count // len(clients))} {PAUSE_SECONDS}\n")
        client.stdin.flush()
    seconds = [each for client in clients if client.stdout for each in json.loads(client.stdout.readline())]
    return float(statistics.quantiles(seconds, n=100)[98])


def fuzz(server: Server, count: int, chance: random.Random) -> Facts:
    """Damaged frames for the server, and damaged command buffers for the decoder."""
    x = TensorDesc("f32", (16,))
    programs = [bytes(umd.translate(op, [x] * n)) for op, n in (("Add", 2), ("Softmax", 1), ("Neg", 1))]
    handles = [n | 1 << 32 for n in range(1, 5)]
    corpus = [
        pb.Frame(seq=2, allocate=pb.Allocate(handles=handles, sizes=[64] * 4)),
        *(pb.Frame(seq=n, load=pb.Load(handle=n | 1 << 32, program=raw)) for n, raw in enumerate(programs, 9)),
        pb.Frame(seq=20, submit=pb.Submit(program=9 | 1 << 32, buffers=handles[:3])),
        pb.Frame(seq=21, write=pb.WriteRange(buffer=handles[0], data=bytes(64))),
        pb.Frame(seq=22, read=pb.ReadRange(buffer=handles[0], size=64)),
        pb.Frame(seq=23, wait=pb.Wait(fence=pb.FenceValue(fence=handles[3], value=1), timeout_ms=1)),
        pb.Frame(seq=24, signal=pb.FenceValue(fence=handles[3], value=1)),
        pb.Frame(seq=25, free=pb.Free(buffers=handles[:1])),
    ]
    bodies = [frame.SerializeToString() for frame in corpus]
    begins = [pb.Frame(seq=1, open=pb.Open(protocol=1)), *corpus[:4]]  # so that what is damaged finds something
    opening = pb.SessionRequest(frames=begins).SerializeToString()
    unexpected, refused, messages = 0, 0, -(-count // 40)
    before = server.state().counters.frames
    with grpc.insecure_channel(server.address) as channel:
        method: Any = channel.stream_stream(SESSION)
        for _ in range(messages):
            damaged = hostile(bodies, chance)
            request = b"".join(wire.head(1, len(body)) + body for body in damaged)
            try:
                list(method(iter([opening, request]), timeout=60))
            except grpc.RpcError as error:
                unexpected += error.code() is not grpc.StatusCode.ABORTED  # type: ignore[attr-defined]  # a call
            for body in damaged:
                with contextlib.suppress(DecodeError):  # as it should be
                    decode(damage(programs[len(body) % 3], chance))
                    refused -= 1
                refused += 1
    heard = server.state().counters.frames - before - messages * len(begins)
    facts = {"frames": messages * 20, "carried_out": heard, "buffers_refused": refused, "unexpected": unexpected}
    return {**facts, "unheard": heard < messages * 18}


def hostile(bodies: list[bytes], chance: random.Random) -> list[bytes]:
    """Returns 20 damaged frames. Only the last cannot be read: it ends its session, and nobody would hear the rest."""
    readable, broken = list[bytes](), b""
    while len(readable) < 19 or not broken:
        raw = damage(chance.choice(bodies), chance)
        try:
            frame = pb.Frame.FromString(raw)
        except UnreadableError:
            broken = raw
        else:
            frame.seq = 100 + len(readable)
            readable.append(frame.SerializeToString())
    return [*readable[:19], broken]


def damage(raw: bytes, chance: random.Random) -> bytes:
    """Returns bytes with a few changes."""
    data = bytearray(raw)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(data))
        what = chance.randrange(4)
        if what == 0:
            data[at] ^= 1 << chance.randrange(8)
        elif what == 1:
            data[at] = chance.randrange(256)
        elif what == 2 and len(data) > 4:
            del data[at : at + chance.randrange(1, 4)]
        else:
            data[at:at] = chance.randbytes(chance.randrange(1, 4))
    return bytes(data)


PARTS: dict[str, tuple[Part, int]] = {
    "translates": (translates, 1_000_000),
    "submissions": (submissions, 100_000),
    "cancelled": (cancelled, 100_000),
    "killed": (killed, 500),
    "sessions": (sessions, 1_000),
    "bulk": (bulk, 4_000),
    "flood": (flood, 6_300),
    "fuzz": (fuzz, 1_000_000),
}
FAILURES = ("failed", "wrong", "kept_memory", "missing", "unexpected", "unheard", "unfair", "unshared")


def run(name: str, count: int, seed: int = 0) -> Facts:
    """Returns what a part saw: its own facts, and how the server, and this process, changed from a tenth of it on."""
    part, _ = PARTS[name]
    with served() as server:
        part(server, max(8, count // 10), random.Random(seed))  # what grows once, has grown
        server.settle()
        before, here = server.sample(), Sample.of(os.getpid())
        start = time.monotonic()
        facts = part(server, count, random.Random(seed + 1))
        told = {"part": name, "count": count, "seconds": round(time.monotonic() - start, 1)}
        settled = server.settle()
        grown, grown_here = server.sample().since(before), Sample.of(os.getpid()).since(here)
        facts = {**told, **facts, "settled": settled, "grown": grown, "grown_here": grown_here}
        facts["exit_code"] = server.stop()
        facts["faults"] = server.faults[:5]
    broken = any(facts.get(key) for key in FAILURES) or facts["faults"] or facts["exit_code"] or not settled
    flat = all(grown[key] <= most for key, most in MOST.items())
    flat_here = all(grown_here[key] <= most for key, most in MOST_HERE.items())
    return {**facts, "well": flat and flat_here and not broken}


def main() -> int:
    """Runs the parts; returns the exit code."""
    parser = argparse.ArgumentParser(description="Long runs against a server.")
    parser.add_argument("parts", nargs="*", metavar="PART", default=[], help=", ".join(PARTS))
    parser.add_argument("--scale", type=float, default=1.0)
    given = parser.parse_args()
    well = True
    for name in given.parts or PARTS:
        facts = run(name, max(1, round(PARTS[name][1] * given.scale)))
        print(json.dumps(facts), flush=True)
        well = well and facts["well"]
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
