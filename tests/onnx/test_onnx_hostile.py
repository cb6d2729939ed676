"""Files that nobody vouches for: broken, mutated, oversized, or reaching out of their folder."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.onnx import small_models
from tests.onnx.test_onnx_session import IF, LOOP
from umd_core.device import Device
from umd_core.errors import DecodeError, LimitError, UmdError, UnsupportedError
from umd_core.registry import open_device
from umd_onnx import load, load_model

SEEDS = [model.SerializeToString() for model in (small_models.affine(), small_models.text(IF), small_models.text(LOOP))]
SMALL = 1 << 12
"""Elements of an input up to which a mutated model is run."""


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("sim:0")


def attempt(raw: bytes, device: Device) -> bool:
    """Returns whether a model loads and runs on random inputs; only typed errors may come of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns of what broken numbers give
        try:
            with load(raw, device) as session:
                feeds = {}
                for argument in session.get_inputs():
                    shape = [e if isinstance(e, int) else 2 for e in argument.shape]
                    if np.prod(shape, dtype=float) > SMALL:
                        return False
                    info = next(i for i in session.model.graph.input if i.name == argument.name)
                    kind = info.type.tensor_type.elem_type
                    feeds[argument.name] = np.ones(shape, helper.tensor_dtype_to_np_dtype(kind))
                session.run(None, feeds)
        except UmdError:
            return False
    return True


@settings(max_examples=150)
@given(seed=st.sampled_from(SEEDS), data=st.data())
def test_flipped_bytes_give_a_result_or_a_typed_error(seed: bytes, data: st.DataObject, device: Device) -> None:
    raw = bytearray(seed)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    attempt(bytes(raw), device)


@settings(max_examples=100)
@given(seed=st.sampled_from(SEEDS), data=st.data())
def test_cut_and_spliced_bytes_give_a_typed_error(seed: bytes, data: st.DataObject, device: Device) -> None:
    start, end = sorted((data.draw(st.integers(0, len(seed))), data.draw(st.integers(0, len(seed)))))
    attempt(seed[:start] + data.draw(st.binary(max_size=8)) + seed[end:], device)


@settings(max_examples=100)
@given(st.binary(max_size=64))
def test_other_bytes_are_no_model(raw: bytes) -> None:
    with pytest.raises((DecodeError, UnsupportedError)):
        load_model(raw)


_EXTENTS = st.one_of(st.integers(-3, 5), st.sampled_from([2**31, 2**62, 2**63 - 1, -(2**63)]))


@settings(max_examples=100)
@given(dims=st.lists(_EXTENTS, max_size=9), kind=st.integers(0, 40), raw=st.binary(max_size=16))
def test_weights_of_any_shape_and_type(dims: list[int], kind: int, raw: bytes, device: Device) -> None:
    model = small_models.affine()
    weight = model.graph.initializer[0]
    del weight.dims[:]
    weight.dims.extend(dims)
    weight.data_type, weight.raw_data = kind, raw
    attempt(model.SerializeToString(), device)


def test_the_unharmed_models_run(device: Device) -> None:
    assert [attempt(seed, device) for seed in SEEDS] == [True, True, True]


@pytest.mark.parametrize("cut", [1, 20, 100])
def test_a_truncated_file(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(SEEDS[0][:-cut])
    with pytest.raises(DecodeError):
        load_model(file)


@pytest.mark.parametrize("content", [b"PK\x03\x04" + b"\0" * 40, b"\x93NUMPY\x01\0", b"{}", b""])
def test_a_file_of_another_kind(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(content)
    with pytest.raises(DecodeError, match=r"m\.onnx is no ONNX model"):
        load_model(file)


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    with file.open("wb") as handle:
        handle.truncate((2 << 30) + 1)  # a hole: it takes no room
    with pytest.raises(LimitError, match="the limit is 2147483648"):
        load_model(file)


def external(location: str, folder: Path, **entries: int) -> Path:
    """Writes a model whose weight lies in another file."""
    model = small_models.affine()
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        weight.external_data.add(key=key, value=str(value))
    file = folder / "m.onnx"
    file.write_bytes(model.SerializeToString())
    return file


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "sub/../../secret", "link", ""])
def test_external_data_stay_below_the_folder(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"x" * 24)
    (folder / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(DecodeError, match="not below the model's folder"):
        load_model(external(location, folder))


@pytest.mark.parametrize(("entries", "said"), [
    ({}, "beyond the end"), ({"offset": -1}, "at -1"), ({"offset": 1 << 62}, "beyond the end"),
    ({"length": 8}, "says 8"),
])  # fmt: skip
def test_external_data_that_do_not_fit(tmp_path: Path, entries: dict[str, int], said: str) -> None:
    (tmp_path / "w").write_bytes(b"x" * 12)
    with pytest.raises(DecodeError, match=said):
        load_model(external("w", tmp_path, **entries))


def test_external_data_of_a_model_without_a_folder(tmp_path: Path) -> None:
    with pytest.raises(DecodeError, match="load the model by its path"):
        load_model(external("w", tmp_path).read_bytes())


def grown(shape: list[int]) -> onnx.ModelProto:
    """Returns a model that fills a tensor of this shape."""
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["big"]), helper.make_node("Add", ["x", "big"], ["y"])]
    inputs = {"x": (TensorProto.FLOAT, (1,))}
    return small_models.model(nodes, inputs, ["y"], {"s": np.array(shape, np.int64)})


@pytest.mark.parametrize("shape", [[1 << 40], [1 << 21, 1 << 21], [1 << 31, 1 << 31, 1 << 31], [-1]])
def test_huge_shapes_are_refused_before_memory_is_taken(shape: list[int], device: Device) -> None:
    with load(grown(shape), device) as session, pytest.raises(UmdError):
        session.run(None, {"x": np.zeros(1, np.float32)})


@pytest.mark.parametrize("op", ["Expand", "Tile"])
def test_little_that_becomes_much_is_not_computed_while_importing(op: str, device: Device) -> None:
    nodes = [helper.make_node(op, ["w", "s"], ["big"]), helper.make_node("Add", ["x", "big"], ["y"])]
    weights = {"s": np.array([1 << 40], np.int64), "w": np.ones(1, np.float32)}
    model = small_models.model(nodes, {"x": (TensorProto.FLOAT, (1,))}, ["y"], weights)
    with load(model, device) as session, pytest.raises(UmdError):
        session.run(None, {"x": np.zeros(1, np.float32)})


def test_nested_loops_are_bounded(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("umd_onnx.importer.NODES", 1 << 12)
    source = """
small (float[2] x) => (float[2] y) {
    n = Constant <value = int64 {4000}> ()
    t = Constant <value = bool {1}> ()
    y = Loop (n, t, x) <
        body = outer (int64 i, bool c, float[2] a) => (bool c2, float[2] b) {
            c2 = Identity (c)
            b = Loop (n, t, a) <
                body = inner (int64 j, bool d, float[2] p) => (bool d2, float[2] q) {
                    d2 = Identity (d)
                    q = Identity (p)
                }
            >
        }
    >
}"""
    with (
        load(small_models.text(source), device) as session,
        pytest.raises(LimitError, match="nodes, those of unrolled"),
    ):
        session.run(None, {"x": np.zeros(2, np.float32)})


def test_doubling_while_importing_is_bounded(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("umd_onnx.host.LIMIT", 1 << 20)
    source = """
small (float[1] x) => (float[k] y) {
    n = Constant <value = int64 {60}> ()
    t = Constant <value = bool {1}> ()
    one = Constant <value = float[1] {1.0}> ()
    y = Loop (n, t, one) <
        body = step (int64 i, bool c, float[m] a) => (bool c2, float[k] b) {
            c2 = Identity (c)
            b = Concat <axis = 0> (a, a)
        }
    >
}"""
    with load(small_models.text(source), device) as session, pytest.raises(UmdError):
        session.run(None, {"x": np.zeros(1, np.float32)})
