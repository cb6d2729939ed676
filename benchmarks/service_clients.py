"""Many clients at one time: throughput, median and 99th percentile; and what one that floods does to the others."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import grpc
from measure import report
from service_servers import Served, X, launch, python

from umd_grpc.client import Request
from umd_grpc.client.requests import Encoder, batch_messages

COUNTS = (1, 2, 8, 64)
SECONDS, BATCH = 2.0, 100
QUIET, PAUSE_SECONDS = 8, 0.02
FLOOD_GOAL = 3.0
Times = list[float]


class Load(NamedTuple):
    """Seconds of each call of each client, seconds in all, and CPU seconds of the server."""

    clients: list[Times]
    seconds: float
    server: float


Call = Callable[[Any], Awaitable[object]]


def _channel(address: str) -> Any:
    """Returns a channel with a connection of its own: a client is not another one's stream."""
    return grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])


async def translate(method: Any) -> None:
    """Translates one Add."""
    await method(ONE, timeout=60)


async def submit(method: Any) -> None:
    """Translates a message of Adds."""
    answers = method(iter([MANY]), timeout=60)
    assert [message async for message in answers]


ONE: bytes = Encoder().encode(Request("Add", [X, X]), 0)
MANY: bytes = next(iter(batch_messages([Request("Add", [X, X])] * BATCH, Encoder())))
KINDS: dict[str, tuple[str, str, int, Call]] = {
    "unary": ("unary_unary", "/umd.Translator/Translate", 1, translate),
    f"{BATCH} in a message": ("stream_stream", "/umd.Translator/SubmitBatch", BATCH, submit),
}


async def _client(address: str, kind: str, begin: asyncio.Barrier, pause: float, times: Times) -> None:
    """Calls, each after the answer to the one before, and notes the seconds of each; all clients begin together."""
    form, path, _, call = KINDS[kind]
    async with _channel(address) as channel:
        method = getattr(channel, form)(path)
        await call(method)
        await begin.wait()
        end = time.perf_counter() + SECONDS
        while (start := time.perf_counter()) < end:
            await call(method)
            times.append(time.perf_counter() - start)
            if pause:
                await asyncio.sleep(pause)


async def _load(server: Served, kind: str, count: int, pause: float = 0.0) -> Load:
    """Returns what clients that call for a while have seen, and what they have cost."""
    clients: list[Times] = [[] for _ in range(count)]
    begin = asyncio.Barrier(count + 1)
    tasks = [asyncio.ensure_future(_client(server.address, kind, begin, pause, times)) for times in clients]
    await begin.wait()
    start, used = time.perf_counter(), server.cpu_seconds()
    await asyncio.gather(*tasks)
    return Load(clients, time.perf_counter() - start, server.cpu_seconds() - used)


def percentile(times: Times) -> float:
    """Returns the 99th percentile."""
    return sorted(times)[max(0, -(-len(times) * 99 // 100) - 1)]


def clients(server: Served, stack: ExitStack) -> None:
    """Measures 1 to 64 clients, all in one process of theirs."""
    rows = []
    for kind, (_, _, ops, _) in KINDS.items():
        for count in COUNTS:
            load = asyncio.run(_load(server, kind, count))
            times = [seconds for each in load.clients for seconds in each]
            passed, used, done = load.seconds, load.server, ops * len(times)
            rows.append([kind, count, done / passed, statistics.median(times) * 1e6, percentile(times) * 1e6,
                         used / done * 1e6])  # fmt: skip
    header = ["translations", "clients", "ops/s", "p50 µs", "p99 µs", "server CPU µs an op"]
    report("service_clients", "Many clients", header, rows)


def flooded(server: Served, stack: ExitStack) -> None:
    """Measures the worst 99th percentile of quiet clients, alone and beside one that floods."""
    worst = {}
    for label in ("alone", "beside a flood"):
        with ExitStack() as own:
            if label != "alone":
                launch(python(f"flood({server.address!r})", "service_servers"), own).stdout.readline()
            found = asyncio.run(_load(server, "unary", QUIET, PAUSE_SECONDS))
            worst[label] = max(map(percentile, found.clients))
    rows = [[label, seconds * 1e6, seconds / worst["alone"]] for label, seconds in worst.items()]
    title = f"{QUIET} quiet clients, one that floods  [goal: {FLOOD_GOAL:g}]"
    report("service_flood", title, ["", "worst p99 µs", "× alone"], rows)
