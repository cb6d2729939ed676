"""The session: what it takes and gives, what it says of what does not fit, and how it binds shapes and values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.onnx import small_models
from umd_core.errors import (
    AttributeValueError,
    DecodeError,
    DTypeError,
    IndexRangeError,
    LimitError,
    OutOfMemoryError,
    ShapeError,
    UmdError,
    UnsupportedError,
)
from umd_onnx import InferenceSession, load
from umd_onnx.backend import UmdBackend
from umd_onnx.values import ValueNeededError
from umd_sim.device import SimDevice
from umd_sim.options import Options

X = np.array([[1, 2, 3], [-4, 0, 5]], np.float32)
Y = np.array([[2.1, 1.95], [2.5, 1.85]], np.float32)  # by hand: x · w + b


def session(model: onnx.ModelProto, **options: Any) -> InferenceSession:
    return load(model, "sim:0", **options)


def test_a_session_is_shaped_like_that_of_onnxruntime() -> None:
    raw = small_models.affine().SerializeToString()
    with load(raw, "sim:0") as ours:
        theirs = onnxruntime.InferenceSession(raw, providers=["CPUExecutionProvider"])
        for own, other in ((ours.get_inputs(), theirs.get_inputs()),):
            assert [(a.name, a.type, a.shape) for a in own] == [(a.name, a.type, a.shape) for a in other]
        assert [a.name for a in ours.get_outputs()] == ["y"]
        np.testing.assert_allclose(ours.run(None, {"x": X})[0], Y, rtol=1e-6)
        np.testing.assert_allclose(ours.run(["y"], {"x": X[:1]})[0], Y[:1], rtol=1e-6)


@pytest.mark.parametrize(
    ("feeds", "error", "said"),
    [
        ({}, AttributeValueError, "'x': is missing; inputs x"),
        ({"x": X, "z": X}, AttributeValueError, "'z': is not an input of the model; inputs x"),
        ({"x": X.astype("f8")}, DTypeError, "'x': is float64; one of float32"),
        ({"x": X[0]}, ShapeError, r"'x': is \[3\]; \[batch, 3\] would be right"),
        ({"x": X.T}, ShapeError, r"'x': is \[3, 2\]; \[batch, 3\] would be right"),
    ],
)
def test_inputs_that_do_not_fit(feeds: dict[str, Any], error: type[UmdError], said: str) -> None:
    with session(small_models.affine()) as own, pytest.raises(error, match=said):
        own.run(None, feeds)


@pytest.mark.parametrize("rows", [2, 40000])
@pytest.mark.parametrize("device", ["sim:0", "sim:0?strict=1"])
def test_what_a_run_returns_is_the_caller_s(device: str, rows: int) -> None:
    x = np.resize(X, (rows, 3))
    with load(small_models.affine(), device) as own:
        assert isinstance(own.device, SimDevice)
        (first,) = own.run(None, {"x": x})
        kept, used = first.copy(), own.device.used
        (second,) = own.run(None, {"x": x[:, ::-1]})
        np.testing.assert_array_equal(first, kept)
        assert not np.array_equal(second, first)
        second[...] = 7
        np.testing.assert_array_equal(own.run(None, {"x": x})[0], first)
        del second
        assert own.device.used <= used + first.nbytes


def test_programs_that_stay_loaded_make_room_for_others() -> None:
    nodes = [helper.make_node("Cos", ["x"], ["c"]), helper.make_node("MatMul", ["c", "w"], ["m"]),
             helper.make_node("ReduceMax", ["m"], ["y"])]  # fmt: skip
    weights = {"w": np.eye(1, 20000, dtype=np.float32)}
    model = small_models.model(nodes, {"x": (TensorProto.FLOAT, ("n", 1))}, ["y"], weights)
    device = SimDevice(Options(memory=2 << 20))
    with load(model, device) as own:
        for n in (5, 10, 15, 20, 5, 20, 10):  # the largest arena is most of the device
            x = np.linspace(0.5, 1.5, n, dtype=np.float32)[:, None]
            np.testing.assert_allclose(own.run(None, {"x": x})[0].max(), np.cos(0.5), rtol=1e-6)
    device.close()


def test_a_run_after_one_that_failed() -> None:
    nodes = [helper.make_node("Gather", ["w", "i"], ["y"])]
    inputs = {"i": (TensorProto.INT64, (2,))}
    with session(small_models.model(nodes, inputs, ["y"], {"w": np.arange(4, dtype=np.float32)})) as own:
        for wrong in range(2):
            with pytest.raises(IndexRangeError, match="9"):
                own.run(None, {"i": np.array([wrong, 9])})
            assert own.run(None, {"i": np.array([3, wrong])})[0].tolist() == [3, wrong]


def test_an_output_that_is_not_there() -> None:
    with session(small_models.affine()) as own, pytest.raises(AttributeValueError, match="outputs y"):
        own.run(["z"], {"x": X})


def test_named_extents_have_to_agree() -> None:
    nodes = [helper.make_node("Add", ["a", "b"], ["c"])]
    inputs = dict.fromkeys("ab", (TensorProto.FLOAT, ("n",)))
    a, b = np.zeros(3, np.float32), np.zeros(1, np.float32)
    with session(small_models.model(nodes, inputs, ["c"])) as own, pytest.raises(ShapeError, match="'n' is 1 here"):
        own.run(None, {"a": a, "b": b})


def test_sizes_given_at_load_are_part_of_the_shape() -> None:
    with session(small_models.affine(), dims={"batch": 4}) as own, pytest.raises(ShapeError, match=r"\[4, 3\]"):
        own.run(None, {"x": X})


def test_a_shape_given_at_load_takes_the_place_of_the_stated_one() -> None:
    with session(small_models.affine((7, 3))) as own, pytest.raises(ShapeError, match=r"\[7, 3\] would be right"):
        own.run(None, {"x": X})
    with session(small_models.affine((7, 3)), shapes={"x": [None, 3]}) as own:
        assert own.get_inputs()[0].shape == [None, 3]
        np.testing.assert_allclose(own.run(None, {"x": X})[0], Y, rtol=1e-6)
    with pytest.raises(AttributeValueError, match="inputs x"):
        session(small_models.affine(), shapes={"q": [1]})


def test_an_initializer_that_is_also_an_input_may_be_given() -> None:
    model = small_models.affine()
    model.graph.input.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [2]))
    with session(model) as own:
        assert [argument.name for argument in own.get_inputs()] == ["x"]
        np.testing.assert_allclose(own.run(None, {"x": X})[0], Y, rtol=1e-6)
        moved = own.run(None, {"x": X, "b": np.array([1.5, 0.75], np.float32)})[0]
        np.testing.assert_allclose(moved, Y + 1, rtol=1e-6)


def test_scalars_and_empty_tensors() -> None:
    nodes = [helper.make_node("Mul", ["a", "s"], ["b"])]
    model = small_models.model(nodes, {"a": (TensorProto.FLOAT, ("n", 2)), "s": (TensorProto.FLOAT, ())}, ["b"])
    with session(model) as own:
        assert own.run(None, {"a": np.empty((0, 2), np.float32), "s": np.float32(3)})[0].shape == (0, 2)
        assert own.run(None, {"a": np.ones((1, 2), np.float32), "s": np.float32(3)})[0].tolist() == [[3, 3]]


def test_values_that_decide_a_shape_are_part_of_the_binding() -> None:
    nodes = [helper.make_node("Reshape", ["a", "shape"], ["b"])]
    inputs = {"a": (TensorProto.FLOAT, (6,)), "shape": (TensorProto.INT64, (2,))}
    a = np.arange(6, dtype=np.float32)
    with session(small_models.model(nodes, inputs, ["b"])) as own:
        for shape in ((2, 3), (3, 2), (-1, 1)):
            found = own.run(None, {"a": a, "shape": np.array(shape, np.int64)})[0]
            np.testing.assert_array_equal(found, a.reshape(shape))


def test_large_inputs_do_not_become_part_of_a_program() -> None:
    nodes = [helper.make_node("NonZero", ["a"], ["b"])]
    model = small_models.model(nodes, {"a": (TensorProto.FLOAT, ("n",))}, ["b"])
    with session(model) as own:
        assert own.run(None, {"a": np.array([0, 2, 0, 1], np.float32)})[0].tolist() == [[1, 3]]
        with pytest.raises(ValueNeededError, match="NonZero's result depends on the values of a: a has 80000 bytes"):
            own.run(None, {"a": np.zeros(20000, np.float32)})


IF = """
small (float[n] x, float[1] limit) => (float[n] y) {
    total = ReduceSum (x)
    high = Greater (total, limit)
    y = If (high) <
        then_branch = a () => (float[n] p) { p = Neg (x) },
        else_branch = b () => (float[n] q) { q = Add (x, x) }
    >
}"""


def test_a_branch_that_depends_on_data_is_chosen_on_the_device() -> None:
    with session(small_models.text(IF)) as own:
        limit = np.array([3], np.float32)
        for x in ([1, 1], [4, 4], [-2, 9]):
            given = np.array(x, np.float32)
            wanted = -given if given.sum() > 3 else 2 * given
            np.testing.assert_array_equal(own.run(None, {"x": given, "limit": limit})[0], wanted)
        assert len(own._programs) == 1


def test_branches_of_other_shapes_need_the_values() -> None:
    other = IF.replace("q = Add (x, x)", "q = Concat <axis = 0> (x, x)")
    large = np.ones(20000, np.float32)
    with session(small_models.text(other)) as own:
        assert own.run(None, {"x": large[:2], "limit": np.array([3], np.float32)})[0].tolist() == [1, 1, 1, 1]
        assert own.run(None, {"x": large[:4], "limit": np.array([3], np.float32)})[0].tolist() == [-1] * 4
        with pytest.raises(ValueNeededError, match="x has 80000 bytes"):
            own.run(None, {"x": large, "limit": np.array([3], np.float32)})


LOOP = """
small (int64 trips, float[2] x) => (float[2] last, float[k, 2] all) {
    goes_on = Constant <value = bool {1}> ()
    last, all = Loop (trips, goes_on, x) <
        body = step (int64 i, bool c, float[2] old) => (bool c2, float[2] new, float[2] seen) {
            c2 = Identity (c)
            new = Add (old, old)
            seen = Neg (old)
        }
    >
}"""


def test_a_loop_is_unrolled_as_often_as_an_input_says() -> None:
    x = np.array([1, -2], np.float32)
    with session(small_models.text(LOOP)) as own:
        for trips in (0, 1, 3):
            last, seen = own.run(None, {"trips": np.array(trips), "x": x})
            np.testing.assert_array_equal(last, x * 2**trips)
            assert seen.shape == (trips, 2)
            np.testing.assert_array_equal(seen, [-x * 2**n for n in range(trips)] or np.empty((0, 2)))
        with pytest.raises(LimitError, match="trips of an unrolled loop is 4097"):
            own.run(None, {"trips": np.array(10**9), "x": x})


def test_random_ops_without_a_seed_draw_anew_and_with_one_again() -> None:
    nodes = [
        helper.make_node("RandomUniformLike", ["x"], ["u"]),
        helper.make_node("RandomUniform", [], ["v"], shape=[2, 3], seed=3.0),
    ]
    model = small_models.model(nodes, {"x": (TensorProto.FLOAT, (2, 3))}, ["u", "v"])
    with session(model) as own, session(model, seed=5) as one, session(model, seed=5) as other:
        (u, v), (again, same) = own.run(None, {"x": X}), own.run(None, {"x": X})
        assert not np.array_equal(u, again)
        np.testing.assert_array_equal(v, same)
        assert 0 <= u.min() < u.max() < 1
        np.testing.assert_array_equal(one.run(None, {"x": X})[0], other.run(None, {"x": X})[0])
        assert len(own._programs) == 1


def test_every_missing_op_is_named_at_once() -> None:
    nodes = [helper.make_node("Foo", ["x"], ["a"], domain="com.example"),
             helper.make_node("Bar", ["a"], ["y"], domain="com.example")]  # fmt: skip
    model = small_models.model(nodes, {"x": (TensorProto.FLOAT, (1,))}, ["y"], domains=["com.example"])
    with session(model) as own, pytest.raises(UnsupportedError, match=r"com\.example\.Bar, com\.example\.Foo"):
        own.run(None, {"x": np.zeros(1, np.float32)})


def test_ops_that_no_version_of_onnx_has_are_named_at_once() -> None:
    nodes = [helper.make_node("Foo", ["x"], ["a"]), helper.make_node("Bar", ["a"], ["y"])]
    with pytest.raises(UnsupportedError, match="Bar, Foo"):
        session(small_models.model(nodes, {"x": (TensorProto.FLOAT, (1,))}, ["y"]))


def test_an_opset_of_the_future() -> None:
    model = small_models.affine()
    model.opset_import[0].version = 99
    with pytest.raises(UnsupportedError, match="99"):
        session(model)


def test_an_element_type_that_umd_lacks_is_named() -> None:
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E8M0)]
    model = small_models.model(nodes, {"x": (TensorProto.FLOAT, (1,))}, ["y"])
    with session(model) as own, pytest.raises(DTypeError, match="to float8_e8m0fnu, which umd does not have"):
        own.run(None, {"x": np.zeros(1, np.float32)})


def test_narrow_integers_of_a_model_are_read() -> None:
    nodes = [helper.make_node("DequantizeLinear", ["q", "s"], ["w"]), helper.make_node("Mul", ["x", "w"], ["y"])]
    model = small_models.model(nodes, {"x": (TensorProto.FLOAT, (4,))}, ["y"], {"s": np.float32(0.5)})
    model.graph.initializer.append(helper.make_tensor("q", TensorProto.INT4, [4], [-8, -1, 0, 7]))
    with session(model) as own:
        assert own.run(None, {"x": np.ones(4, np.float32)})[0].tolist() == [-4, -0.5, 0, 3.5]


def test_a_model_larger_than_the_device_is_refused_before_the_upload() -> None:
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    weights = {"w": np.zeros((1 << 20,), np.float32)}
    model = small_models.model(nodes, {"x": (TensorProto.FLOAT, (1 << 20,))}, ["y"], weights)
    device = SimDevice(Options(memory=8 << 20))
    with load(model, device) as own:
        with pytest.raises(OutOfMemoryError) as raised:
            own.run(None, {"x": np.zeros(1 << 20, np.float32)})
        assert (raised.value.asked, raised.value.capacity) == (12 << 20, 8 << 20)
        assert own._weights == {}
    device.close()


def test_the_interface_of_the_standard() -> None:
    prepared = UmdBackend.prepare(small_models.affine(), "CPU")
    np.testing.assert_allclose(prepared.run([X])[0], Y, rtol=1e-6)
    assert UmdBackend.supports_device("sim:0")
    assert not UmdBackend.supports_device("nothing:0")


def test_one_node_is_run_by_the_interface_of_the_standard() -> None:
    split = helper.make_node("Split", ["x"], ["", "second"], num_outputs=2, axis=1)
    (second,) = UmdBackend.run_node(split, [X[:, :2]])
    np.testing.assert_array_equal(second, X[:, 1:2])
    clip = helper.make_node("Clip", ["x", "", "most"], ["y"])
    np.testing.assert_array_equal(UmdBackend.run_node(clip, [X, np.float32(1)])[0], np.minimum(X, 1))
    old = helper.make_node("Squeeze", ["x"], ["y"], axes=[0])  # attributes became inputs in opset 13
    np.testing.assert_array_equal(UmdBackend.run_node(old, [X[:1]], opset_version=11)[0], X[0])


def test_a_model_with_external_data(tmp_path: Path) -> None:
    onnx.save(
        small_models.affine(),
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    with load(tmp_path / "m.onnx", "sim:0") as own:
        np.testing.assert_allclose(own.run(None, {"x": X})[0], Y, rtol=1e-6)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(DecodeError, match=r"'weights.bin', which is missing"):
        load(tmp_path / "m.onnx", "sim:0")


def test_large_weights_of_an_old_model_come_through_the_converter() -> None:
    w = np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32)
    large = helper.make_node("Constant", [], ["v"], value=numpy_helper.from_array(w, "anything"))
    nodes = [large, helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("MatMul", ["a", "v"], ["y"])]
    model = small_models.model(nodes, {"x": (TensorProto.FLOAT, (1, 64))}, ["y"], {"w": w}, opset=9, rank=2)
    x = np.ones((1, 64), np.float32)
    with session(model) as own:
        assert [argument.name for argument in own.get_inputs()] == ["x"]
        np.testing.assert_allclose(own.run(None, {"x": x})[0], x @ w @ w, rtol=1e-4, atol=1e-4)
