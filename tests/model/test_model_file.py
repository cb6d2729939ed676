"""Model files: what is saved is what is loaded, and what is damaged is refused."""

from __future__ import annotations

import contextlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import umd_core as umd
from umd_core.errors import AttributeValueError, DTypeError, LimitError, ShapeError, UmdError
from umd_core.ir import Graph
from umd_model import Argument, Model, Session, Size, load, save
from umd_model.merging import merge
from umd_model.numbers import numbers_of
from umd_model.sizes import find_sizes

WIDTH = 3


def layer(batch: int) -> Graph:
    """relu(x · w + b), reshaped, beside a running count that a run adds to."""
    graph = Graph("layer")
    x = graph.input("x", umd.TensorDesc("f32", (batch, WIDTH)))
    w = graph.input("w", umd.TensorDesc("f32", (WIDTH, 2)))
    count = graph.input("count", umd.TensorDesc("i64", ()))
    y = graph.add("Relu", [graph.add("MatMul", [x, w])])
    flat = graph.add("Reshape", [y, graph.constant(np.array([2 * batch], np.int64))])
    graph.output(flat)
    graph.output(graph.add("Add", [count, graph.constant(np.int64(1))]))
    return graph


def model() -> Model:
    graph, sizes = find_sizes([Size("batch", 4, 1, 64)], lambda found: layer(*found))
    weight = np.arange(6, dtype=np.float32).reshape(3, 2) - 2
    weights: dict[str, Any] = {"weight": weight, "calls": np.array(0, np.int64)}
    arguments = (Argument("x", "x", False), Argument("w", "weight", True), Argument("count", "calls", True))
    return Model(graph, arguments, weights, ("y",), ((1, "calls"),), sizes, "a test")


def expected(x: Any) -> Any:
    return np.maximum(x @ model().weights["weight"], 0).reshape(-1)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "layer.umd"
    save(model(), path)
    return path


def test_what_is_saved_is_loaded(file: Path) -> None:
    saved, loaded = model(), load(file)
    assert numbers_of(loaded.graph) == numbers_of(saved.graph)
    assert (loaded.arguments, loaded.outputs, loaded.updates) == (saved.arguments, saved.outputs, saved.updates)
    assert (loaded.sizes, loaded.producer) == (saved.sizes, "a test")
    assert {n: w.tolist() for n, w in loaded.weights.items()} == {n: w.tolist() for n, w in saved.weights.items()}


def test_the_same_model_gives_the_same_file(file: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.umd"
    save(load(file), again)
    assert again.read_bytes() == file.read_bytes()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["again.umd", "layer.umd"]


@pytest.mark.parametrize("dtype", [d.numpy for d in umd.dtypes.ALL], ids=lambda d: d.name)
def test_weights_of_every_type_travel(tmp_path: Path, dtype: np.dtype[Any]) -> None:
    weight = np.array([[0, 1], [1, 0]]).astype(dtype)
    graph = Graph()
    graph.output(graph.add("Identity", [graph.input("w", umd.TensorDesc.of(weight))]))
    save(Model(graph, (Argument("w", "w", True),), {"w": weight}, ("y",)), tmp_path / "m")
    with Session(load(tmp_path / "m"), "sim:0") as session:
        found = session.run({})["y"]
    assert found.dtype == dtype
    assert found.tobytes() == weight.tobytes()


@pytest.mark.parametrize("batch", [1, 4, 9, 64])
def test_an_open_size_is_translated_for_what_comes(file: Path, batch: int) -> None:
    x = np.random.default_rng(batch).standard_normal((batch, WIDTH), np.float32)
    with Session(load(file), "sim:0") as session:
        for _ in range(2):
            np.testing.assert_allclose(session.run({"x": x})["y"], expected(x), rtol=1e-6)


def test_what_a_run_changes_stays_changed(file: Path) -> None:
    x = np.zeros((4, WIDTH), np.float32)
    with Session(load(file), "sim:0") as session:
        for _ in range(3):
            session.run({"x": x})
        assert session._weights["calls"].numpy() == 3


@pytest.mark.parametrize(
    ("inputs", "error", "right"),
    [
        ({}, AttributeValueError, "inputs x"),
        ({"x": np.zeros((4, 3), np.float32), "z": np.zeros(1)}, AttributeValueError, "inputs x"),
        ({"x": np.zeros((4, 2), np.float32)}, ShapeError, "[batch, 3] would be right"),
        ({"x": np.zeros(3, np.float32)}, ShapeError, "[batch, 3] would be right"),
        ({"x": np.zeros((4, 3))}, DTypeError, "float32 would be right"),
        ({"x": np.zeros((65, 3), np.float32)}, LimitError, "64"),
        ({"x": np.zeros((0, 3), np.float32)}, LimitError, "1"),
    ],
)
def test_inputs_that_do_not_fit(file: Path, inputs: dict[str, Any], error: type[UmdError], right: str) -> None:
    with Session(load(file), "sim:0") as session, pytest.raises(error) as found:
        session.run(inputs)
    assert right in str(found.value)


@given(st.data())
@settings(max_examples=150)
def test_a_damaged_file_is_refused_or_understood(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("damaged") / "m"
    save(model(), path)
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        if data.draw(st.booleans()):
            raw[at] = data.draw(st.integers(0, 255))
        else:
            del raw[at : at + data.draw(st.integers(1, 64))]
    path.write_bytes(raw)
    try:
        loaded = load(path)
    except UmdError:
        return
    assert [a.value for a in loaded.arguments] == list(loaded.graph.inputs)


def altered(source: Path, member: str, change: Any) -> Path:
    """Returns a copy of a file with one member changed; None takes it out."""
    target = source.with_suffix(".altered")
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename == member:
                data = change(data)
            if data is not None:
                new.writestr(info, data)
    return target


def manifest_with(**changes: Any) -> Any:
    return lambda raw: json.dumps({**json.loads(raw), **changes})


@pytest.mark.parametrize(
    ("member", "change", "reason"),
    [
        ("manifest.json", lambda _: None, "manifest.json is missing"),
        ("graph.pb", lambda _: None, "graph.pb is missing"),
        ("weights.safetensors", lambda raw: raw[:-4], "damaged"),
        ("graph.pb", lambda raw: b"\xff" + raw, "graph"),
        ("manifest.json", lambda _: "[]", "not that of a model"),
        ("manifest.json", manifest_with(version=2), "version 2"),
        ("manifest.json", manifest_with(arguments=[]), "arguments"),
        ("manifest.json", manifest_with(outputs=["a", "b", "c"]), "more outputs"),
        ("manifest.json", manifest_with(updates=[[0, "calls"]]), "update"),
        ("manifest.json", manifest_with(sizes=[]), "size that is not there"),
        ("manifest.json", manifest_with(programs=["../../etc/passwd"]), "missing"),
        ("manifest.json", manifest_with(numbers=3), "damaged"),
    ],
)
def test_members_that_do_not_fit(file: Path, member: str, change: Any, reason: str) -> None:
    with pytest.raises(UmdError) as found:
        load(altered(file, member, change))
    assert reason in str(found.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other"
    for raw in (b"", b"PK", b"\x00" * 4096):
        path.write_bytes(raw)
        with pytest.raises(UmdError, match="no model file"):
            load(path)


@given(st.lists(st.integers(2, 5), min_size=1, max_size=3), st.data())
@settings(max_examples=60)
def test_sums_and_products_of_sizes_are_found(bases: list[int], data: st.DataObject) -> None:
    terms = [st.integers(0, 3) for _ in range(2 ** len(bases))]
    rows = data.draw(st.lists(st.tuples(*terms), min_size=1, max_size=4))

    def number(row: tuple[int, ...], sizes: tuple[int, ...]) -> int:
        total = 1
        for chosen, factor in enumerate(row):
            total += factor * int(np.prod([s for i, s in enumerate(sizes) if chosen >> i & 1]))
        return total

    def graph(sizes: tuple[int, ...]) -> Graph:
        made = Graph()
        made.output(made.input("x", umd.TensorDesc("f32", [number(row, sizes) for row in rows])))
        return made

    found, sizes = find_sizes([Size(str(i), base) for i, base in enumerate(bases)], graph)
    wanted = tuple(data.draw(st.integers(1, 20)) for _ in bases)
    given = {str(i): value for i, value in enumerate(wanted)}
    assert numbers_of(sizes.apply(found, given)) == numbers_of(graph(wanted))


def test_a_size_that_enters_otherwise_is_refused() -> None:
    def graph(sizes: tuple[int, ...]) -> Graph:
        made = Graph()
        made.output(made.input("x", umd.TensorDesc("f32", [sizes[0] ** 2])))
        return made

    with pytest.raises(UmdError, match=r"input.x.shape.0 does not follow from the sizes"):
        find_sizes([Size("n", 3)], graph)


@pytest.mark.parametrize(
    ("number", "range_"),
    [(lambda n: n // 8, (1, 4096)), (lambda n: max(n, 3), (1, 4096)), (lambda n: n // 8, (1, 16))],
    ids=["far", "small", "end_of_the_range"],
)
def test_a_size_that_enters_otherwise_elsewhere_is_refused(
    number: Callable[[int], int], range_: tuple[int, int]
) -> None:
    def graph(sizes: tuple[int, ...]) -> Graph:
        made = Graph()
        made.output(made.input("x", umd.TensorDesc("f32", [1 + number(sizes[0])])))
        return made

    with pytest.raises(UmdError, match=r"input.x.shape.0 does not follow from the sizes"):
        find_sizes([Size("n", 8, *range_)], graph)


def mean_of_twice(batch: int) -> Graph:
    """(x + x) / batch, with a sum and its divisor that are there twice, and one that is equal for a batch of 4 only."""
    graph = Graph("mean")
    x = graph.input("x", umd.TensorDesc("f32", (batch, 2)))
    rows = [graph.constant(np.float32(batch)) for _ in range(2)]
    fixed = graph.constant(np.float32(4))
    sums = [graph.add("Add", [x, x]) for _ in range(2)]
    for each, divisor in ((sums[0], rows[0]), (sums[1], rows[1]), (sums[0], fixed)):
        graph.output(graph.add("Div", [each, divisor]))
    return graph


@pytest.mark.parametrize("batch", [1, 4, 300])
def test_what_is_equal_for_all_sizes_is_merged(batch: int) -> None:
    graph, sizes = merge(*find_sizes([Size("batch", 4)], lambda found: mean_of_twice(*found)))
    assert [node.op for node in graph.nodes] == ["Add", "Div", "Div"]
    assert len(graph.constants) == 2
    x = np.arange(2 * batch, dtype=np.float32).reshape(batch, 2)
    with contextlib.closing(umd.open_device("sim:0")) as device:
        program = umd.translate(sizes.apply(graph, {"batch": batch}), caps=device.caps())
        mean, again, fixed = (result.numpy() for result in device.run(program, [x]))
    np.testing.assert_array_equal(mean, 2 * x / np.float32(batch))
    np.testing.assert_array_equal(again, mean)
    np.testing.assert_array_equal(fixed, x / 2)


def test_numbers_in_attributes_move_with_their_nodes() -> None:
    def graph(sizes: tuple[int, ...]) -> Graph:
        made = Graph()
        x = made.input("x", umd.TensorDesc("f32", (2,)))
        for attributes in (
            {},
            {},
            {"count": sizes[0]},
            {"count": 8},
            {"count": sizes[0]},
            {"slope": 0.0},
            {"slope": -0.0},
        ):
            made.output(made.add("Anything", [x], attributes))
        return made

    found, sizes = merge(*find_sizes([Size("n", 8)], graph))
    applied = sizes.apply(found, {"n": 5})
    assert [node.attributes for node in applied.nodes] == [
        {},
        {"count": 5},
        {"count": 8},
        {"slope": 0.0},
        {"slope": -0.0},
    ]
    kept = [node.outputs[0] for node in applied.nodes]
    assert [output.value for output in applied.outputs] == [kept[i] for i in (0, 0, 1, 2, 1, 3, 4)]
