"""What every backend offers: Caps, Buffer, Binding, Ticket, Device, BackendInfo."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from umd_core.commands import CommandBuffer
from umd_core.dtypes import DType
from umd_core.kernels import KernelRecord

if TYPE_CHECKING:
    from umd_core.device.tensor import Tensor

API = (1, 0)
"""Version of the plugin interface: a backend of the same major and no later minor works."""


@dataclass(frozen=True, slots=True)
class Caps:
    """What a device can do, truthfully.

    Attributes:
        kernels: for each kernel name the sets of type arguments it runs, or None for every combination of the table.
        memory: bytes of device memory.
        max_work: element operations allowed in one launch.
        max_buffer_bytes: largest encoded command buffer.
        flags: optional abilities: "map" (host-visible buffers), "profile", "trim", "prepare", "explain" (see
            `Explains`), "estimate" (see `Estimates`), "queues" (submissions to different queues overlap, and go on
            after `submit`: their tickets have to be looked at).
    """

    kernels: Mapping[str, frozenset[tuple[DType, ...]] | None]
    memory: int = 1 << 40
    max_work: int = 1 << 44
    max_buffer_bytes: int = 256 << 20
    flags: frozenset[str] = frozenset()

    def supports(self, name: str, types: tuple[DType, ...]) -> bool:
        """Returns whether the device runs this kernel with these type arguments."""
        if name not in self.kernels:
            return False
        allowed = self.kernels[name]
        return allowed is None or types in allowed


class Poison(NamedTuple):
    """Bytes [start, end) of a buffer that failed work should have written.

    `layout` tells which: () means all, else the first byte, shape and strides of the box that was to be written.
    """

    start: int
    end: int
    error: BaseException
    layout: tuple[object, ...] = ()


class Buffer:
    """Device bytes. `memory` belongs to the backend; `size` is in bytes.

    Attributes:
        alive: False once freed.
        charged: bytes that count against the device's memory (0 for wrapped host memory).
        scope: on whose account they are.
        poison: ranges that failed work should have written.
        users: weak references to the programs that hold on to this buffer between submissions.
    """

    __slots__ = ("__weakref__", "alive", "charged", "memory", "poison", "scope", "size", "users")

    def __init__(self, size: int, memory: Any) -> None:
        self.size: int = size
        self.memory: Any = memory
        self.alive: bool = True
        self.charged: int = 0
        self.scope: Hashable = None
        self.poison: list[Poison] = []
        self.users: set[Any] = set()

    def __repr__(self) -> str:
        return f"Buffer(size={self.size}{'' if self.alive else ', freed'})"


class Binding(NamedTuple):
    """A range of bytes of a buffer."""

    buffer: Buffer
    offset: int
    size: int


class DeviceFence(Protocol):
    """A counter of a device that only grows (u64, from 0). Submissions wait for its values and signal them."""

    @property
    def value(self) -> int:
        """The highest value signalled so far."""
        ...

    def signal(self, value: int) -> None:
        """Raises the counter to `value`, from the host; work that waited for it runs."""
        ...

    def wait(self, value: int, timeout: float | None = None) -> None:
        """Returns when the counter has reached `value`.

        Raises:
            CancelledError: `timeout` seconds passed, or nothing that was submitted will signal the value.
        """
        ...


class FenceValue(NamedTuple):
    """A fence of the device and a value of its counter: to wait for, or to signal."""

    fence: Any
    value: int


class Ticket(Protocol):
    """A submission in flight."""

    def done(self) -> bool:
        """Returns whether the work has ended, well or badly. Never blocks."""
        ...

    def wait(self, timeout: float | None = None) -> None:
        """Returns when the work is done.

        Raises:
            UmdError: what went wrong in it.
            CancelledError: `timeout` seconds passed, or nothing that was submitted can ever start the work.
        """
        ...


class Device(Protocol):
    """One accelerator. Queues run in submission order; `read` and `write` follow earlier submissions."""

    name: str

    def caps(self) -> Caps:
        """Returns what the device can do."""
        ...

    def allocate(self, size: int) -> Buffer:
        """Returns a new buffer of `size` bytes.

        Raises:
            OutOfMemoryError: the device has no room for it.
        """
        ...

    def free(self, buffer: Buffer) -> None:
        """Frees a buffer; work that was submitted with it still finishes."""
        ...

    def write(self, buffer: Buffer, offset: int, data: Any) -> None:
        """Writes bytes, given as anything that has the buffer protocol, at byte `offset`."""
        ...

    def read(self, buffer: Buffer, offset: int, size: int) -> memoryview:
        """Returns `size` bytes from byte `offset` on; valid until the range is next written or freed.

        Raises:
            PoisonedError: work that failed should have written them.
        """
        ...

    def load(self, encoded: bytes | CommandBuffer) -> Any:
        """Returns the validated program, ready to be submitted any number of times.

        Raises:
            DecodeError: the bytes break a rule.
            UnsupportedError: the device lacks one of its kernels.
        """
        ...

    def load_kernel(self, record: KernelRecord, parameters: bytes) -> Any:
        """Returns an executable for one parameter block; only its unpatchable fields may be relied on."""
        ...

    def fence(self) -> DeviceFence:
        """Returns a new fence, at 0."""
        ...

    def submit(
        self,
        program: Any,
        bindings: Sequence[Binding],
        values: Sequence[int] = (),
        waits: Sequence[FenceValue] = (),
        signals: Sequence[FenceValue] = (),
        queue: int = 0,
    ) -> Ticket:
        """Returns a ticket for running the program over the bindings, one per argument slot.

        `values` are the words that the program's patches name. The work starts when every wait is met, after what was
        submitted to the same queue before. Signals that the program's events name fire after their command, the
        others at the end, even when the work fails.

        Raises:
            BindingError, StaleHandleError, InputCountError, LimitError: the bindings or values do not fit.
        """
        ...

    def run(self, command_buffer: CommandBuffer, inputs: Sequence[Any]) -> list[Tensor]:
        """Returns the outputs of a command buffer, once it has run over host arrays or tensors of this device."""
        ...

    def tensor(self, array: Any) -> Tensor:
        """Returns a copy of a host array on the device."""
        ...

    def close(self) -> None:
        """Frees everything that the device holds."""
        ...


@dataclass(frozen=True, slots=True)
class Available:
    """The backend works here. `devices` has a line about each device; its position is the ordinal."""

    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The backend does not work here, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """A backend as its plugin registers it.

    Attributes:
        name: what stands before the first colon of "name:rest".
        probe: cheap; says whether the backend works here.
        open: gets what follows the first colon and returns the device.
        priority: the available backend of highest priority is the default.
        api: version of the plugin interface that it was written for.
    """

    name: str
    probe: Callable[[], Available | Unavailable]
    open: Callable[[str], Device]
    priority: int = 0
    api: tuple[int, int] = API
