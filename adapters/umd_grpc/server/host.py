"""A device of the server and the one thread that it lives on."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from umd_core.device import Caps, SequentialDevice
from umd_core.errors import UnsupportedError
from umd_core.registry import open_device
from umd_grpc.server.report import log

Result = TypeVar("Result")
Job = Callable[[], None]


class DeviceHost:
    """A device on its own thread, where every call to it is made.

    Attributes:
        name: as clients name it, for example "sim:0".
        device: to be used in jobs only.
        caps: what it can do.
        epoch: changes when everything on the device was lost.
    """

    def __init__(self, name: str) -> None:
        """Opens the device.

        Raises:
            UmdError: it cannot be opened, or not hosted.
        """
        self.name, self.epoch = name, time.time_ns()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"umd-device-{name}", daemon=True)
        self._thread.start()
        opened: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.post(lambda: opened.put(_opened(name)))
        found = opened.get()
        if isinstance(found, BaseException):
            self.close()
            raise found
        self.device: SequentialDevice = found[0]
        self.caps: Caps = found[1]

    @property
    def depth(self) -> int:
        """Jobs that wait."""
        return self._jobs.qsize()

    def post(self, job: Job) -> None:
        """Runs a job on the device's thread, after those posted before. Callable from any thread."""
        self._jobs.put(job)

    async def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Returns what a function returns on the device's thread, or raises what it raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def job() -> None:
            try:
                result = function(*arguments)
            except BaseException as error:  # noqa: BLE001  # it belongs to the caller
                loop.call_soon_threadsafe(_settle, future, None, error)
            else:
                loop.call_soon_threadsafe(_settle, future, result, None)

        self.post(job)
        return await future

    def close(self) -> None:
        """Ends the thread once the jobs posted so far are done, and closes the device on it."""
        if hasattr(self, "device"):
            self.post(self.device.close)
        self._jobs.put(None)
        self._thread.join(timeout=10.0)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:  # noqa: BLE001  # one job's fault must not end the device
                log("internal_error", where=self.name, traceback=traceback.format_exc())


def _opened(name: str) -> Any:
    try:
        device = open_device(name)
        if not isinstance(device, SequentialDevice):
            device.close()
            raise UnsupportedError("cannot be served: it does not run on its owner's thread", device=name)
        return device, device.caps()
    except Exception as error:  # noqa: BLE001  # it is raised where the device was wanted
        return error


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
