"""CheckedHostDriver: the processor as a device, every launch in the checked build."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Generator, Sequence
from concurrent.futures import Future

from umd_core.errors import InternalError
from umd_cuda import host
from umd_cuda.checked_launch import CheckedLaunch, Expected
from umd_cuda.driver import Call, Geometry
from umd_cuda.host_driver import HostDriver

_ENTRY = re.compile(r"__global__ void (\w+)\(")


class CheckedHostDriver(HostDriver):
    """A HostDriver that is told, before each launch is prepared, what the launch may touch.

    Args:
        orders: how many random orders of threads every launch runs in, beside the launch order.
    """

    def __init__(self, options: Sequence[str] = (), orders: int = 0) -> None:
        super().__init__(options)
        self._orders = orders
        self._expected: Expected | None = None
        self._prepared = 0
        self.name: str = self.name + f", checked{f', {orders} thread orders' if orders else ''}"

    @contextlib.contextmanager
    def expecting(self, expected: Expected) -> Generator[None]:
        """Says what the launch that is prepared inside may touch and has to write."""
        self._expected, self._prepared = expected, 0
        try:
            yield
        finally:
            self._expected = None

    def load(self, text: str, options: Sequence[str]) -> Future[host.HostModule]:
        entry = _ENTRY.search(text)
        name = f"{entry[1] if entry else 'kernel'}.cu"
        build = functools.partial(host.compile, text, (*options, *self._options), name=name, checked=True)
        return self._compilers.submit(build)

    def prepare(self, function: host.HostFunction, geometry: Geometry, addresses: Sequence[int], block: bytes) -> Call:
        if self._expected is None:
            raise InternalError(
                f"the checked launch of {function.name} was prepared without a word on what it may touch"
            )
        number, self._prepared = self._prepared, self._prepared + 1
        return CheckedLaunch(function, geometry, addresses, block, self._expected, number, self._orders)
