"""CheckedDevice: cuda-cpu with every launch in the checked build, each binding in memory of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence

from umd_core.device import Binding, FenceValue, Program
from umd_core.device.program import Step
from umd_cuda.checked_driver import CheckedHostDriver
from umd_cuda.checked_launch import Expected, LaunchFaultError, beyond, expected_of
from umd_cuda.device import CudaDevice, Executable, Sources
from umd_cuda.driver import Call
from umd_cuda.options import Options


class CheckedDevice(CudaDevice):
    """A device that says beside every launch what it may touch; its driver compares that with what happens.

    The declaration is made of the program's bindings and the kernel table alone, so it does not share the faults of
    the code that works out addresses, geometry and parameter blocks.
    """

    driver: CheckedHostDriver  # pyright: ignore[reportIncompatibleVariableOverride]  # it is set once

    def __init__(self, driver: CheckedHostDriver, name: str, options: Options, sources: Sources) -> None:
        super().__init__(driver, name, options, sources)
        self._program: Program | None = None

    def bind(self, executable: Executable, parameters: bytes, bindings: Sequence[Binding]) -> Callable[[], None]:
        with self.driver.expecting(self.declare(executable, parameters, bindings)):
            return _Named(self, super().bind(executable, parameters, bindings))

    def declare(self, executable: Executable, parameters: bytes, bindings: Sequence[Binding]) -> Expected:
        """Returns what a launch may touch and has to write.

        Raises:
            LaunchFaultError: a binding that reaches beyond the memory of its buffer.
        """
        record = executable.record
        names = [operand.name for operand in record.row.operands]
        for name, (buffer, offset, size) in zip(names, bindings, strict=True):
            if offset + size > buffer.memory.size:
                raise LaunchFaultError(record.row.name, names, [beyond(name, offset, size, buffer.memory.size)])
        ranges = [(buffer.memory.address + offset, size) for buffer, offset, size in bindings]
        plan = executable.plan and executable.plan(record, record.struct.unpack(parameters))
        return expected_of(record, parameters, ranges, plan)

    def perform(
        self,
        program: Program,
        bindings: tuple[Binding, ...],
        words: tuple[int, ...],
        signals: Sequence[FenceValue],
    ) -> Exception | None:
        with self._running_program(program):
            return super().perform(program, bindings, words, signals)

    @contextlib.contextmanager
    def _running_program(self, program: Program) -> Generator[None]:
        before, self._program = self._program, program
        try:
            yield
        finally:
            self._program = before

    def step_of(self, call: Call) -> Step | None:
        """Returns the step of the running program whose call it is, None outside of one."""
        program = self._program
        if program is None:
            return None
        position = next((i for i, known in enumerate(program.calls) if known is call), None)
        return None if position is None else program.steps[position]


class _Named:
    """A launch whose faults name the slot of each binding and the command."""

    __slots__ = ("_call", "_device")

    def __init__(self, device: CheckedDevice, call: Call) -> None:
        self._device, self._call = device, call

    def __call__(self) -> None:
        try:
            self._call()
        except LaunchFaultError as fault:
            step = self._device.step_of(self)
            if step is None:
                raise
            raise fault.named(tuple(ref.slot for ref in step.refs), step.command) from None
