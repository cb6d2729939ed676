"""Programs whose arguments are small: these stay in device buffers of the program's own, and nothing is bound anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from umd_core.commands import CommandBuffer
from umd_core.device import Device
from umd_core.device.tensor import Tensor
from umd_core.ir import Array

SMALL = 1 << 16
"""Bytes up to which copying an argument costs less than binding the host's array."""


def is_small(device: Device, command_buffer: CommandBuffer, given: Sequence[int]) -> bool:
    """Returns whether a program's outputs and the inputs of these numbers are worth copying.

    The host has to see the device's memory: elsewhere arguments and results are copied anyway.
    """
    descs = [*(command_buffer.inputs[index] for index in given), *command_buffer.outputs]
    plain = not command_buffer.aliases and all(desc.is_contiguous and desc.byte_size <= SMALL for desc in descs)
    return plain and "map" in device.caps().flags


class Resident:
    """A loaded program with buffers for everything that its runs are given and return."""

    def __init__(self, device: Device, command_buffer: CommandBuffer, arguments: Sequence[Any]) -> None:
        """Loads the program; arguments that are tensors stay the same at every run."""
        self._device, self._program = device, device.load(command_buffer)
        self._tensors = [
            argument if isinstance(argument, Tensor) else device.tensor(np.zeros(desc.shape, desc.dtype.numpy))
            for argument, desc in zip(arguments, command_buffer.inputs, strict=True)
        ]
        self._results = [device.tensor(np.zeros(desc.shape, desc.dtype.numpy)) for desc in command_buffer.outputs]
        self._bindings = tuple(tensor.binding for tensor in (*self._tensors, *self._results))

    def run(self, arguments: Sequence[Any]) -> list[Array]:
        """Returns the results for arguments as at the first run: host arrays and the same tensors.

        Raises:
            UmdError: what went wrong in the work.
        """
        for tensor, argument in zip(self._tensors, arguments, strict=True):
            if argument is not tensor:
                self._device.write(tensor.storage.buffer, 0, argument)
        self._device.submit(self._program, self._bindings).wait()
        return [tensor.numpy().copy() for tensor in self._results]
