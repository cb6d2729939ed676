"""The standard's own interface for backends, which its test suite runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep

from umd_core.errors import UmdError
from umd_onnx.session import InferenceSession

DEVICE = "sim:0"


class UmdRep(BackendRep):
    """A prepared model."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session

    def run(self, inputs: Any, **_: Any) -> tuple[Any, ...]:
        """Returns the outputs for inputs in the model's order."""
        names = [argument.name for argument in self._session.get_inputs()]
        feeds = dict(zip(names, map(_array, inputs), strict=False))
        return tuple(self._session.run(None, feeds))


class UmdBackend(Backend):
    """`onnx.backend.test.BackendTest(UmdBackend, __name__)` runs the standard's suite."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> UmdRep:
        """Returns a prepared model."""
        super().prepare(model, device)
        return UmdRep(InferenceSession(model, DEVICE if device == "CPU" else device))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Returns whether a device can be used: "CPU" is the simulator, others are umd's names."""
        from umd_core.registry import open_device  # noqa: PLC0415  # asked for rarely

        try:
            open_device(DEVICE if device == "CPU" else device).close()
        except UmdError:
            return False
        return True


def _array(value: Any) -> Any:
    return value if value is None or isinstance(value, list) else np.asarray(value)


prepare, supports_device = UmdBackend.prepare, UmdBackend.supports_device
