"""The standard's own interface for backends, which its test suite runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, shape_inference
from onnx.backend.base import Backend, BackendRep

from umd_core.errors import UmdError
from umd_core.ir import Array
from umd_onnx.loading import OPSET
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
    def run_node(
        cls, node: onnx.NodeProto, inputs: Sequence[Any], device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Returns the outputs of one node. Its inputs are arrays, in order, without those that it leaves out.

        `opset_version` among `kwargs` is the opset that the node is of, the newest by default.
        """
        arrays = [np.asarray(value) for value in inputs]
        model = _model_of(node, arrays, int(kwargs.get("opset_version", OPSET)))
        return cls.prepare(model, device).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Returns whether a device can be used: "CPU" is the simulator, others are umd's names."""
        from umd_core.registry import open_device  # noqa: PLC0415  # asked for rarely

        try:
            open_device(DEVICE if device == "CPU" else device).close()
        except UmdError:
            return False
        return True


def _model_of(node: onnx.NodeProto, arrays: Sequence[Array], opset: int) -> onnx.ModelProto:
    """Returns a model of one node; what type its outputs have is inferred."""
    given = zip(dict.fromkeys(filter(None, node.input)), arrays, strict=True)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in given
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "node", inputs, outputs)
    return shape_inference.infer_shapes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]))


def _array(value: Any) -> Any:
    return value if value is None or isinstance(value, list) else np.asarray(value)


prepare, supports_device = UmdBackend.prepare, UmdBackend.supports_device
