"""Finds backends through the entry-point group `umd.backends`, and opens devices by name."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType
from typing import Any

import pluggy

from umd_core import hookspecs
from umd_core.device import API, Available, BackendInfo, CompositeDevice, Device, SequentialDevice, Unavailable
from umd_core.errors import UmdError, UnsupportedError

GROUP = "umd.backends"
PROBE_SECONDS = 10.0
SLOW_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """A line of `umd devices`: a device, or a backend or plugin that does not work and why.

    Attributes:
        name: "backend:ordinal" of an available device, otherwise the backend's or plugin's name.
        backend: name of the backend, "" when the plugin itself failed.
        plugin: entry point that brought it.
        available: whether `open_device(name)` may be tried.
        detail: a line about the device, or the reason.
        seconds: how long the probe took.
    """

    name: str
    backend: str
    plugin: str
    available: bool
    detail: str
    priority: int = 0
    seconds: float = 0.0

    @property
    def slow(self) -> bool:
        """Whether the probe took so long that the listing suffers."""
        return self.seconds >= SLOW_SECONDS


class Registry:
    """Backends by name. Plugins are imported at the first question, one by one; a failure of one is kept.

    Attributes:
        failures: entries for plugins and backends that could not be used.
    """

    def __init__(self, group: str = GROUP) -> None:
        self._group = group
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._backends: dict[str, tuple[BackendInfo, str]] = {}
        self.failures: list[DeviceEntry] = []
        self._discovered = False

    @property
    def backends(self) -> dict[str, BackendInfo]:
        """Usable backends by name, those of highest priority first."""
        self._discover()
        infos = sorted((info for info, _ in self._backends.values()), key=lambda info: -info.priority)
        return {info.name: info for info in infos}

    def _discover(self) -> None:
        if self._discovered:
            return
        self._discovered = True
        for point in sorted(metadata.entry_points(group=self._group), key=lambda p: (p.name, p.value)):
            self._try(point.name, functools.partial(self._load, point))

    def _load(self, point: metadata.EntryPoint) -> None:
        self.register(point.load(), point.name)

    def _try(self, plugin: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  # one plugin's fault never stops the others
            self._fail(plugin, "", f"{type(error).__name__}: {error}")

    def _fail(self, plugin: str, backend: str, reason: str) -> None:
        self.failures.append(DeviceEntry(backend or plugin, backend, plugin, False, reason))

    def register(self, plugin: ModuleType | object, name: str) -> None:
        """Adds a plugin by hand.

        Raises:
            PluginValidationError: it implements a hook that does not exist.
        """
        self._manager.register(plugin, name)
        try:
            self._manager.check_pending()
        except pluggy.PluginValidationError:
            self._manager.unregister(name=name)
            raise
        for hook in self._manager.hook.umd_register_backends.get_hookimpls():
            if hook.plugin is plugin:
                infos: Any = hook.function()
                for info in infos:
                    self._add(info, name)

    def _add(self, info: BackendInfo, plugin: str) -> None:
        major, minor = info.api
        if major != API[0] or minor > API[1]:
            reason = f"it was written for plugin interface {major}.{minor}, this umd has {API[0]}.{API[1]}"
            self._fail(plugin, info.name, reason)
        elif info.name in self._backends:
            self._fail(
                plugin, info.name, f"plugin {self._backends[info.name][1]!r} already brings backend {info.name!r}"
            )
        else:
            self._backends[info.name] = (info, plugin)

    def devices(self, timeout: float = PROBE_SECONDS) -> list[DeviceEntry]:
        """Returns every device of every backend, and every failure; probes run side by side.

        A probe that takes more than `timeout` seconds counts as unavailable.
        """
        infos = [self._backends[name] for name in self.backends]
        probes = [_Probe(info) for info, _ in infos]
        deadline = time.monotonic() + timeout
        entries = []
        for (info, plugin), probe in zip(infos, probes, strict=True):
            found, seconds = probe.result(deadline, timeout)
            if isinstance(found, Unavailable):
                entries.append(DeviceEntry(info.name, info.name, plugin, False, found.reason, info.priority, seconds))
                continue
            entries += [
                DeviceEntry(f"{info.name}:{ordinal}", info.name, plugin, True, line, info.priority, seconds)
                for ordinal, line in enumerate(found.devices)
            ]
        return [*entries, *self.failures]

    def default(self, timeout: float = PROBE_SECONDS) -> str:
        """Returns the name of the first available device of highest priority.

        Raises:
            UnsupportedError: there is none.
        """
        entries = self.devices(timeout)
        for entry in entries:
            if entry.available:
                return entry.name
        reasons = "; ".join(f"{entry.name}: {entry.detail}" for entry in entries) or "no backend is installed"
        raise UnsupportedError(f"no device is available ({reasons})")

    def open(self, name: str) -> Device:
        """Returns the device that a name stands for; see `open_device`."""
        names = split_names(name)
        if len(names) == 1:
            return self._open(names[0])
        opened: list[Any] = []
        try:
            for part in names:
                opened.append(self._open(part))  # what was opened is closed when a later one fails
                if not isinstance(opened[-1], SequentialDevice):
                    raise UnsupportedError("cannot be part of a device list", device=part)
            return CompositeDevice(opened)
        except BaseException:
            for device in opened:
                device.close()
            raise

    def _open(self, name: str) -> Device:
        backend, _, rest = name.partition(":")
        infos = self.backends
        if backend not in infos:
            raise UnsupportedError(self._unknown(backend, infos), device=name)
        try:
            return infos[backend].open(rest)
        except UmdError:
            raise
        except Exception as error:
            raise UnsupportedError(f"cannot be opened: {type(error).__name__}: {error}", device=name) from error

    def _unknown(self, backend: str, infos: dict[str, BackendInfo]) -> str:
        for failure in self.failures:
            if backend in (failure.backend, failure.plugin):
                return f"backend {backend!r} cannot be used: {failure.detail}"
        known = ", ".join(infos) or "none"
        return (
            f"there is no backend {backend!r}; known: {known}. Install the package that brings it, "
            f"with an entry point in the group {self._group!r}"
        )


class _Probe:
    """A probe on its own thread, so that one that hangs stops nobody."""

    def __init__(self, info: BackendInfo) -> None:
        self._found: Available | Unavailable | None = None
        self._seconds = 0.0
        self._thread = threading.Thread(target=self._run, args=(info,), daemon=True, name=f"umd-probe-{info.name}")
        self._thread.start()

    def _run(self, info: BackendInfo) -> None:
        start = time.perf_counter()
        try:
            found = info.probe()
        except Exception as error:  # noqa: BLE001  # a probe's fault is what the listing shows
            found = Unavailable(f"{type(error).__name__}: {error}")
        self._seconds = time.perf_counter() - start
        self._found = found

    def result(self, deadline: float, timeout: float) -> tuple[Available | Unavailable, float]:
        """Returns what the probe said and the seconds it took."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._found is None:
            return Unavailable(f"its probe took more than {timeout:g} s"), timeout
        return self._found, self._seconds


def split_names(names: str) -> list[str]:
    """Returns the device names of a priority list "a:0,b:0". A URL ("grpc://host/…") takes everything that follows."""
    result = []
    rest = names
    while rest:
        head, _, tail = rest.partition(",")
        if "://" in head:
            head, tail = rest, ""
        result.append(head.strip())
        rest = tail
    return result or [""]


@functools.cache
def registry() -> Registry:
    """Returns the process's registry of installed backends."""
    return Registry()


def open_device(name: str) -> Device:
    """Returns a device, opened anew: "sim:0", "grpc://host:50051/sim:0", or a priority list "mine:0,sim:0".

    What stands before the first colon names the backend, what follows goes to it. With `UMD_CAPTURE=DIR` in the
    environment, everything that the device is asked to do is written into a folder under DIR (docs/bring-up.md).

    Raises:
        UnsupportedError: no such backend, or it cannot open the device.
    """
    device = registry().open(name)
    if not os.environ.get("UMD_CAPTURE"):
        return device
    from umd_core.capture.environment import captured  # noqa: PLC0415  # few runs are captured

    return captured(device)


def devices(timeout: float = PROBE_SECONDS) -> list[DeviceEntry]:
    """Returns every device of every installed backend, and every backend or plugin that does not work, with reasons."""
    return registry().devices(timeout)


def default_device(timeout: float = PROBE_SECONDS) -> str:
    """Returns the name of the first available device of highest priority."""
    return registry().default(timeout)
