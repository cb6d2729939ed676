"""The worked example backend, loaded from docs/ as a module, and faulty variants of it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from umd_core.commands import CommandBuffer
from umd_core.device import Binding, Caps, SequentialDevice
from umd_core.ir import TensorDesc
from umd_core.testing.recording import Recording

EXAMPLE = Path(__file__).parents[2] / "docs" / "example_backend"


def example_module() -> ModuleType:
    """Returns the example backend's module."""
    if "umd_example" not in sys.modules:
        spec = importlib.util.spec_from_file_location("umd_example", EXAMPLE / "umd_example.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["umd_example"] = module
        spec.loader.exec_module(module)
    return sys.modules["umd_example"]


def example_device(name: str = "0") -> Any:
    return example_module().open_device(name)


class HostDevice(SequentialDevice):
    """A device over host memory without kernels; it notes what it is asked to do."""

    name = "host:0"

    def __init__(self, memory: int = 1 << 20) -> None:
        self._memory = memory
        self.freed: list[int] = []
        super().__init__()

    def caps(self) -> Caps:
        return Caps({}, memory=self._memory, flags=frozenset({"map"}))

    def allocate_memory(self, size: int) -> Any:
        return np.zeros(size, np.uint8)

    def free_memory(self, memory: Any) -> None:
        self.freed.append(memory.size)

    def write_memory(self, memory: Any, offset: int, data: memoryview) -> None:
        memory[offset : offset + len(data)] = data

    def read_memory(self, memory: Any, offset: int, size: int) -> memoryview:
        view: memoryview = memory[offset : offset + size].data
        return view

    def wrap_memory(self, data: Any) -> Any:
        return data


def copy_program(size: int, flags: int = 0) -> CommandBuffer:
    """Returns a command buffer that copies argument 0 to argument 1, described as uint8 arrays."""
    recording = Recording()
    source, target = recording.argument(), recording.argument()
    recording.copy((target, 0, size), (source, 0, size))
    command_buffer = recording.finish(flags)
    command_buffer.inputs = command_buffer.outputs = [TensorDesc("u8", (size,))]
    return command_buffer


def bound(device: Any, *contents: Any) -> list[Binding]:
    """Returns a new buffer for each content."""
    result = []
    for content in contents:
        data = np.frombuffer(content, np.uint8) if isinstance(content, bytes) else content
        buffer = device.allocate(data.nbytes)
        device.write(buffer, 0, data)
        result.append(Binding(buffer, 0, data.nbytes))
    return result


def contents(device: Any, binding: Binding) -> bytes:
    return bytes(device.read(binding.buffer, binding.offset, binding.size))
