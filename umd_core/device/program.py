"""A loaded command buffer: its steps, what they are bound to, and the checks of a submission."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from umd_core.commands import (
    WRITE,
    CommandBuffer,
    Copy,
    DebugInfo,
    Dispatch,
    Fill,
    Flag,
    Mark,
    Ref,
    Slot,
    SlotKind,
    Update,
)
from umd_core.device.bindings import BindingRules
from umd_core.device.protocol import Binding, Buffer
from umd_core.device.tensor import Signature
from umd_core.encoding.patch import PatchPlan
from umd_core.errors import StaleHandleError
from umd_core.ir import TensorDesc
from umd_core.kernels import Geometry

if TYPE_CHECKING:
    from umd_core.device import SequentialDevice

Call = Callable[[], None]


class Step(NamedTuple):
    """A command that does something.

    `make(bindings, parameters)` returns the call that does it; `command` is its index in program order, `mark` the last
    label before it; `origin` says which node of the graph it comes from, where that is known.
    """

    command: int
    name: str
    mark: str
    refs: tuple[Ref, ...]
    parameters: bytes
    make: Callable[[Sequence[Binding], bytes], Call]
    source: Any
    origin: DebugInfo = DebugInfo()


class Program:
    """A command buffer that one device has loaded.

    It stays bound to the buffers of its last submission: a slot that is given the same range again costs a comparison,
    and only the steps of a slot that changed are bound anew.

    Attributes:
        command_buffer: the decoded commands.
        inputs, outputs, aliases: the CommandBuffer's; empty when the program was loaded from bytes alone.
        steps, calls: what runs, in program order; `calls` fit the bindings in `bound` and the values in `words`.
        argument_count: bindings that a submission gives.
        value_count: values that a submission gives.
        signal_count: signals that the program's events name; a submission gives as many at least.
        events: for each step position, the signals that fire after it.
    """

    device: SequentialDevice
    command_buffer: CommandBuffer
    inputs: tuple[TensorDesc, ...]
    outputs: tuple[TensorDesc, ...]
    aliases: tuple[tuple[int, int], ...]
    one_shot: bool

    def __init__(
        self,
        device: SequentialDevice,
        command_buffer: CommandBuffer,
        inputs: Sequence[TensorDesc] = (),
        outputs: Sequence[TensorDesc] = (),
        aliases: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.device, self.command_buffer = device, command_buffer
        self.inputs, self.outputs, self.aliases = tuple(inputs), tuple(outputs), tuple(aliases)
        self._own: list[Buffer] = []
        self._ref = weakref.ref(self)
        slots = command_buffer.slots
        self.argument_count: int = command_buffer.argument_count
        self.handles: list[Slot] = [s for s in slots if s.kind == SlotKind.HANDLE]
        self._rules = BindingRules(slots)
        self._external = self._rules.external
        self.one_shot, self._spent = bool(command_buffer.flags & Flag.ONE_SHOT), False
        self._plan = PatchPlan(command_buffer)
        self._blocks: dict[int, bytes] = {}
        self.value_count: int = self._plan.value_count
        self.signal_count: int = 1 + max((e.signal for e in command_buffer.events), default=-1)
        self._slots: list[Binding | None] = self._allocate(slots)
        self.steps: list[Step] = _steps(device, command_buffer)
        self._index()
        self.calls: list[Call] = [_unbound] * len(self.steps)
        self._unbound = set(range(len(self.steps)))
        self._none: tuple[Any, ...] = (None,) * len(self._external)
        self.bound: tuple[Any, ...] = self._none
        self.words: tuple[int, ...] | None = None

    def _allocate(self, slots: Sequence[Slot]) -> list[Binding | None]:
        """Allocates the arena and uploads the constants."""
        constants = iter(self.command_buffer.constants)
        result: list[Binding | None] = []
        for slot in slots:
            binding = None
            if slot.kind in (SlotKind.ARENA, SlotKind.CONSTANT):
                buffer = self.device.allocate(slot.length)
                self._own.append(buffer)
                binding = Binding(buffer, 0, slot.length)
                if slot.kind == SlotKind.CONSTANT:
                    self.device.write(buffer, 0, next(constants))
            result.append(binding)
        return result

    def _index(self) -> None:
        """Finds, per slot, command and value, the steps that depend on it."""
        self._steps_of: list[list[int]] = [[] for _ in self._slots]
        self.position: dict[int, int] = {step.command: position for position, step in enumerate(self.steps)}
        for position, step in enumerate(self.steps):
            for slot in {ref.slot for ref in step.refs}:
                self._steps_of[slot].append(position)
        self.events: dict[int, list[int]] = {}
        for event in self.command_buffer.events:
            self.events.setdefault(self.position[event.command], []).append(event.signal)

    def __del__(self) -> None:
        for binding in getattr(self, "bound", ()):
            if binding is not None:
                binding[0].users.discard(self._ref)
        self.device.drop(*getattr(self, "_own", ()))

    @functools.cached_property
    def signature(self) -> Signature:
        """The arguments, prepared for `run`.

        Raises:
            InputCountError: the program was loaded from bytes alone, which do not describe them.
        """
        return Signature(self.inputs, self.outputs, self.aliases, self.argument_count)

    @property
    def arena(self) -> Buffer | None:
        """The transient memory, None when the program needs none."""
        for slot, binding in zip(self.command_buffer.slots, self._slots, strict=True):
            if slot.kind == SlotKind.ARENA and binding is not None:
                return binding.buffer
        return None

    # checks of a submission

    def spend(self) -> None:
        """Notes a submission.

        Raises:
            StaleHandleError: the program is ONE_SHOT and was submitted before.
        """
        if self.one_shot and self._spent:
            raise StaleHandleError("program", f"of {len(self.steps)} steps", "is ONE_SHOT and was submitted before")
        self._spent = True

    def check_words(self, words: Sequence[int]) -> None:
        """Checks the values of a submission.

        Raises:
            InputCountError: not as many values as the patches name.
            LimitError: a value, or value + addend, does not fit its field.
        """
        self._plan.apply(words)

    def check(self, bindings: tuple[Binding, ...]) -> None:
        """Checks one binding per external slot, in O(slots).

        Raises:
            InputCountError, StaleHandleError, BindingError: what does not fit.
        """
        self._rules.check(bindings)

    # binding

    def bind(self, bindings: tuple[Binding, ...], words: tuple[int, ...]) -> None:
        """Makes `calls` fit checked bindings and values."""
        dirty = self._unbound
        for index, new, old in zip(self._external, bindings, self.bound, strict=True):
            if new != old:
                binding = Binding(*new)
                self._slots[index] = binding
                binding.buffer.users.add(self._ref)
                dirty.update(self._steps_of[index])
        if words != self.words:
            self._blocks = self._plan.apply(words)
            dirty.update(self.position[command] for command in self._plan.commands if command in self.position)
        self.bound, self.words = bindings, words
        while dirty:
            position = dirty.pop()
            try:
                self.calls[position] = self._make(position)
            except BaseException:
                self.calls[position] = _unbound
                dirty.add(position)
                self.bound = self._none
                raise

    def _make(self, position: int) -> Call:
        step = self.steps[position]
        return step.make(self.ranges(step), self._blocks.get(step.command, step.parameters))

    def ranges(self, step: Step) -> list[Binding]:
        """Returns the bound byte range of each of a step's refs."""
        slots = self._slots
        result = []
        for ref in step.refs:
            binding = slots[ref.slot]
            if binding is None:
                raise StaleHandleError("slot", ref.slot, "is not bound")
            result.append(Binding(binding.buffer, binding.offset + ref.offset, ref.length))
        return result

    def writable(self) -> Iterable[Binding]:
        """Returns the external ranges that the program may write, as they are bound."""
        slots = self.command_buffer.slots
        for index in self._external:
            binding = self._slots[index]
            if binding is not None and slots[index].access & WRITE:
                yield binding

    def written(self, bindings: Sequence[Binding]) -> Iterable[Binding]:
        """Returns those ranges of a submission that the program may write."""
        slots = self.command_buffer.slots
        pairs = zip(self._external, bindings, strict=False)  # a submission may have been refused for their number
        return [binding for index, binding in pairs if slots[index].access & WRITE]

    def unbind(self, buffer: Buffer) -> None:
        """Lets go of a buffer that is about to be freed."""
        for index in self._external:
            binding = self._slots[index]
            if binding is not None and binding.buffer is buffer:
                self._slots[index] = None
                for position in self._steps_of[index]:
                    self.calls[position] = _unbound
                    self._unbound.add(position)
        self.bound = tuple(None if b is not None and b[0] is buffer else b for b in self.bound)


def _unbound() -> None:
    raise StaleHandleError("program", "step", "was run before it was bound")


# One builder per kind of command: (device, command buffer, command) -> name, refs, parameters, make.
_Built = tuple[str, tuple[Ref, ...], bytes, Callable[[Sequence[Binding], bytes], Call]]


def _dispatch(device: SequentialDevice, command_buffer: CommandBuffer, command: Dispatch) -> _Built | None:
    if 0 in command.launch[:3]:
        return None
    record = command_buffer.kernels[command.kernel]
    executable = device.executable(record, command.parameters)
    make = functools.partial(_bound_dispatch, device, executable, command.launch)
    return record.row.name, command.refs, command.parameters, make


def _bound_dispatch(
    device: SequentialDevice, executable: Any, launch: Geometry, bindings: Sequence[Binding], parameters: bytes
) -> Call:
    call: Call | None = device.bind(executable, parameters, bindings)
    return call or functools.partial(device.dispatch, executable, launch, parameters, bindings)


def _copy(device: SequentialDevice, command_buffer: CommandBuffer, command: Copy) -> _Built:
    def make(bindings: Sequence[Binding], parameters: bytes) -> Call:
        return functools.partial(device.copy, bindings[0], bindings[1])

    return "copy", (command.destination, command.source), b"", make


def _fill(device: SequentialDevice, command_buffer: CommandBuffer, command: Fill) -> _Built:
    def make(bindings: Sequence[Binding], parameters: bytes) -> Call:
        return functools.partial(device.fill, bindings[0], parameters)

    return "fill", (command.destination,), command.pattern, make


def _update(device: SequentialDevice, command_buffer: CommandBuffer, command: Update) -> _Built:
    def make(bindings: Sequence[Binding], parameters: bytes) -> Call:
        target = bindings[0]
        return functools.partial(device.write_memory, target.buffer.memory, target.offset, memoryview(parameters))

    return "update", (command.destination,), command.data, make


_BUILDERS: dict[type, Callable[[SequentialDevice, CommandBuffer, Any], _Built | None]] = {
    Dispatch: _dispatch,
    Copy: _copy,
    Fill: _fill,
    Update: _update,
}


def _steps(device: SequentialDevice, command_buffer: CommandBuffer) -> list[Step]:
    """Returns the commands that do something, or that an event names."""
    signalled = {event.command for event in command_buffer.events}
    steps, mark = [], ""
    for index, command in enumerate(command_buffer.commands):
        if isinstance(command, Mark):
            mark = command.label
        builder = _BUILDERS.get(type(command))
        built = builder(device, command_buffer, command) if builder else None
        if built is None:
            if index not in signalled:
                continue
            built = (type(command).__name__.lower(), (), b"", lambda bindings, parameters: _nothing)
        name, refs, parameters, make = built
        origin = command_buffer.debug[index] if command_buffer.debug else DebugInfo()
        steps.append(Step(index, name, mark, refs, parameters, make, command, origin))
    return steps


def _nothing() -> None:
    """What a command that an event names, and that does nothing, does."""
