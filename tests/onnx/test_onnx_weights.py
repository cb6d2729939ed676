"""Large weights: taken out of the file's bytes and set aside, wherever they lie, and what becomes of odd files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from google.protobuf.message import DecodeError as ProtobufDecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.onnx import small_models
from umd_core.errors import DecodeError, UmdError
from umd_onnx import load, load_model
from umd_onnx.contents import tensors_of
from umd_onnx.loading import load_parts
from umd_onnx.weights import HEAVY_BYTES
from umd_onnx.wire import hollowed

SIDE = 40
"""A square of so many float32 is heavy."""
RNG = np.random.default_rng(3)


def square(scale: float = 1.0) -> Any:
    return (RNG.normal(size=(SIDE, SIDE)) * scale).astype(np.float32)


def constant(name: str, value: Any) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))


def branch(name: str, weight: Any, *, inside: str) -> onnx.GraphProto:
    """Returns a branch that gives x · weight, which lies in a Constant node, in an initializer or is the result."""
    result = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, (SIDE, SIDE))
    if inside == "result":
        return helper.make_graph([], name, [], [result], [numpy_helper.from_array(weight, f"{name}_y")])
    own = f"{name}_w" if inside != "same name" else "w"
    nodes = [helper.make_node("MatMul", ["x", own], [f"{name}_y"])]
    if inside == "initializer":
        return helper.make_graph(nodes, name, [], [result], [numpy_helper.from_array(weight, own)])
    return helper.make_graph([constant(own, weight), *nodes], name, [], [result])


def choosing(inside: str) -> onnx.ModelProto:
    """Returns a model with a heavy initializer, a heavy Constant, and heavy weights in two branches."""
    nodes = [
        constant("c", square()),
        helper.make_node("If", ["flag"], ["chosen"], then_branch=branch("then", square(), inside=inside),
                         else_branch=branch("else", square(2), inside=inside)),
        helper.make_node("MatMul", ["chosen", "c"], ["z"]),
        helper.make_node("Add", ["z", "a"], ["y"]),
    ]  # fmt: skip
    inputs: dict[str, Any] = {"x": (TensorProto.FLOAT, (SIDE, SIDE)), "flag": (TensorProto.BOOL, ())}
    return small_models.model(nodes, inputs, ["y"], {"a": square()}, opset=20, rank=2)


INSIDE = ["constant", "initializer", "same name", "result"]


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("flag", [False, True])
def test_heavy_weights_may_lie_anywhere(inside: str, flag: bool) -> None:
    raw = choosing(inside).SerializeToString()
    theirs = onnxruntime.InferenceSession(raw, providers=["CPUExecutionProvider"])
    feeds = {"x": square(), "flag": np.array(flag)}
    (want,) = theirs.run(None, feeds)
    with load(raw, "sim:0") as ours:
        np.testing.assert_allclose(ours.run(None, feeds)[0], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("inside", ["constant", "initializer"])
def test_their_bytes_are_those_of_the_file(inside: str) -> None:
    raw = choosing(inside).SerializeToString()
    loaded = load_parts(raw)
    own = {"a", "c", "then_w", "else_w"}
    assert set(loaded.weights) == own
    whole = np.frombuffer(raw, np.uint8)
    assert all(np.shares_memory(array, whole) for array in loaded.weights.values())
    assert sum(len(tensor.raw_data) for tensor in tensors_of(loaded.model)) < HEAVY_BYTES
    assert [info.name for info in loaded.model.graph.input] == ["x", "flag"]


@pytest.mark.parametrize("inside", INSIDE)
def test_a_loaded_model_is_whole(inside: str) -> None:
    model = choosing(inside)
    raw = model.SerializeToString()
    given_arrays = sorted(numpy_helper.to_array(t).tobytes() for t in tensors_of(model))
    for source in (raw, model):
        assert sorted(numpy_helper.to_array(t).tobytes() for t in tensors_of(load_model(source))) == given_arrays
    assert model.SerializeToString() == raw


def test_external_data_are_set_aside_too(tmp_path: Path) -> None:
    model = choosing("constant")
    raw = model.SerializeToString()
    onnx.save_model(model, tmp_path / "m.onnx", save_as_external_data=True, location="w", size_threshold=0)
    feeds = {"x": square(), "flag": np.array(True)}
    with load(raw, "sim:0") as inside, load(tmp_path / "m.onnx", "sim:0") as outside:
        np.testing.assert_array_equal(outside.run(None, feeds)[0], inside.run(None, feeds)[0])


def restored(raw: bytes) -> onnx.ModelProto:
    """Returns what the parser makes of a model whose large tensors were taken out and are put back."""
    found = hollowed(raw, HEAVY_BYTES)
    model = onnx.ModelProto.FromString(found.raw)
    left = dict(found.taken)
    for tensor in tensors_of(model):
        if tensor.doc_string in left:
            tensor.raw_data = bytes(left.pop(tensor.doc_string))
            tensor.ClearField("doc_string")
    assert not left
    return model


@pytest.mark.parametrize("inside", INSIDE)
def test_what_is_left_is_the_rest_of_the_model(inside: str) -> None:
    raw = choosing(inside).SerializeToString()
    assert len(hollowed(raw, HEAVY_BYTES).taken) == 4
    assert len(hollowed(raw, HEAVY_BYTES).raw) < HEAVY_BYTES
    assert restored(raw) == onnx.ModelProto.FromString(raw)


@settings(max_examples=60)
@given(sizes=st.lists(st.integers(HEAVY_BYTES - 2, HEAVY_BYTES + 2), max_size=5), names=st.data())
def test_tensors_of_any_size(sizes: list[int], names: st.DataObject) -> None:
    model = onnx.ModelProto(producer_name=names.draw(st.text(max_size=300)))
    for size in sizes:
        tensor = model.graph.initializer.add(name=names.draw(st.text(max_size=5)), data_type=TensorProto.UINT8)
        tensor.dims.append(size)
        tensor.raw_data = bytes(size)
    raw = model.SerializeToString()
    assert len(hollowed(raw, HEAVY_BYTES).taken) == sum(size > HEAVY_BYTES for size in sizes)
    assert restored(raw) == model


SEED = choosing("initializer").SerializeToString()


@settings(max_examples=100)
@given(data=st.data())
def test_broken_bytes_are_left_to_the_parser(data: st.DataObject) -> None:
    raw = bytearray(SEED[: data.draw(st.sampled_from([len(SEED), len(SEED) - 1, len(SEED) // 2, 200]))])
    for _ in range(data.draw(st.integers(0, 3))):
        # most bytes are weights: the first and the last few of the file are not
        at = data.draw(st.integers(0, 190))
        raw[at if data.draw(st.booleans()) else -1 - at] = data.draw(st.integers(0, 255))
    try:
        whole = onnx.ModelProto.FromString(bytes(raw))
    except ProtobufDecodeError:
        with pytest.raises(ProtobufDecodeError):
            onnx.ModelProto.FromString(hollowed(bytes(raw), HEAVY_BYTES).raw)
        return
    hollow = onnx.ModelProto.FromString(hollowed(bytes(raw), HEAVY_BYTES).raw)
    assert [node.op_type for node in hollow.graph.node] == [node.op_type for node in whole.graph.node]
    assert [list(t.dims) for t in tensors_of(hollow)] == [list(t.dims) for t in tensors_of(whole)]


@pytest.mark.parametrize(("kind", "dims"), [
    (TensorProto.FLOAT, [SIDE * SIDE + 1]), (TensorProto.FLOAT, [1] * 70 + [SIDE * SIDE]),
    (TensorProto.STRING, [SIDE * SIDE // 2]), (TensorProto.INT4, [SIDE * SIDE * 4]),
])  # fmt: skip
def test_heavy_bytes_that_do_not_fit_their_shape(kind: int, dims: list[int]) -> None:
    model = choosing("constant")
    weight = model.graph.initializer[0]
    del weight.dims[:]
    weight.dims.extend(dims)
    weight.data_type = kind
    with pytest.raises(UmdError), load(model.SerializeToString(), "sim:0") as session:
        session.run(None, {"x": square(), "flag": np.array(True)})


def test_graphs_within_graphs_without_end() -> None:
    raw = choosing("constant").graph.SerializeToString()
    for _ in range(300):
        attribute = b"\x32" + size(raw) + raw  # g
        node = b"\x2a" + size(attribute) + attribute  # attribute
        raw = b"\x0a" + size(node) + node  # node
    raw = b"\x3a" + size(raw) + raw  # graph
    hollowed(raw, HEAVY_BYTES)
    with pytest.raises(DecodeError):
        load_model(raw)


def size(payload: bytes) -> bytes:
    """Returns the length of a payload as Protocol Buffers write it."""
    value, result = len(payload), bytearray()
    while value > 127:
        result.append(value & 127 | 128)
        value >>= 7
    return bytes([*result, value])
