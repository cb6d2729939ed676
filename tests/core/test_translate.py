"""Translation: caches, placement of outputs, in-place updates, memory reuse, errors."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import umd_core as umd
from umd_core import errors
from umd_core.commands import Barrier, CommandBuffer, Copy, Dispatch, SlotKind
from umd_core.ir import Graph, TensorDesc
from umd_core.kernels import KERNELS
from umd_core.single import translate_single
from umd_core.testing import strategies as us
from umd_core.translate import Translator, op_graph, translate

F32 = TensorDesc("f32", (4, 5))
ROW = TensorDesc("f32", (5,))


def kernel_names(cb: CommandBuffer) -> list[str]:
    return [cb.kernels[c.kernel].row.name if isinstance(c, Dispatch) else type(c).__name__ for c in cb.commands]


def slot_kinds(cb: CommandBuffer) -> list[int]:
    return [slot.kind for slot in cb.slots]


def test_one_add_is_one_dispatch_over_three_arguments() -> None:
    cb = translate("Add", [F32, ROW])
    assert kernel_names(cb) == ["elementwise_add_kernel"]
    assert slot_kinds(cb) == [SlotKind.ARGUMENT] * 3
    assert [slot.min_size for slot in cb.slots] == [80, 20, 80]
    assert [slot.access for slot in cb.slots] == [1, 1, 2]
    assert cb.outputs[0] == F32


def test_a_signature_seen_before_is_the_same_command_buffer() -> None:
    assert translate("Add", [F32, ROW]) is translate("Add", [TensorDesc("f32", [4, 5]), TensorDesc("f32", [5])])
    assert translate("Add", [F32, ROW]) is not translate("Add", [F32, TensorDesc("f32", (5,), (2,))])
    array = np.zeros((4, 5), np.float32)
    assert translate("Add", [array, array]) is translate("Add", [F32, F32])


def test_nodes_that_no_output_needs_are_left_out() -> None:
    graph = Graph()
    x = graph.input("x", F32)
    graph.add("Add", [x, x])
    graph.output(graph.add("Mul", [x, x]))
    assert kernel_names(translate(graph)) == ["elementwise_mul_kernel"]


def test_a_chain_is_computed_in_place_in_its_output() -> None:
    graph = Graph()
    value = x = graph.input("x", F32)
    for _ in range(6):
        value = graph.add("Add", [value, x])
    graph.output(value)
    cb = translate(graph)
    assert cb.arena_size == 256
    last = cb.commands[-1]
    assert isinstance(last, Dispatch)
    assert last.refs[2].slot == 1


def test_an_input_as_output_is_a_copy_command() -> None:
    graph = Graph()
    graph.output(graph.input("x", F32))
    cb = translate(graph)
    assert kernel_names(cb) == ["Copy"]
    copy = cb.commands[0]
    assert isinstance(copy, Copy)
    assert (copy.destination.slot, copy.source.slot, copy.source.length) == (1, 0, 80)


def test_one_value_as_two_outputs() -> None:
    graph = Graph()
    x = graph.input("x", F32)
    value = graph.add("Add", [x, x])
    graph.output(value)
    graph.output(value)
    cb = translate(graph)
    assert kernel_names(cb) == ["elementwise_add_kernel", "Copy"]
    assert cb.commands[1].deps == (0,)


def test_an_output_takes_the_layout_it_is_wanted_in() -> None:
    graph = Graph()
    x = graph.input("x", F32)
    graph.output(graph.add("Add", [x, x]), TensorDesc("f32", (4, 5), (1, 4)))
    cb = translate(graph)
    dispatch = cb.commands[0]
    assert isinstance(dispatch, Dispatch)
    block = cb.kernels[dispatch.kernel].unpack(dispatch.parameters)
    assert block["out_strides"][-2:] == (1, 4)
    assert len(cb.commands) == 1


def in_place_update(*, read_late: bool) -> CommandBuffer:
    graph = Graph()
    p, g = graph.input("p", F32), graph.input("g", F32)
    new = graph.add("Sub", [p, g])
    graph.output(new, alias="p")
    if read_late:
        graph.output(graph.add("Mul", [p, new]))
    return translate(graph)


def test_an_aliased_output_is_written_in_place() -> None:
    cb = in_place_update(read_late=False)
    assert kernel_names(cb) == ["elementwise_sub_kernel"]
    assert cb.aliases == ((0, 0),)
    assert cb.slots[0].alias_group == cb.slots[2].alias_group == 1
    assert cb.slots[1].alias_group == 0


def test_an_input_that_is_read_later_is_overwritten_last() -> None:
    cb = in_place_update(read_late=True)
    assert kernel_names(cb) == ["elementwise_sub_kernel", "elementwise_mul_kernel", "Copy"]
    assert cb.commands[2].deps == (1,)


def test_an_alias_needs_the_same_layout() -> None:
    graph = Graph()
    x = graph.input("x", F32)
    graph.output(graph.add("Add", [x, x]), TensorDesc("f32", (4, 5), (1, 4)), alias="x")
    with pytest.raises(errors.ShapeError, match="layouts differ"):
        translate(graph)


def test_more_than_32_dependencies_become_a_barrier() -> None:
    graph = Graph()
    parts = []
    for index in range(40):
        x = graph.input(f"x{index}", ROW)
        parts.append(graph.add("Add", [x, x]))
    graph.output(graph.add("Concat", parts, {"axis": 0}))
    total = graph.add("Add", [parts[0], parts[1]])
    graph.output(total)
    cb = translate(graph)
    assert all(len(c.deps) <= 32 for c in cb.commands)
    assert bytes(cb)


def test_a_barrier_stands_for_many_dependencies() -> None:
    graph = Graph()
    x = graph.input("x", TensorDesc("f32", (50,)))
    reads = [graph.add("Mul", [x, x]) for _ in range(1)]
    pieces = [graph.add("Slice", [x, graph.constant([i]), graph.constant([i + 1])]) for i in range(50)]
    values = [graph.add("Add", [piece, piece]) for piece in pieces]
    graph.output(reads[0], alias="x")
    for value in values:
        graph.output(value)
    cb = translate(graph)
    assert any(isinstance(c, Barrier) for c in cb.commands)
    assert all(len(c.deps) <= 32 for c in cb.commands)


def test_constants_are_kept_once() -> None:
    graph = Graph()
    x = graph.input("x", F32)
    one = graph.constant(np.float32(1))
    other = graph.constant(np.float32(1))
    graph.output(graph.add("Add", [graph.add("Add", [x, one]), other]))
    cb = translate(graph)
    assert [s.kind for s in cb.slots].count(SlotKind.CONSTANT) == 1


def test_zero_size_tensors_need_no_launch() -> None:
    empty = TensorDesc("f32", (0, 5))
    cb = translate("Add", [empty, ROW])
    assert cb.commands == []
    assert cb.outputs[0].shape == (0, 5)


def test_static_inputs_come_as_arrays_or_attributes() -> None:
    by_array = translate("Reshape", [F32, np.array([5, 4])])
    by_name = translate("Reshape", [F32], shape=[5, 4])
    assert by_array.outputs == by_name.outputs == (TensorDesc("f32", (5, 4)),)
    assert len(by_array.inputs) == 1
    with pytest.raises(errors.AttributeValueError, match="must be known"):
        translate("Reshape", [F32, TensorDesc("i64", (2,))])


def test_debug_names_the_op_and_the_source() -> None:
    graph = Graph()
    x = graph.input("x", F32)
    graph.output(graph.add("Add", [x, x], name="sum", source="model.py:7"))
    cb = translate(graph)
    assert cb.debug == [("Add", "sum", "model.py:7")]


class OnlyLevel0:
    """A device with the level-0 kernels only."""

    def supports(self, name: str, types: tuple[umd.DType, ...]) -> bool:
        return next(row for (n, _), row in KERNELS.items() if n == name).level == 0


def test_kernels_that_a_device_lacks_are_decomposed() -> None:
    caps = OnlyLevel0()
    whole = translate("Softmax", [F32], axis=1)
    parts = translate("Softmax", [F32], caps=caps, axis=1)
    assert kernel_names(whole) == ["softmax_kernel"]
    assert len(parts.commands) > 1
    assert all(record.row.level == 0 for record in parts.kernels)


class Nothing:
    """A device without kernels."""

    def supports(self, name: str, types: tuple[umd.DType, ...]) -> bool:
        return False


def test_what_a_device_lacks_is_refused_with_the_ops_name() -> None:
    with pytest.raises(errors.UnsupportedError, match="elementwise_add_kernel<float32>") as caught:
        translate("Add", [F32, ROW], caps=Nothing())
    assert caught.value.status == errors.Status.UNSUPPORTED


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "error", "words"),
    [
        ("Ad", [F32, F32], {}, errors.UnknownOpError, "did you mean .*Add"),
        ("Add", [F32], {}, errors.InputCountError, "takes 2 inputs, got 1"),
        ("Add", [F32, F32, F32], {}, errors.InputCountError, "takes 2 inputs, got 3"),
        ("Add", [F32, TensorDesc("f32", (4, 6))], {}, errors.ShapeError, r"\[4, 5\] and \[4, 6\]"),
        ("Add", [F32, TensorDesc("i32", (5,))], {}, errors.DTypeError, "'B': is int32.*float32 would be right"),
        ("Add", [F32, ROW], {"axis": 1}, errors.AttributeValueError, "unknown attribute"),
        ("Softmax", [F32], {"axis": "x"}, errors.AttributeValueError, "kind int would be right"),
    ],
)
def test_bad_requests_say_what_would_be_right(
    op: str, inputs: list[TensorDesc], attributes: dict[str, Any], error: type[umd.UmdError], words: str
) -> None:
    with pytest.raises(error, match=words):
        translate(op, inputs, **attributes)


def test_numbers_that_are_too_large_are_refused() -> None:
    with pytest.raises(errors.LimitError, match="element count"):
        TensorDesc("f32", (2**32, 2**32))
    big = TensorDesc("u8", (2**40, 1))
    with pytest.raises(errors.LimitError, match="element count"):
        translate("Add", [big, TensorDesc("u8", (1, 2**40))])
    with pytest.raises(errors.LimitError, match="tensor size in bytes"):  # the norms of no elements each
        translate("LpNormalization", [TensorDesc("f16", (2**31, 2**40, 0))])
    with pytest.raises(errors.ShapeError, match="negative extent"):
        TensorDesc("f32", (2, -1))


def test_an_undefined_value_is_named() -> None:
    graph = Graph()
    graph.output(graph.add("Relu", ["nowhere"]))
    with pytest.raises(errors.UndefinedValueError, match="'nowhere'"):
        translate(graph)


def test_recipes_are_shared_between_graphs() -> None:
    translator = Translator()
    translator.graph(op_graph("Add", [F32, ROW], {}))
    translator.graph(op_graph("Add", [F32, ROW], {}))
    assert (translator.recipes.hits, translator.recipes.misses) == (1, 1)


def test_command_buffers_survive_pickle_and_copy() -> None:
    cb = translate("MatMul", [TensorDesc("f32", (2, 3)), TensorDesc("f32", (3, 4))])
    for other in (pickle.loads(pickle.dumps(cb)), copy.deepcopy(cb)):
        assert other == cb
        assert other.kernels[0] is cb.kernels[0]


@settings(max_examples=300)
@given(us.op_requests())
def test_the_short_way_gives_the_same_bytes(request: us.OpRequest) -> None:
    inputs = [TensorDesc.of(x) if not isinstance(x, np.ndarray) else x for x in request.inputs]
    translator = Translator()
    try:
        short = translate_single(request.op, inputs, request.attributes, translator.recipes)
    except umd.UmdError as error:
        with pytest.raises(type(error)):
            translator.graph(op_graph(request.op, inputs, request.attributes))
        return
    if short is not None:
        general = translator.graph(op_graph(request.op, inputs, request.attributes))
        assert short == general
        assert bytes(short) == bytes(general)


def test_the_short_way_is_taken() -> None:
    turned = TensorDesc("f32", (4, 5), (-1, 4), 3)
    for op, inputs in (("Add", [F32, ROW]), ("Add", [turned, ROW]), ("MatMul", [F32, TensorDesc("f32", (5, 2))])):
        short = translate_single(op, inputs, {}, Translator().recipes)
        assert short is not None
        assert bytes(short) == bytes(Translator().graph(op_graph(op, inputs, {})))


def test_the_gradient_of_relu_passes_nan_as_torch_does() -> None:
    dy, y = np.array([1, 2, 3, 4], np.float32), np.array([np.nan, 0, -1, 2], np.float32)
    (got,) = umd.open_device("sim:0").run(translate("umd.ReluGrad", [dy, y]), [dy, y])
    np.testing.assert_array_equal(got.numpy(), [1, 0, 0, 4])
