"""The server: services put together, listening, reporting and draining."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata

import grpc
from grpc_channelz.v1 import channelz  # type: ignore[import-untyped]  # its stubs are not installed
from grpc_health.v1 import health, health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_reflection.v1alpha import reflection

from umd_core.errors import NotAuthorisedError, UmdError, UnsupportedError
from umd_grpc._pb.umd import graph_pb2, runtime_pb2, translator_pb2
from umd_grpc.limits import DEFAULT, Limits
from umd_grpc.server.graphs import GraphsService
from umd_grpc.server.host import DeviceHost
from umd_grpc.server.interceptors import Activity
from umd_grpc.server.programs import Programs
from umd_grpc.server.report import Report, log
from umd_grpc.server.runtime import RuntimeService
from umd_grpc.server.translator import Translators, TranslatorService

DEFAULT_LISTEN = ("127.0.0.1:50051",)
SERVICES = tuple(
    module.DESCRIPTOR.services_by_name[name].full_name
    for module, name in ((translator_pb2, "Translator"), (graph_pb2, "Graphs"), (runtime_pb2, "Runtime"))
)
_REPORT_SECONDS, _DRAIN_SECONDS = 1.0, 0.05
_MARGIN = 1 << 20
_CHANNELZ = "grpc.channelz.v1.Channelz"
SWITCH_SECONDS = 0.001
"""How long a thread may keep the interpreter from another: the event loop must not wait for a device's Python code."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a server is set up.

    Attributes:
        devices: names of the devices to serve; the first is the default.
        listen: addresses "host:port" (port 0: any free one) and "unix:/path".
        grace_seconds: how long a drain waits for work under way.
        allow_insecure: whether addresses beyond loopback may be listened on without TLS and a token.
        limits: what one client may ask for.
    """

    devices: tuple[str, ...] = ("sim:0",)
    listen: tuple[str, ...] = DEFAULT_LISTEN
    grace_seconds: float = 30.0
    allow_insecure: bool = False
    limits: Limits = field(default=DEFAULT)


class Server:
    """A server in the running event loop.

    Attributes:
        addresses: what it listens on, with real ports, once started.
        report: what it counts.
    """

    def __init__(self, settings: Settings) -> None:
        """Opens the devices.

        Raises:
            UmdError: a device cannot be opened, or an address must not be listened on.
        """
        check_addresses(settings.listen, allow_insecure=settings.allow_insecure)
        self._settings = settings
        self.addresses: list[str] = []
        self._hosts: dict[str, DeviceHost] = {}
        try:
            for name in settings.devices:
                self._hosts[name] = DeviceHost(name)
        except UmdError:
            self._close_hosts()
            raise
        self.report = Report(lambda: sum(host.depth for host in self._hosts.values()))
        self._activity = Activity()
        self._health = health.aio.HealthServicer()
        self._programs = Programs()
        self._services()
        self._reporter: asyncio.Task[None] | None = None

    def _services(self) -> None:
        limits = self._settings.limits
        caps = {name: host.caps for name, host in self._hosts.items()}
        size = min((c.max_buffer_bytes for c in caps.values()), default=limits.message)
        self._translator = TranslatorService(Translators(caps), self.report, limits.message)
        self._graphs = GraphsService(Translators(caps), self.report, size, self._programs.keep)
        self._runtime = RuntimeService(self._hosts, limits, self._programs, self.report, version())

    async def start(self) -> None:
        """Listens.

        Raises:
            UnsupportedError: an address cannot be listened on.
        """
        self._server = grpc.aio.server(
            interceptors=(self._activity,), options=_options(self._settings.limits), maximum_concurrent_rpcs=4096
        )
        for service in (self._translator, self._graphs, self._runtime):
            self._server.add_generic_rpc_handlers((service.handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        channelz.add_channelz_servicer(self._server)
        names = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME, _CHANNELZ)
        reflection.enable_server_reflection(names, self._server)
        for address in self._settings.listen:
            self.addresses.append(self._listen(address))
        await self._server.start()
        for name in ("", *SERVICES):
            await self._health.set(name, HealthCheckResponse.SERVING)
        self._reporter = asyncio.create_task(self._report_each_second())

    def _listen(self, address: str) -> str:
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise UnsupportedError(f"cannot listen on {address}: {error}") from error
        if address.startswith("unix:"):
            return address
        return f"{address.rpartition(':')[0]}:{port}"

    async def _report_each_second(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            line = self.report.line()
            if line is not None:
                log("load", **line)

    async def drain(self) -> None:
        """Turns health to NOT_SERVING, accepts nothing new, lets work under way finish within the grace time."""
        grace = self._settings.grace_seconds
        log("draining", calls=self._activity.count, sessions=self.report.sessions, grace_seconds=grace)
        await self._health.enter_graceful_shutdown()
        self._runtime.drain()
        stopped = asyncio.create_task(self._server.stop(grace))
        deadline = time.monotonic() + grace
        while self._activity.count and time.monotonic() < deadline:
            self._runtime.drain()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._activity.quiet(), _DRAIN_SECONDS)
        await self._server.stop(0)
        await stopped
        await self.close()

    async def close(self) -> None:
        """Ends devices and threads. Calls are over by now."""
        if self._reporter is not None:
            self._reporter.cancel()
        self._graphs.close()
        await asyncio.get_running_loop().run_in_executor(None, self._close_hosts)

    def _close_hosts(self) -> None:
        for host in self._hosts.values():
            host.close()


def version() -> str:
    """Returns the version of umd that runs."""
    try:
        return metadata.version("umd-runtime")
    except metadata.PackageNotFoundError:
        return "0"


def check_addresses(listen: Sequence[str], *, allow_insecure: bool) -> None:
    """Checks that what is reachable from elsewhere is meant to be.

    Raises:
        NotAuthorisedError: an address is beyond loopback, and that was not allowed.
    """
    for address in listen:
        if not (allow_insecure or is_local(address)):
            raise NotAuthorisedError(
                f"listening on {address} without TLS and a token lets anyone who reaches it use the devices; "
                "allow it explicitly (--allow-insecure), or reach a loopback address through ssh -L"
            )


def is_local(address: str) -> bool:
    """Returns whether an address can be reached from this machine only."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _options(limits: Limits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.message + _MARGIN),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
        ("grpc.enable_channelz", 1),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ]


async def run(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT, then drains. A second signal ends the process at once.

    Once it listens it prints one line to stdout: a JSON object with event "ready", the addresses and the devices.

    Raises:
        UmdError: it cannot be set up.
    """
    server = Server(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stop, number)
    try:
        await server.start()
    except UmdError:
        await server.close()
        raise
    ready = {"event": "ready", "listen": server.addresses, "devices": list(settings.devices), "pid": os.getpid()}
    sys.stdout.write(json.dumps(ready) + "\n")
    sys.stdout.flush()
    await stop.wait()
    await server.drain()
    log("stopped")


def _on_signal(stop: asyncio.Event, number: signal.Signals) -> None:
    if stop.is_set():
        os._exit(128 + number)
    stop.set()


def serve(
    device: str | Sequence[str] = "sim:0",
    listen: Sequence[str] = DEFAULT_LISTEN,
    *,
    grace_seconds: float = 30.0,
    allow_insecure: bool = False,
    limits: Limits = DEFAULT,
) -> None:
    """Serves devices until SIGTERM or SIGINT; see `run`. Its log, JSON lines, goes to stderr.

    Raises:
        UmdError: it cannot be set up.
    """
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.INFO)
    sys.setswitchinterval(SWITCH_SECONDS)
    devices = (device,) if isinstance(device, str) else tuple(device)
    asyncio.run(run(Settings(devices, tuple(listen), grace_seconds, allow_insecure, limits)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves as the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m umd_grpc.server.app", description="Serve devices over gRPC.")
    parser.add_argument("--device", action="append", help="a device to serve, for example sim:0; may be repeated")
    parser.add_argument("--listen", action="append", help="host:port (port 0: any) or unix:/path; may be repeated")
    parser.add_argument("--grace", type=float, default=30.0, help="seconds that SIGTERM leaves to work under way")
    parser.add_argument("--allow-insecure", action="store_true", help="listen beyond loopback without TLS and token")
    given = parser.parse_args(arguments)
    try:
        serve(
            given.device or "sim:0", given.listen or DEFAULT_LISTEN,
            grace_seconds=given.grace, allow_insecure=given.allow_insecure,
        )  # fmt: skip
    except UmdError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0
