"""The server: services put together, listening, reporting and draining."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from typing import TYPE_CHECKING, Any

import grpc
from grpc_channelz.v1 import channelz  # type: ignore[import-untyped]  # its stubs are not installed
from grpc_health.v1 import health, health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_reflection.v1alpha import reflection

from umd_core.errors import NotAuthorisedError, UmdError
from umd_grpc import telemetry
from umd_grpc._pb.umd import admin_pb2, graph_pb2, runtime_pb2, translator_pb2
from umd_grpc.config.arguments import from_arguments
from umd_grpc.server import access
from umd_grpc.server.admin import AdminService
from umd_grpc.server.allocator import Allocator
from umd_grpc.server.courtesy import PoliteLoop
from umd_grpc.server.graphs import GraphsService
from umd_grpc.server.host import DeviceHost
from umd_grpc.server.identity import Accounts
from umd_grpc.server.interceptors import Activity
from umd_grpc.server.observe import Observer
from umd_grpc.server.packing import Packing
from umd_grpc.server.port import DevicePort
from umd_grpc.server.programs import Programs
from umd_grpc.server.protection import Protection
from umd_grpc.server.report import Report, log
from umd_grpc.server.runtime import RuntimeService
from umd_grpc.server.settings import Settings
from umd_grpc.server.translator import Translators, TranslatorService
from umd_grpc.server.weights import open_weights
from umd_grpc.server.worker import WorkerPort, in_worker

if TYPE_CHECKING:
    from umd_grpc.server.metrics import MetricsServer

SERVICES = tuple(
    module.DESCRIPTOR.services_by_name[name].full_name
    for module, name in (
        (translator_pb2, "Translator"),
        (graph_pb2, "Graphs"),
        (runtime_pb2, "Runtime"),
        (admin_pb2, "Admin"),
    )
)
_REPORT_SECONDS, _DRAIN_SECONDS = 1.0, 0.05
_MARGIN = 1 << 20
_CHANNELZ = "grpc.channelz.v1.Channelz"
_NOBODY = "ExecuteBatchError"
"""What gRPC raises, a class that it does not export, when the other end of a call is gone."""
SWITCH_SECONDS = 0.001
"""How long a thread may keep the interpreter from another: the event loop must not wait for a device's Python code."""


class Server:
    """A server in the running event loop.

    Attributes:
        addresses: what it listens on, with real ports, once started.
        report: what it counts.
        observer: looks at it.
    """

    def __init__(self, settings: Settings) -> None:
        """Opens the devices.

        Raises:
            UmdError: a device cannot be opened, or an address must not be listened on.
        """
        self._settings, self._protection = settings, Protection(settings)
        self._weights = open_weights(settings.weights.dir, settings.weights.size)
        self.addresses: list[str] = []
        self._hosts: dict[str, DevicePort] = {}
        self.report = Report(lambda: sum(host.depth for host in self._hosts.values()))
        self._programs, self._accounts = Programs(), Accounts()
        try:
            self._open_devices()
        except UmdError:
            self._close_hosts()
            raise
        self._activity = Activity()
        self._health = health.aio.HealthServicer()
        self._services()
        self._tasks: list[asyncio.Task[None]] = []
        self._allocator = Allocator()
        self._metrics: MetricsServer | None = None

    def _open_devices(self) -> None:
        """Opens the devices, those that have processes of their own at the same time."""
        settings, spans = self._settings, telemetry.Spans() if self._settings.traces else None
        seconds, workers = settings.limits.submission_seconds, list[WorkerPort]()
        for name in settings.devices:
            if in_worker(settings.workers.use, name):
                pause = settings.workers.pause
                port = WorkerPort(name, self._programs, self.report, seconds, spans=spans, most_pause=pause)
                workers.append(port)
                self._hosts[name] = port
            else:
                self._hosts[name] = host = DeviceHost(name, self._programs, self.report, seconds)
                host.spans = spans
                loop = asyncio.get_running_loop()
                host.courtesy = loop.courtesy() if isinstance(loop, PoliteLoop) else None
        for port in workers:
            port.wait()

    def _services(self) -> None:
        limits = self._settings.limits
        caps = {name: host.caps for name, host in self._hosts.items()}
        size = min((c.max_buffer_bytes for c in caps.values()), default=limits.message)
        self._translator = TranslatorService(Translators(caps), self.report, limits.message, self._accounts)
        self._graphs = GraphsService(Translators(caps), self.report, size, self._programs.keep, self._accounts)
        self._runtime = RuntimeService(
            self._hosts, limits, self.report, version(), self._accounts, self._settings.shared_memory, self._weights
        )
        self.observer = Observer(
            version(), self.report, self._accounts, self._hosts, self._runtime.sessions,
            {"translations": self._translator.looked_up},
        )  # fmt: skip
        self._admin = AdminService(self.observer.state)

    async def start(self) -> None:
        """Listens.

        Raises:
            UnsupportedError: an address cannot be listened on.
        """
        traced = (telemetry.server_interceptor(),) if self._settings.traces else ()
        self._server = grpc.aio.server(
            interceptors=(*traced, Packing(), self._activity, *self._protection.interceptors()),
            options=_options(self._settings), maximum_concurrent_rpcs=4096,
        )  # fmt: skip
        own_services = (self._translator, self._graphs, self._runtime, self._admin)
        services: list[Any] = [*own_services, *self._protection.services()]
        for service in services:
            self._server.add_generic_rpc_handlers((service.handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        channelz.add_channelz_servicer(self._server)
        own = SERVICES if self._protection.guard is None else (*SERVICES, access.SERVICE)
        names = (*own, health.SERVICE_NAME, reflection.SERVICE_NAME, _CHANNELZ)
        reflection.enable_server_reflection(names, self._server)
        for address in self._settings.listen:
            self.addresses.append(self._protection.listen(self._server, address))
        if self._settings.metrics:
            from umd_grpc.server.metrics import MetricsServer  # noqa: PLC0415  # its package is an extra

            self._metrics = MetricsServer(self._settings.metrics, self.observer.state)
        await self._server.start()
        for name in ("", *SERVICES):
            await self._health.set(name, HealthCheckResponse.SERVING)
        self._tasks.append(asyncio.create_task(self._report_each_second()))
        if self._protection.guard is not None:
            self._protection.guard.on_revoked(self._revoked)
            self._tasks.append(asyncio.create_task(self._protection.guard.watch()))

    def _revoked(self, name: str, key: str) -> None:
        """Ends sessions that outlive their streams; the guard has ended the calls."""
        self._runtime.end_sessions(name, NotAuthorisedError(f"the access of {name} was revoked"))

    @property
    def metrics(self) -> str:
        """Where the metrics are, "" without them."""
        return self._metrics.address if self._metrics is not None else ""

    def join_line(self) -> str:
        """Returns the line with which the first client joins; "" when somebody has, or nobody needs to."""
        return self._protection.first_join_line(self.addresses)

    async def _report_each_second(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            line = self.report.line()
            if line is not None:
                log("load", **line)
            await self._allocator.look(self.report.bytes_in + self.report.bytes_out)

    async def drain(self) -> None:
        """Turns health to NOT_SERVING, accepts nothing new, lets work under way finish within the grace time."""
        grace = self._settings.grace_seconds
        self.observer.draining = self._activity.draining = True
        log("draining", calls=self._activity.count, sessions=self.report.sessions, grace_seconds=grace)
        await self._health.enter_graceful_shutdown()
        self._runtime.drain()
        deadline = time.monotonic() + grace
        while self._activity.count and time.monotonic() < deadline:
            self._runtime.drain()
            with suppress(TimeoutError):  # sessions end by and by: look again
                await asyncio.wait_for(self._activity.quiet(), _DRAIN_SECONDS)
        await self._server.stop(0)
        await self.close()

    async def close(self) -> None:
        """Ends devices and threads. Calls are over by now."""
        for task in self._tasks:
            task.cancel()
        self._graphs.close()
        if self._metrics is not None:
            self._metrics.close()
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


def _options(settings: Settings) -> list[tuple[str, int]]:
    alive = settings.keepalive
    return [
        ("grpc.max_receive_message_length", settings.limits.message + _MARGIN),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
        ("grpc.enable_channelz", 1),
        ("grpc.keepalive_time_ms", round(1e3 * alive.time)),
        ("grpc.keepalive_timeout_ms", round(1e3 * alive.timeout)),
        ("grpc.http2.ping_timeout_ms", round(1e3 * alive.timeout)),  # else it waits 60 s, whatever the other one says
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
        join = server.join_line()
    except UmdError:
        await server.close()
        raise
    ready = {"event": "ready", "listen": server.addresses, "devices": list(settings.devices), "pid": os.getpid()}
    if join:
        ready["join"] = join
    if server.metrics:
        ready["metrics"] = server.metrics
    sys.stdout.write(json.dumps(ready) + "\n")
    sys.stdout.flush()
    await stop.wait()
    await server.drain()
    log("stopped")


def _on_signal(stop: asyncio.Event, number: signal.Signals) -> None:
    if stop.is_set():
        os._exit(128 + number)
    stop.set()


def serve(settings: Settings) -> None:
    """Serves devices until SIGTERM or SIGINT; see `run`. Its log, JSON lines, goes to stderr.

    Raises:
        UmdError: it cannot be set up.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_concerns_the_server)
    logging.basicConfig(handlers=[handler], format="%(message)s", level=logging.INFO)
    sys.setswitchinterval(SWITCH_SECONDS)
    Allocator().keep()
    with asyncio.Runner(loop_factory=PoliteLoop) as runner:
        runner.run(run(settings))


def _concerns_the_server(record: logging.LogRecord) -> bool:
    """Returns whether a line belongs in the log: not gRPC's own about an answer that nobody was there to take."""
    return record.exc_info is None or type(record.exc_info[1]).__name__ != _NOBODY


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves as the command line says; returns the exit code."""
    try:
        serve(Settings.of(from_arguments(arguments)))
    except (UmdError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0
