"""Messages ↔ the core's values: requests, convolution spellings, typed attributes, graphs; hostile bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import umd_core as umd
from umd_core.dtypes import ALL, bool_
from umd_core.errors import AttributeValueError, DTypeError, InputCountError, LimitError, ShapeError, Status, UmdError
from umd_core.ir import Graph, TensorDesc
from umd_grpc._pb.umd import graph_pb2, translator_pb2
from umd_grpc.messages import graph_messages
from umd_grpc.messages.convert import (
    VALUE_LIMIT,
    error_text,
    facts_text,
    read_desc,
    read_error,
    read_request,
    read_struct,
    write_desc,
    write_struct,
    write_value,
)

SHAPES = st.lists(st.integers(0, 2**20), max_size=3).map(tuple)
INT64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def descs(draw: Any) -> TensorDesc:
    """Descriptions of any dtype; strided ones among them."""
    shape = draw(SHAPES)
    dtype = draw(st.sampled_from(ALL))
    if draw(st.booleans()):
        return TensorDesc(dtype, shape)
    strides = [draw(st.integers(0, 2**20)) for _ in shape]
    return TensorDesc(dtype, shape, strides, draw(st.integers(0, 2**30)))


@given(descs())
def test_a_description_comes_back(desc: TensorDesc) -> None:
    message = translator_pb2.TensorDesc()
    write_desc(desc, message)
    assert read_desc(translator_pb2.TensorDesc.FromString(message.SerializeToString())) == desc
    assert graph_messages.read_desc(graph_messages.write_desc(desc)) == desc


def test_an_original_request_is_read() -> None:
    request = translator_pb2.TranslateRequest(op_type="Add", attributes={"axis": "1"}, request_id=9)
    request.inputs.add(name="a", shape=[2, 3], dtype="torch.float32")
    request.inputs.add()
    call = read_request(request)
    assert (call.op, call.attributes) == ("Add", {"axis": "1"})
    assert call.inputs == [TensorDesc("float32", (2, 3)), None]


@pytest.mark.parametrize("op", ["Conv", "Conv2d", "Conv2D"])
@pytest.mark.parametrize(
    ("attributes", "wanted"),
    [
        ({"stride": "1", "pad": "0"}, {"strides": [1, 1], "pads": [0, 0, 0, 0]}),
        ({"strides": "2,1", "pads": "1,2"}, {"strides": [2, 1], "pads": [1, 2, 1, 2]}),
        ({"stride": "[2, 1]", "pad": "[1, 2]"}, {"strides": [2, 1], "pads": [1, 2, 1, 2]}),
        ({"stride": "(2, 1)", "pad": "(1,2)"}, {"strides": [2, 1], "pads": [1, 2, 1, 2]}),
        ({"pads": "1,2,3,4"}, {"pads": [1, 2, 3, 4]}),
        ({"dilation": "2", "groups": "3"}, {"dilations": [2, 2], "group": "3"}),
        ({"pad": "same"}, {"pads": "same"}),
    ],
)
def test_convolutions_of_the_original_protocol(op: str, attributes: dict[str, str], wanted: dict[str, Any]) -> None:
    request = translator_pb2.TranslateRequest(op_type=op, attributes=attributes)
    for shape in ((1, 3, 8, 8), (4, 3, 3, 3)):
        request.inputs.add(shape=shape, dtype="torch.float32")
    call = read_request(request)
    assert call.op == "Conv"
    assert call.attributes == wanted


def test_two_spellings_of_one_attribute_are_refused() -> None:
    request = translator_pb2.TranslateRequest(op_type="Conv2d", attributes={"stride": "1", "strides": "1"})
    with pytest.raises(AttributeValueError, match="two names"):
        read_request(request)
    request = translator_pb2.TranslateRequest(op_type="Softmax", attributes={"axis": "1"})
    request.typed_attributes["axis"] = 1
    with pytest.raises(AttributeValueError, match="twice"):
        read_request(request)


VALUES = st.one_of(
    st.booleans(),
    st.text(max_size=10),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**70), 2**70),
    st.lists(st.integers(-(2**70), 2**70), max_size=3),
    st.lists(st.text(max_size=4), max_size=3),
)


@given(st.dictionaries(st.text(min_size=1, max_size=8), VALUES, max_size=4))
def test_typed_attributes_come_back(attributes: dict[str, Any]) -> None:
    request = translator_pb2.TranslateRequest()
    write_struct("Op", attributes, request.typed_attributes)
    again = read_struct("Op", translator_pb2.TranslateRequest.FromString(request.SerializeToString()).typed_attributes)
    assert again.keys() == attributes.keys()
    for name, value in attributes.items():
        assert _plain(again[name]) == _plain(value)


def _plain(value: Any) -> Any:
    """Integers beyond 2^53 travel as decimal strings; whole floats come back as integers."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    if isinstance(value, int) and abs(value) > 2**53:
        return str(value)
    return float(value)


@pytest.mark.parametrize("value", [{"a": 1}, [[1]]], ids=["object", "list-in-list"])
def test_nested_attributes_are_refused(value: Any) -> None:
    request = translator_pb2.TranslateRequest(op_type="Add")
    request.typed_attributes["x"] = value
    with pytest.raises(AttributeValueError) as caught:
        read_request(request)
    assert caught.value.status == Status.ATTRIBUTE


def test_values_of_static_inputs() -> None:
    request = translator_pb2.TranslateRequest(op_type="Reshape")
    request.inputs.add(shape=[2, 3], dtype="float32")
    write_value(np.array([3, 2]), request.inputs.add())
    _, shape = read_request(request).inputs
    np.testing.assert_array_equal(shape, [3, 2])
    request.inputs[1].shape[:] = [3]
    with pytest.raises(ShapeError, match="16 bytes"):
        read_request(request)
    write_value(np.zeros(VALUE_LIMIT + 1, np.int8), request.inputs.add())
    del request.inputs[1]
    with pytest.raises(LimitError):
        read_request(request)


@pytest.mark.parametrize(
    ("desc", "error"),
    [
        ({"dtype": "float33", "shape": [1]}, DTypeError),
        ({"dtype": "", "shape": [1]}, DTypeError),
        ({"dtype": "float32", "shape": [-1]}, ShapeError),
        ({"dtype": "float32", "shape": [2**32, 2**32]}, LimitError),
        ({"dtype": "float32", "shape": [1] * 9}, LimitError),
        ({"dtype": "float32", "shape": [2], "strides": [1, 1]}, ShapeError),
        ({"dtype": "float32", "shape": [2], "strides": [-1]}, ShapeError),
    ],
)
def test_a_bad_description_names_its_input(desc: dict[str, Any], error: type[UmdError]) -> None:
    request = translator_pb2.TranslateRequest(op_type="Relu")
    request.inputs.add(name="weights", **desc)
    with pytest.raises(error) as caught:
        read_request(request)
    assert "input" in caught.value.facts()


def test_errors_travel_with_their_facts() -> None:
    error = InputCountError("Add", 3, 2, 2).at(node="n1")
    again = read_error(int(error.status), error_text(error), facts_text(error))
    assert (type(again), str(again), again.facts()) == (InputCountError, str(error), error.facts())
    huge = ShapeError("x" * 100_000, "bad")
    assert len(error_text(huge)) < 3_000
    assert facts_text(huge) == ""
    assert type(read_error(99, "new", "[1]")) is UmdError
    assert type(read_error(4, "text", "not JSON")) is ShapeError


# graphs

ATTRIBUTES = st.one_of(
    st.booleans(),
    INT64,
    st.floats(allow_nan=False),
    st.text(max_size=10),
    st.binary(max_size=10),
    st.lists(INT64, max_size=3).map(tuple),
    st.lists(st.floats(allow_nan=False).filter(lambda x: not x.is_integer()), min_size=1, max_size=3).map(tuple),
    st.lists(st.text(max_size=5), min_size=1, max_size=3).map(tuple),
    st.sampled_from(ALL),
)


@st.composite
def graphs(draw: Any) -> Graph:
    """Graphs as data: names need not fit together."""
    names = st.text(min_size=1, max_size=8)
    graph = Graph(draw(names))
    graph.fuses = draw(st.booleans())
    for name in draw(st.lists(names, max_size=3, unique=True)):
        graph.input(name, draw(descs()))
    for name in draw(st.lists(names, max_size=2, unique=True)):
        dtype = draw(st.sampled_from(ALL))
        graph.constant(np.arange(6).reshape(draw(st.sampled_from([(6,), (2, 3), (1, 6)]))).astype(dtype.numpy), name)
    for _ in range(draw(st.integers(0, 4))):
        attributes = draw(st.dictionaries(names, ATTRIBUTES, max_size=3))
        inputs = draw(st.lists(st.text(max_size=5), max_size=3))
        outputs = draw(st.lists(names, min_size=1, max_size=2))
        graph.add(draw(names), inputs, attributes, outputs=outputs, name=draw(names), source=draw(names))
    for value in draw(st.lists(names, max_size=2)):
        graph.output(value, draw(st.none() | descs()), alias=draw(st.none() | names))
    return graph


@given(graphs())
def test_a_graph_comes_back(graph: Graph) -> None:
    raw = graph_messages.write_graph(graph).SerializeToString()
    again = graph_messages.read_graph(graph_pb2.Graph.FromString(raw))
    assert (again.name, again.fuses, again.inputs, again.nodes, again.outputs) == (
        graph.name, graph.fuses, graph.inputs, graph.nodes, graph.outputs,
    )  # fmt: skip
    assert again.constants.keys() == graph.constants.keys()
    for name, value in graph.constants.items():
        assert again.constants[name].dtype == value.dtype
        assert again.constants[name].shape == value.shape
        np.testing.assert_array_equal(again.constants[name].view(np.uint8), np.ascontiguousarray(value).view(np.uint8))


@pytest.mark.parametrize("value", [np.arange(3.0), np.float32(7), np.zeros((0, 2), np.int32)])
def test_arrays_as_attributes(value: Any) -> None:
    graph = Graph()
    graph.add("Op", [], {"value": np.asarray(value)}, outputs=["y"])
    again = graph_messages.read_graph(graph_messages.write_graph(graph)).nodes[0].attributes["value"]
    np.testing.assert_array_equal(again, value)
    assert again.dtype == np.asarray(value).dtype


@pytest.mark.parametrize("value", [2**63, [2**63], {"a": 1}, [1, "a"], [True, False], object()])
def test_attributes_without_a_form_on_the_wire_are_refused(value: Any) -> None:
    graph = Graph()
    graph.add("Op", [], {"value": value}, outputs=["y"])
    with pytest.raises(AttributeValueError):
        graph_messages.write_graph(graph)


def _mutated(raw: bytes, edits: list[tuple[int, int]]) -> bytes:
    data = bytearray(raw)
    for at, value in edits:
        data[at % len(data)] = value
    return bytes(data)


SAMPLE = Graph("sample")
SAMPLE.input("x", TensorDesc("float32", (2, 3)))
SAMPLE.constant(np.array([3, 2]), "shape")
SAMPLE.add("Reshape", ["x", "shape"], outputs=["y"], name="n", source="s")
SAMPLE.add("Softmax", ["y"], {"axis": -1}, outputs=["z"])
SAMPLE.output("z")
RAW = graph_pb2.TranslateGraphRequest(graph=graph_messages.write_graph(SAMPLE)).SerializeToString()


@given(st.lists(st.tuples(st.integers(0, len(RAW)), st.integers(0, 255)), min_size=1, max_size=4))
def test_hostile_graphs_become_typed_errors(edits: list[tuple[int, int]]) -> None:
    try:
        graph = graph_messages.read_graph(graph_messages.parse_request(_mutated(RAW, edits)).graph)
        umd.translate(graph)
    except UmdError:
        return


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda g: g.inputs.add(name="x"), Status.DTYPE),
        (lambda g: g.inputs.add(name="x", desc=graph_pb2.TensorDesc(dtype=1)), Status.INPUT_COUNT),
        (lambda g: g.inputs.add(name="w", desc=graph_pb2.TensorDesc(dtype=8)), Status.DTYPE),
        (lambda g: g.constants.add(name="shape", value=graph_pb2.Tensor(dtype=1)), Status.INPUT_COUNT),
        (lambda g: g.constants.add(value=graph_pb2.Tensor(dtype=1, shape=[0])), Status.INPUT_COUNT),
        (lambda g: g.constants.add(name="c", value=graph_pb2.Tensor(dtype=1, shape=[3])), Status.SHAPE),
        (lambda g: g.nodes.add(op="Add"), Status.INPUT_COUNT),
        (lambda g: g.nodes[0].attributes["bad"].SetInParent(), Status.ATTRIBUTE),
    ],
    ids=[
        "no-dtype",
        "input-twice",
        "dtype",
        "constant-twice",
        "constant-unnamed",
        "data-size",
        "no-output",
        "no-value",
    ],
)
def test_a_graph_that_is_not_well_formed(change: Any, status: Status) -> None:
    message = graph_messages.write_graph(SAMPLE)
    change(message)
    with pytest.raises(UmdError) as caught:
        graph_messages.read_graph(message)
    assert caught.value.status == status


def test_bools_are_one_byte_each() -> None:
    message = graph_messages.write_tensor(np.array([True, False]))
    assert (message.dtype, message.data) == (bool_.code, b"\x01\x00")
