"""Running a model: weights on the device once, one program a set of sizes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

from umd_core.commands import CommandBuffer
from umd_core.device import Device
from umd_core.errors import DTypeError
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
        """Puts the weights on a device, given by name or opened; by default the available one of highest priority.

        Raises:
            UmdError: the device cannot be opened, or has no room for the weights.
        """
        self.model = model
        self._owned = isinstance(device, str)
        self.device: Device = open_device(device or default_device()) if isinstance(device, str) else device
        self._translator = translator(self.device.caps())
        self._programs: OrderedDict[tuple[int, ...], CommandBuffer] = OrderedDict()
        self._weights = {name: self.device.tensor(weight) for name, weight in model.weights.items()}

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

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Returns the outputs by name for inputs by name.

        Raises:
            AttributeValueError, ShapeError, DTypeError, LimitError: the inputs are not what the model takes.
            UmdError: the device could not run it.
        """
        arrays = {name: np.asarray(value) for name, value in inputs.items()}
        sizes = self.model.sizes_of({name: array.shape for name, array in arrays.items()})
        for name, desc in self.model.inputs.items():
            if arrays[name].dtype != desc.dtype.numpy:
                found = str(arrays[name].dtype)
                raise DTypeError("run", f"is {found}", input=name, got=found, allowed=(desc.dtype.name,))
        program = self._program(sizes)
        arguments = [self._weights[a.name] if a.weight else arrays[a.name] for a in self.model.arguments]
        results = self.device.run(program, arguments)
        for index, name in self.model.updates:
            self._weights[name] = results[index]
        return {name: results[index].numpy() for index, name in enumerate(self.model.outputs)}

    def _program(self, sizes: Mapping[str, int]) -> CommandBuffer:
        key = self.model.sizes.check(sizes)
        found = self._programs.get(key)
        if found is None:
            found = self._programs[key] = self._translator.graph(self.model.graph_for(sizes))
            if len(self._programs) > PROGRAMS:
                self._programs.popitem(last=False)
        self._programs.move_to_end(key)
        return found
