"""Driver: the few calls that separate the device's logic from who executes.

`CupyDriver` executes on an NVIDIA GPU, `HostDriver` compiles the same CUDA C for the processor. A driver is used from
one thread at a time, any thread: it never relies on a context that the thread has made current.

Work is handed over to the driver's current queue. A queue runs in the order in which work was handed over to it; work
of different queues overlaps unless an event orders it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from umd_cuda.libraries import Gemm

Call = Callable[[], None]


class DriverError(Exception):
    """The driver refused a call, or work failed.

    Attributes:
        fatal: nothing more will run: the device is lost.
    """

    reason: str
    fatal: bool

    def __init__(self, reason: str, *, fatal: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.fatal = reason, fatal


class DriverMemoryError(DriverError):
    """The driver has no room for an allocation."""


@dataclass(slots=True, eq=False)
class Memory:
    """Bytes of a driver.

    Attributes:
        address: of the first byte, as kernels see it.
        size: in bytes.
        owner: keeps the bytes alive; the driver's own affair.
    """

    address: int
    size: int
    owner: Any


class HostMemory(Memory):
    """Host bytes that somebody else owns."""

    __slots__ = ()


class MemoryInfo(NamedTuple):
    """Bytes of the device that nobody uses, and of all of it."""

    free: int
    total: int


class Geometry(NamedTuple):
    """A launch: grid and block as x, y, z, and bytes of dynamic workgroup memory."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int


class Driver(Protocol):
    """What `CudaDevice` asks of whoever executes. Ranges have been checked.

    Attributes:
        name: the device it drives, a line for people.
        maps: its memory is visible to the host: `read` gives views, and `wrap` works.
        asynchronous: calls return before the work is done, and there are several queues.
        captures: `begin_capture` and `end_capture` record work that runs again as a whole.
    """

    name: str
    maps: bool
    asynchronous: bool
    captures: bool

    def memory_info(self) -> MemoryInfo:
        """Returns how much memory the device has."""
        ...

    def allocate(self, size: int) -> Memory:
        """Returns `size` bytes, whatever is in them, that begin at a multiple of 256.

        Raises:
            DriverMemoryError: there is no room.
        """
        ...

    def free(self, memory: Memory) -> None:
        """Gives bytes back that no work under way uses."""
        ...

    def wrap(self, data: Any) -> HostMemory:
        """Returns memory over host bytes, (size,) uint8; asked of drivers that map only."""
        ...

    def write(self, memory: Memory, offset: int, data: memoryview) -> None:
        """Writes host bytes, after earlier work of the queue; `data` may change once it returns."""
        ...

    def read(self, memory: Memory, offset: int, size: int) -> memoryview:
        """Returns bytes once earlier work of the queue has made them."""
        ...

    def copy(self, destination: Memory, at: int, source: Memory, offset: int, size: int) -> None:
        """Copies bytes between disjoint ranges."""
        ...

    def fill(self, memory: Memory, offset: int, pattern: bytes, count: int) -> None:
        """Writes a pattern of 1, 2, 4 or 8 bytes `count` times, at a multiple of its size."""
        ...

    def load(self, text: str, options: Sequence[str]) -> Any:
        """Returns the module that a CUDA C source makes, from the disk when it was compiled before.

        It may still be in the making: what is wrong with it is raised by `function`.
        """
        ...

    def function(self, module: Any, name: str) -> Any:
        """Returns a kernel of a module, ready to be launched.

        Raises:
            DriverError, UmdError: the source does not compile.
        """
        ...

    def prepare(self, function: Any, geometry: Geometry, addresses: Sequence[int], block: bytes) -> Call:
        """Returns a call that launches a kernel any number of times, each on the queue that is current then.

        The kernel gets the addresses as pointers, then the bytes of `block` as one struct by value.
        """
        ...

    def gemm(self, gemm: Gemm, addresses: Sequence[int]) -> Call | None:
        """Returns a call of the driver's BLAS over bindings at these addresses; None when it has none."""
        ...

    def queue(self) -> Any:
        """Returns a new queue."""
        ...

    def use(self, queue: Any) -> None:
        """Makes a queue the current one; None stands for the one that the driver began with."""
        ...

    def record(self) -> Any:
        """Returns an event that comes when what the current queue was given so far is done."""
        ...

    def wait(self, event: Any) -> None:
        """Holds what the current queue is given from now on back until the event has come."""
        ...

    def come(self, event: Any) -> bool:
        """Returns whether an event has come. Never blocks.

        Raises:
            DriverError: work failed.
        """
        ...

    def begin_capture(self) -> None:
        """Starts to record the current queue's work instead of running it."""
        ...

    def end_capture(self) -> Call | None:
        """Returns a call that runs what was recorded, on the queue that is current then; None when there is no way."""
        ...

    def synchronise(self, event: Any = None) -> None:
        """Returns when an event has come; without one, when all queues are done.

        Raises:
            DriverError: work failed.
        """
        ...

    def close(self) -> None:
        """Gives back everything."""
        ...
