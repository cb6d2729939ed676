"""What the tests of captures share: captured runs, and simulators with a planted fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import umd_core as umd
from umd_core.capture import Capture, CapturingDevice, Folder, open_capture
from umd_core.commands import CommandBuffer, Dispatch
from umd_core.device import Binding
from umd_core.ir import Array
from umd_core.kernels import KernelRecord
from umd_sim.device import SimDevice

Spoil = Callable[[Array, Binding], None]


def capturing(folder: Path, device: Any = None, **options: Any) -> CapturingDevice:
    device = device or SimDevice()
    return CapturingDevice(device, Folder(folder, device.name), **options)


def captured_run(folder: Path, command_buffer: CommandBuffer, *inputs: Any) -> Capture:
    """Returns the capture of one run on the simulator."""
    device = capturing(folder)
    device.run(command_buffer, list(inputs))
    device.close()
    return open_capture(folder)


class Faulty(SimDevice):
    """A simulator that spoils the first written operand of its n-th launch, counted from 0.

    `spoil` gets the operand's elements, as a view of the memory, and the binding that they lie in.
    """

    def __init__(self, at: int, spoil: Spoil) -> None:
        super().__init__()
        self.name = "faulty:0"
        self._at, self._spoil, self.launched = at, spoil, 0

    def load_kernel(self, record: KernelRecord, parameters: bytes) -> Any:
        return record, super().load_kernel(record, parameters)

    def bind(self, executable: Any, parameters: bytes, bindings: Sequence[Binding]) -> Callable[[], None]:
        record, own = executable
        call = super().bind(own, parameters, bindings)
        assert call is not None

        def run() -> None:
            call()
            if self.launched == self._at:
                place = next(i for i, operand in enumerate(record.row.operands) if operand.writes)
                view, (buffer, offset, size) = record.views(parameters)[place], bindings[place]
                box = np.ndarray(view.shape, view.dtype.numpy, buffer.memory, offset + view.offset, view.strides)
                self._spoil(box, Binding(buffer, offset, size))
            self.launched += 1

        return run


class Named(Faulty):
    """Spoils every launch of one kernel."""

    def __init__(self, kernel: str, spoil: Spoil) -> None:
        super().__init__(0, spoil)
        self._kernel = kernel

    def bind(self, executable: Any, parameters: bytes, bindings: Any) -> Any:
        call = super().bind(executable, parameters, bindings)

        def run() -> None:
            self.launched = 0 if executable[0].row.name == self._kernel else 1
            call()

        return run


def negate(box: Array, binding: Binding) -> None:
    box[...] = -box


def change_first(box: Array, binding: Binding) -> None:
    """Changes one element to quite another number, whatever its type."""
    if box.dtype == np.bool_:
        box.flat[0] = not box.flat[0]
    elif box.dtype.kind in "iu":
        box.flat[0] = 5 if box.flat[0] == 7 else 7
    else:
        box.flat[0] = -3e4 if box.flat[0] > 0 else 3e4


def launches(command_buffer: CommandBuffer) -> list[int]:
    """Returns the commands that launch something."""
    return [
        index
        for index, command in enumerate(command_buffer.commands)
        if isinstance(command, Dispatch) and 0 not in command.launch[:3]
    ]


def network(layers: int = 6, width: int = 8) -> tuple[CommandBuffer, list[Array]]:
    """Returns a program of a few layers, with op, node and source line of each, and its inputs."""
    graph = umd.Graph("network")
    random = np.random.default_rng(3)
    value = graph.input("x", umd.TensorDesc("f32", (4, width)))
    for layer in range(layers):
        weight = graph.constant(random.normal(size=(width, width)).astype(np.float32) / 3)
        product = graph.add("MatMul", [value, weight], name=f"linear{layer}", source=f"model.py:{10 + layer}")
        value = graph.add("Tanh", [product], name=f"tanh{layer}", source=f"model.py:{30 + layer}")
        value = graph.add("Softmax", [value], name=f"softmax{layer}", source=f"model.py:{50 + layer}")
    graph.output(value)
    return umd.translate(graph), [random.normal(size=(4, width)).astype(np.float32)]


def captured_network(folder: Path) -> Capture:
    """Returns the capture of one run of `network` on the simulator."""
    command_buffer, arguments = network()
    return captured_run(folder, command_buffer, *arguments)
