"""Metrics in Prometheus' text format, over HTTP: gathered when they are asked for, so that they cost nothing before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from umd_core.errors import UnsupportedError
from umd_grpc.server.report import BOUNDS
from umd_grpc.server.state import DeviceState, IdentityState, ServerState

_COUNTERS = {
    "ops": ("umd_translations", "Translations answered."),
    "failures": ("umd_translation_failures", "Translations answered with an error."),
    "submissions": ("umd_submissions", "Submissions carried out."),
    "frames": ("umd_frames", "Session frames carried out."),
    "bytes_in": ("umd_received_bytes", "Payload received, in messages and transfers."),
    "bytes_out": ("umd_sent_bytes", "Payload sent, in messages and transfers."),
}
_DEVICES: dict[str, tuple[str, Callable[[DeviceState], int]]] = {
    "umd_device_memory_bytes": ("Memory of the device.", lambda device: device.memory),
    "umd_device_memory_used_bytes": ("Memory in use by sessions.", lambda device: device.memory_used),
    "umd_device_queue_depth": ("Jobs that wait for the device's thread.", lambda device: device.queue_depth),
    "umd_device_sessions": ("Sessions with the device.", lambda device: device.sessions),
}
_CLIENTS: dict[str, tuple[str, Callable[[IdentityState], int]]] = {
    "umd_client_memory_bytes": ("Device memory of an identity's sessions.", lambda found: found.usage.memory),
    "umd_client_sessions": ("Sessions of an identity.", lambda found: found.usage.sessions),
    "umd_client_in_flight_bytes": ("Bytes of an identity not carried out yet.", lambda found: found.usage.in_flight),
}


class ServerCollector(Collector):
    """Turns the server's state into metrics."""

    def __init__(self, state: Callable[[], ServerState]) -> None:
        self._state = state

    def describe(self) -> list[Metric]:
        """Returns nothing: the names are known, and asking for a state at registration would be too early."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yields every metric."""
        state = self._state()
        yield GaugeMetricFamily("umd_uptime_seconds", "Since the start.", value=state.uptime)
        yield GaugeMetricFamily("umd_draining", "1 while the server shuts down.", value=state.draining)
        yield GaugeMetricFamily("umd_sessions", "Open sessions.", value=len(state.sessions))
        for name, (metric, text) in _COUNTERS.items():
            yield CounterMetricFamily(metric, text, value=state.counters[name])
        yield _latencies(state)
        for metric, (text, value) in _DEVICES.items():
            yield _labelled(metric, text, "device", {device.name: value(device) for device in state.devices})
        restarts = {device.name: device.worker_restarts for device in state.devices}
        yield _counted("umd_device_worker_restarts", "Processes of the device after the first.", "device", restarts)
        for metric, (text, amount) in _CLIENTS.items():
            yield _labelled(metric, text, "client", {found.name: amount(found) for found in state.identities})
        yield _counted(
            "umd_client_ops", "Ops of an identity.", "client", {i.name: i.usage.ops for i in state.identities}
        )
        yield _counted("umd_cache_hits", "Look-ups that found.", "cache", {c.name: c.hits for c in state.caches})
        yield _counted("umd_cache_misses", "Look-ups that did not.", "cache", {c.name: c.misses for c in state.caches})


def _latencies(state: ServerState) -> Metric:
    counts, total = state.latencies
    running, buckets = 0, []
    for bound, count in zip((*map(str, BOUNDS), "+Inf"), counts, strict=True):
        running += count
        buckets.append((bound, running))
    return HistogramMetricFamily("umd_translate_seconds", "Time of a translation.", buckets=buckets, sum_value=total)


def _labelled(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _counted(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


class MetricsServer:
    """The HTTP endpoint /metrics, on a thread of its own.

    Attributes:
        address: "host:port" that it listens on.
    """

    def __init__(self, address: str, state: Callable[[], ServerState]) -> None:
        """Listens at "host:port"; port 0 is any free one.

        Raises:
            UnsupportedError: it cannot be listened on.
        """
        host, _, port = address.rpartition(":")
        registry = CollectorRegistry()
        registry.register(ServerCollector(state))
        try:
            server: tuple[Any, threading.Thread] = start_http_server(int(port), host.strip("[]"), registry)
        except (OSError, ValueError, OverflowError) as error:
            raise UnsupportedError(f"metrics cannot be served at {address}: {error}") from error
        self._http, self._thread = server
        self.address = f"{host}:{self._http.server_port}"

    def close(self) -> None:
        """Stops listening."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(timeout=5.0)
