"""`umd top`: what a server is doing, live."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from umd_cli.output import Json, console, show, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from umd_grpc._pb.umd.admin_pb2 import State

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
SERVER = "host:port, unix:/path, or grpcs://host:port of a server with TLS."


def top(
    address: Annotated[str, typer.Argument(help=SERVER)] = "127.0.0.1:50051",
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, max=60, help="Seconds from one look to the next.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once.")] = False,
    json: Json = False,
) -> None:
    """Show sessions, memory, queues and ops per second of a running server."""
    states = watch(address, 0.0 if once or json else interval)
    if once or json:
        state = next(states)
        show(document(state), json, lambda: render(state, None))
        return
    from rich.console import Group
    from rich.live import Live

    with Live(console=console(), screen=True, auto_refresh=False) as live:
        for before, now in itertools.pairwise(itertools.chain([None], states)):
            if now is not None:
                live.update(Group(*render(now, before)), refresh=True)


def watch(address: str, interval: float) -> Iterator[State]:
    """Yields the server's states; one when the interval is 0.

    Raises:
        UmdError: the server cannot be asked, or ended.
    """
    from umd_grpc.client import Client
    from umd_grpc.client.access import Access, read_url

    access = read_url(address)[1] if "://" in address else Access(address)
    with Client(access) as client:
        yield from client.watch(interval)


def document(state: State) -> dict[str, Any]:
    """Returns a state as plain data."""
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(state, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def render(now: State, before: State | None) -> Iterable[RenderableType]:
    """Yields the tables of a state; rates are those since the state before, or since the start."""
    seconds = max(now.uptime_seconds - (before.uptime_seconds if before else 0.0), 1e-9)

    def rate(count: Callable[[State], int]) -> float:
        return (count(now) - (count(before) if before else 0)) / seconds

    yield (
        f"umd {now.version}  up {duration(now.uptime_seconds)}{'  draining' if now.draining else ''}  "
        f"{rate(lambda s: s.counters.ops):,.0f} ops/s  {rate(lambda s: s.counters.submissions):,.0f} submissions/s  "
        f"translate {now.translate_mean_us:.0f} us mean, {now.translate_p99_us:.0f} us p99  "
        f"in {size(rate(lambda s: s.counters.bytes_in))}/s  out {size(rate(lambda s: s.counters.bytes_out))}/s"
    )
    yield table(
        ("device", ">memory", ">used", ">queue", ">sessions", ">worker", ">restarts"),
        (
            (
                d.name, size(d.memory), size(d.memory_used), d.queue_depth, d.sessions, d.worker_pid or "-",
                d.worker_restarts,
            )
            for d in now.devices
        ),
    )  # fmt: skip
    yield table(
        ("identity", ">memory", ">sessions", ">in flight", ">ops"),
        (
            (
                i.name, of(size(i.memory), i.memory_quota and size(i.memory_quota)), of(i.sessions, i.sessions_quota),
                of(size(i.in_flight), i.in_flight_quota and size(i.in_flight_quota)), f"{i.ops:,}",
            )
            for i in now.identities
        ),
    )  # fmt: skip
    yield table(
        (">session", "identity", "device", "client", ">age", ">memory", ">waiting", ">submissions"),
        (
            (
                s.number, s.identity, s.device, s.client + (" (away)" if s.detached else ""), duration(s.seconds),
                size(s.memory), size(s.waiting), f"{s.submissions:,}",
            )
            for s in sorted(now.sessions, key=lambda s: -s.memory)
        ),
    )  # fmt: skip


def of(amount: object, limit: object) -> str:
    """Returns "3 of 10", or "3" without a limit."""
    return f"{amount} of {limit}" if limit else str(amount)


def size(count: float) -> str:
    """Returns bytes as people read them."""
    for unit in UNITS:
        if count < 1024 or unit == UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return ""


def duration(seconds: float) -> str:
    """Returns a time as people read it."""
    whole = int(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"
