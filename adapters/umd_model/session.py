"""Running a model: weights on the device once, one program a set of sizes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

from umd_core.commands import CommandBuffer
from umd_core.device import Device
from umd_core.device.estimation import memory_needed
from umd_core.device.tensor import Tensor
from umd_core.errors import DTypeError, OutOfMemoryError
from umd_core.ir import Array
from umd_core.registry import default_device, open_device
from umd_core.translate import translator
from umd_model.model import Model

PROGRAMS = 16
"""Sets of sizes whose programs are kept."""


class Session:
    """A model on a device; a context manager.

    Example:
        >>> with Session(load("model.umd"), "sim:0") as session:
        ...     results = session.run({"x": x})
    """

    def __init__(self, model: Model, device: str | Device = "") -> None:
        """Opens a device for the model, given by name or opened; by default the available one of highest priority.

        Raises:
            UmdError: the device cannot be opened.
            OutOfMemoryError: it has no room for the weights; nothing was uploaded.
        """
        self.model = model
        self._owned = isinstance(device, str)
        self.device: Device = open_device(device or default_device()) if isinstance(device, str) else device
        self._translator = translator(self.device.caps())
        self._programs: OrderedDict[tuple[int, ...], CommandBuffer] = OrderedDict()
        self._weights: dict[str, Tensor] = {}
        self._check_room(sum(weight.nbytes for weight in model.weights.values()))

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the weights, and the device when the session opened it."""
        self._weights.clear()
        self._programs.clear()
        if self._owned:
            self.device.close()

    def prepare(self, inputs: Mapping[str, Any]) -> CommandBuffer:
        """Returns the program for inputs of these shapes, without running it.

        Raises:
            AttributeValueError, ShapeError, DTypeError, LimitError: the inputs are not what the model takes.
            OutOfMemoryError: the program does not fit into the device's memory.
        """
        return self._program(self._checked(inputs)[1])

    def upload(self) -> None:
        """Puts the weights on the device. The first run does it where nobody did.

        Raises:
            OutOfMemoryError: the device has no room left.
        """
        if not self._weights:
            self._weights = {name: self.device.tensor(weight) for name, weight in self.model.weights.items()}

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Returns the outputs by name for inputs by name.

        Raises:
            AttributeValueError, ShapeError, DTypeError, LimitError: the inputs are not what the model takes.
            UmdError: the device could not run it.
        """
        arrays, sizes = self._checked(inputs)
        program = self._program(sizes)
        self.upload()
        arguments = [self._weights[a.name] if a.weight else arrays[a.name] for a in self.model.arguments]
        results = self.device.run(program, arguments)
        for index, name in self.model.updates:
            self._weights[name] = results[index]
        return {name: results[index].numpy() for index, name in enumerate(self.model.outputs)}

    def _checked(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Array], dict[str, int]]:
        """Returns the inputs as arrays, and the sizes that they give the model."""
        arrays = {name: np.asarray(value) for name, value in inputs.items()}
        sizes = self.model.sizes_of({name: array.shape for name, array in arrays.items()})
        for name, desc in self.model.inputs.items():
            if arrays[name].dtype != desc.dtype.numpy:
                found = str(arrays[name].dtype)
                raise DTypeError("run", f"is {found}", input=name, got=found, allowed=(desc.dtype.name,))
        return arrays, sizes

    def _check_room(self, needed: int) -> None:
        capacity = self.device.caps().memory
        if needed > capacity:
            raise OutOfMemoryError(needed, 0, capacity, capacity, device=self.device.name)

    def _program(self, sizes: Mapping[str, int]) -> CommandBuffer:
        key = self.model.sizes.check(sizes)
        found = self._programs.get(key)
        if found is None:
            found = self._translator.graph(self.model.graph_for(sizes))
            self._check_room(memory_needed(found))
            self._programs[key] = found
            if len(self._programs) > PROGRAMS:
                self._programs.popitem(last=False)
        self._programs.move_to_end(key)
        return found
