"""Graph passes: ms a run on the simulator with and without them, beside onnxruntime on one thread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
from measure import Work, interleaved, report
from onnx import TensorProto, helper, numpy_helper

from umd_core import open_device
from umd_core.device import Binding, Device
from umd_core.ir import Array, Graph, TensorDesc
from umd_core.passes import DEFAULT, optimise
from umd_core.translate import translate

ELEMENTS = 10**7


class Op(NamedTuple):
    """A node: inputs are names, or constants."""

    name: str
    inputs: Sequence[str | Array]
    attributes: dict[str, Any]


class Model:
    """The same nodes for umd and for onnxruntime."""

    def __init__(self, **arguments: Array) -> None:
        self.arguments = arguments
        self.nodes: list[Op] = []

    def __call__(self, name: str, *inputs: str | float | Array, **attributes: Any) -> str:
        arrays = [x if isinstance(x, (str, np.ndarray)) else np.float32(x) for x in inputs]
        self.nodes.append(Op(name, [x if isinstance(x, str) else np.asarray(x) for x in arrays], attributes))
        return f"v{len(self.nodes) - 1}"

    def graph(self) -> Graph:
        """Returns it as umd's graph; the last node's result is the output."""
        graph = Graph("model")
        for name, array in self.arguments.items():
            graph.input(name, TensorDesc.of(array))
        for number, (op, inputs, attributes) in enumerate(self.nodes):
            names = [x if isinstance(x, str) else graph.constant(x) for x in inputs]
            graph.add(op, names, attributes, outputs=[f"v{number}"])
        graph.output(f"v{len(self.nodes) - 1}")
        return graph

    def session(self) -> onnxruntime.InferenceSession:
        """Returns it as a session of one thread."""
        nodes: list[onnx.NodeProto] = []
        weights: list[onnx.TensorProto] = []
        for number, (op, inputs, attributes) in enumerate(self.nodes):
            names = [x if isinstance(x, str) else f"c{number}_{at}" for at, x in enumerate(inputs)]
            constants = [(x, name) for x, name in zip(inputs, names, strict=True) if isinstance(x, np.ndarray)]
            weights += [numpy_helper.from_array(x, name) for x, name in constants]
            nodes.append(helper.make_node(op, names, [f"v{number}"], **attributes))
        given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in self.arguments.items()]
        output = helper.make_tensor_value_info(f"v{len(self.nodes) - 1}", TensorProto.FLOAT, None)
        graph = helper.make_graph(nodes, "model", given, [output], weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        return onnxruntime.InferenceSession(model.SerializeToString(), options)


RNG = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    """Returns normally distributed numbers, float32."""
    return RNG.normal(size=shape).astype(np.float32)


def eight() -> Model:
    """Eight cheap elementwise ops."""
    m = Model(x=normal(ELEMENTS), y=normal(ELEMENTS))
    v = m("Sub", m("Relu", m("Add", m("Mul", "x", 2.0), "y")), 0.5)
    m("Sqrt", m("Add", m("Abs", m("Mul", v, "x")), 1.0))
    return m


def feed_forward() -> Model:
    """A transformer's second half, layer normalisation and Gelu written out: 128 tokens, 384 wide."""
    m = Model(x=normal(128, 384))
    hidden = m("Add", m("MatMul", "x", normal(384, 1536) / 20), normal(1536))
    curve = m("Add", m("Erf", m("Div", hidden, math.sqrt(2))), 1.0)
    back = m("MatMul", m("Mul", m("Mul", hidden, curve), 0.5), normal(1536, 384) / 40)
    total = m("Add", m("Add", back, normal(384)), "x")
    axes = np.array([-1])
    centred = m("Sub", total, m("ReduceMean", total, axes))
    variance = m("ReduceMean", m("Pow", centred, 2.0), axes)
    scaled = m("Mul", m("Div", centred, m("Sqrt", m("Add", variance, 1e-5))), normal(384))
    m("Add", scaled, normal(384))
    return m


def convolutions() -> Model:
    """Three convolutions of 32 channels with batch normalisation and Relu over 56 by 56."""
    m = Model(x=normal(1, 32, 56, 56))
    value = "x"
    for _ in range(3):
        value = m("Conv", value, normal(32, 32, 3, 3) / 17, pads=[1, 1, 1, 1])
        statistics = normal(32), normal(32), normal(32), abs(normal(32)) + 0.5
        value = m("Relu", m("BatchNormalization", value, *statistics))
    return m


def running(device: Device, graph: Graph, arrays: Sequence[Array]) -> tuple[Work, int]:
    """Returns a call that runs a graph over arguments that are on the device, and the number of its commands."""
    program = translate(graph, caps=device.caps())
    sizes = [desc.byte_size for desc in (*program.inputs, *program.outputs)]
    buffers = [device.allocate(size) for size in sizes]
    for buffer, array in zip(buffers, arrays, strict=False):
        device.write(buffer, 0, array)
    loaded = device.load(program)
    bindings = [Binding(buffer, 0, size) for buffer, size in zip(buffers, sizes, strict=True)]
    return lambda: device.submit(loaded, bindings).wait(), len(program.commands)


def bound(model: Model) -> Work:
    """Returns a call of onnxruntime over arguments and a result that are allocated once."""
    session = model.session()
    binding = session.io_binding()
    for name, array in model.arguments.items():
        binding.bind_cpu_input(name, array)
    result = np.array(session.run(None, model.arguments)[0])
    binding.bind_output(session.get_outputs()[0].name, "cpu", 0, np.float32, result.shape, result.ctypes.data)

    def call() -> object:
        session.run_with_iobinding(binding)
        return result  # which must live as long

    return call


def main() -> None:
    """Measures every model and prints the table."""
    device = open_device("sim:0")
    rows = []
    for name, model in (("eight elementwise", eight()), ("feed-forward", feed_forward()), ("3 conv", convolutions())):
        arrays = list(model.arguments.values())
        plain, before = running(device, model.graph(), arrays)
        unfused, _ = running(device, optimise(model.graph(), DEFAULT - {"elementwise_chain"}).graph, arrays)
        cleaned, after = running(device, optimise(model.graph()).graph, arrays)
        works = {"plain": plain, "unfused": unfused, "cleaned": cleaned, "onnxruntime": bound(model)}
        times = {key: 1e3 * value for key, value in interleaved(works, repeat=21).items()}
        rows.append((name, before, after, *times.values(), times["cleaned"] / times["onnxruntime"]))
    header = ("model", "commands", "cleaned", "plain", "no chains", "all passes", "onnxruntime", "ratio")
    report("passes", "graph passes, ms a run", header, rows)
    device.close()


if __name__ == "__main__":
    main()
