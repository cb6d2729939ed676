"""A graph that is lowered for many sets of sizes: each gives the program that it gives alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from umd_core.ir import Graph, TensorDesc
from umd_core.passes import optimise
from umd_core.translate import Translator
from umd_torch import emissions as kept
from umd_torch.builder import Builder, Interned, Promise, Record, Value, from_torch
from umd_torch.emissions import Emission, Emissions
from umd_torch.graphs import Lowered, Lowering, lower
from umd_torch.symbols import Bound, Open, evaluate
from umd_torch.tracing import decompositions, tracing

F32 = from_torch(torch.float32)


def grow(x: torch.Tensor, new: torch.Tensor) -> Any:
    """A cache that grows by a row, and what attends to it."""
    whole = torch.cat([x, new])
    scores = (new * 0.5) @ whole.t()
    seen = torch.arange(whole.shape[0]) <= x.shape[0] - 1
    return whole, scores.masked_fill(~seen, float("-inf")).softmax(-1) @ whole, new.relu() + 1


def cut(x: torch.Tensor, new: torch.Tensor) -> Any:
    """Slices and expansions that do nothing for some sizes."""
    left = x[:4]
    return left * 2, x[-3:].sum(), torch.flip(x, [0])[:4] - left, new.expand(x.shape[0], -1) * x


def shared(x: torch.Tensor, new: torch.Tensor) -> Any:
    """Equal ops at several places, some of which only some sizes have."""
    padded = torch.nn.functional.pad(new, (0, 0, 0, x.shape[0] - 2))
    return x[:2].double() + padded[:2].double(), new.double() * 2, x.reshape(-1)[: 2 * x.shape[1]].exp(), new.exp()


def numbers(x: torch.Tensor, new: torch.Tensor) -> Any:
    """Sizes as numbers: in constants, shapes and products."""
    count, width = x.shape
    grid = torch.arange(count * width).reshape(count, width)
    return x / count, new.repeat(count, 1) + grid, torch.full((count, 2), width), x.mean(0), x.view(-1, 2).sum(1)


def random(x: torch.Tensor, new: torch.Tensor) -> Any:
    """Random numbers before and after what depends on a size."""
    return torch.rand_like(new) + 1, torch.rand_like(x), torch.rand_like(new) * 2, new.sigmoid()


FUNCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    f.__name__: f for f in (grow, cut, shared, numbers, random)
}


class Traced:
    """A function as a graph whose first argument has an open number of rows."""

    def __init__(self, function: Callable[..., Any], rows: int = 7) -> None:
        with tracing():
            traced = make_fx(function, decompositions(), tracing_mode="symbolic")
            self.module: fx.GraphModule = traced(torch.zeros(rows, 4), torch.zeros(1, 4))
        value = next(iter(self.module.graph.nodes)).meta["val"]
        self.symbols = [extent.node.expr for extent in value.shape if isinstance(extent, torch.SymInt)]
        fixed = [n.meta["val"].shape for n in self.module.graph.nodes if n.op == "placeholder"]
        self.widths = {e.node.expr for shape in fixed for e in shape if isinstance(e, torch.SymInt)} - {self.symbols[0]}

    def bound(self, rows: int) -> Bound:
        return {self.symbols[0]: rows, **dict.fromkeys(self.widths, 4)}

    def lower(self, rows: int, emissions: Emissions | None = None) -> Lowered:
        return lower(self.module, self.bound(rows), emissions=emissions)


TRACED: dict[str, Traced] = {}


def traced(name: str) -> Traced:
    if name not in TRACED:
        TRACED[name] = Traced(FUNCTIONS[name])
    return TRACED[name]


def encoded(lowered: Lowered, translator: Translator, passes: bool) -> bytes:
    graph = optimise(lowered.graph, descs=lowered.descs).graph if passes else lowered.graph
    return bytes(translator.graph(graph))


def check(case: Traced, sizes: Sequence[int], passes: bool = True) -> None:
    emissions, translator = Emissions(), Translator()
    for rows in sizes:
        again, alone = case.lower(rows, emissions), case.lower(rows)
        assert encoded(again, translator, passes) == encoded(alone, Translator(), passes)
        assert [(a.position, a.layout, a.draws) for a in again.arguments] == [
            (a.position, a.layout, a.draws) for a in alone.arguments
        ]
        assert [(r.output, r.argument, r.layout) for r in again.results] == [
            (r.output, r.argument, r.layout) for r in alone.results
        ]
        assert {name: again.descs[name] for name in alone.descs} == dict(alone.descs)


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=25)
@given(sizes=st.lists(st.integers(4, 12), min_size=2, max_size=6), passes=st.booleans())
def test_other_sizes_leave_nothing_in_a_program(name: str, sizes: list[int], passes: bool) -> None:
    check(traced(name), sizes, passes)


def test_what_sizes_do_not_change_is_not_emitted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    emitted: list[str] = []
    emit = Lowering._emitted

    def noting(self: Lowering, node: fx.Node, promised: tuple[Promise, ...]) -> Any:
        emitted.append(node.name)
        return emit(self, node, promised)

    monkeypatch.setattr(Lowering, "_emitted", noting)
    case, emissions = Traced(lambda x, new: (x * 2, (new.relu() * 3).exp().sum(), new.relu() + x)), Emissions()
    counts = []
    for rows in (5, 6, 6):
        emitted.clear()
        case.lower(rows, emissions)
        counts.append(len(emitted))
    assert counts == [7, 2, 0]  # of the seven ops x * 2 and relu + x have as many rows as x


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "KEPT", 40)
    monkeypatch.setattr(kept, "SPARE", 2)
    case, emissions, most = traced("numbers"), Emissions(), 0
    alone = Emissions()
    case.lower(3, alone)
    for rows in range(4, 40):
        assert encoded(case.lower(rows, emissions), Translator(), True) == encoded(case.lower(rows), Translator(), True)
        most = max(most, len(emissions.interned))
    bound = max(40, 2 * len(alone.of))
    assert bound < most <= bound + len(alone.interned)  # it grew, and was emptied before the next lowering


def test_a_graph_that_was_changed_is_lowered_as_it_is() -> None:
    case = Traced(lambda x, new: (x + 1, new + 1))
    emissions = Emissions()
    case.lower(5, emissions)
    (node,) = [n for n in case.module.graph.nodes if n.op == "call_function" and n.args[0].name.startswith("new")]
    node.args = (node.args[0], 2)
    changed = case.lower(6, emissions)
    assert encoded(changed, Translator(), True) == encoded(case.lower(6), Translator(), True)
    assert any(value == 2 for value in changed.graph.constants.values())


def test_a_tensor_that_was_changed_is_taken_as_it_is() -> None:
    weight = torch.ones(4)

    case, emissions = Traced(lambda x, new: (x * 2, new * 2)), Emissions()
    module = case.module
    module.register_buffer("weight", weight)
    node = next(n for n in module.graph.nodes if n.op == "call_function" and n.args[0].name.startswith("new"))
    with module.graph.inserting_before(node):
        held = module.graph.get_attr("weight")
    held.meta["val"] = weight
    node.args = (node.args[0], held)
    found = []
    for number in (3.0, 4.0):
        weight.fill_(number)
        lowered = lower(module, case.bound(5), emissions=emissions)
        found.append({float(v[0]) for v in lowered.graph.constants.values() if v.shape == (4,)})
    assert found == [{3.0}, {4.0}]


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        pytest.param(1, True, False, id="1 and True"),
        pytest.param(0.0, -0.0, False, id="0.0 and -0.0"),
        pytest.param(2, 2, True, id="equal sizes"),
        pytest.param(Value("x", F32, (2,)), Value("x", F32, (2,)), True, id="equal values"),
        pytest.param(Value("x", F32, (2,)), Value("x", F32, (3,)), False, id="other shapes"),
        pytest.param(torch.ones(2), torch.ones(2), False, id="two tensors"),
    ],
)
def test_arguments_that_only_compare_equal_are_others(a: Any, b: Any, same: bool) -> None:
    promised = (Promise(F32, (2,)),)
    emission = Emission((a,), promised, Record("node"), None)
    assert emission.fits((b,), promised) is same
    assert not emission.fits((b,), (Promise(F32, (3,)),))


def test_a_record_is_not_repeated_where_the_graph_has_other_ops() -> None:
    numbers = Interned()
    first, second = (Builder(Graph(), lambda: Value("", F32, ()), numbers) for _ in range(2))
    first.at("a", "", ())
    first.begin()
    x = Value("x", F32, (2,))
    assert first.op("Relu", x).name == "a:1.0"
    record = first.end()
    second.at("b", "", ())
    second.op("Relu", x)
    second.at("a", "", ())
    assert not second.repeat(record)  # there Relu belongs to another node: its value has another name
    assert [node.name for node in second.graph.nodes] == ["b"]


@pytest.mark.parametrize(
    ("adds", "same"),
    [
        pytest.param(lambda b: b.op("Relu", Value("x", F32, (2,))), True, id="an op"),
        pytest.param(lambda b: b.scalar(2, F32), True, id="a constant"),
        pytest.param(lambda b: b.keys(), False, id="random numbers"),
        pytest.param(lambda b: b.known(Value("x", F32, ())), True, id="a known value"),
        pytest.param(lambda b: list(b.graph.nodes), False, id="a look at other nodes"),
        pytest.param(lambda b: b.descs.get("x"), False, id="a look at other results"),
        pytest.param(lambda b: b.graph.add("Relu", ["x"]), False, id="a node of its own"),
        pytest.param(lambda b: b.graph.input("y", TensorDesc("f32", ())), False, id="an input"),
        pytest.param(lambda b: b.graph.output("x"), False, id="an output"),
    ],
)
def test_only_what_was_noted_is_repeated(adds: Callable[[Builder], Any], same: bool) -> None:
    numbers = Interned()
    first, second = (Builder(Graph(), lambda: Value("seed", F32, ()), numbers) for _ in range(2))
    for builder in (first, second):
        builder.at("a", "", ())
    first.begin()
    adds(first)
    assert second.repeat(first.end()) is same
    if same:
        assert (second.graph.nodes, second.graph.constants) == (first.graph.nodes, first.graph.constants)
    else:
        assert (second.graph.nodes, second.graph.constants) == ([], {})


def test_several_threads_lower_one_graph() -> None:
    case, emissions = traced("grow"), Emissions()
    found: dict[int, bytes] = {}

    def work(start: int) -> None:
        for rows in range(start, 28, 4):
            found[rows] = encoded(case.lower(rows, emissions), Translator(), True)

    threads = [threading.Thread(target=work, args=(4 + at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {rows: encoded(case.lower(rows), Translator(), True) for rows in range(4, 28)}


def test_expressions_of_sizes() -> None:
    found: dict[str, Any] = {}

    def function(x: torch.Tensor, new: torch.Tensor) -> Any:
        rows = x.shape[0]
        found.update(sum=rows + 3, product=rows * 5 - 2, square=rows * rows, half=rows // 2, rest=rows % 3)
        return x + rows

    case = Traced(function)
    for rows in (7, 12):
        bound = case.bound(rows)
        got = {name: evaluate(value, bound) for name, value in found.items()}
        assert got == {
            "sum": rows + 3, "product": rows * 5 - 2, "square": rows * rows, "half": rows // 2, "rest": rows % 3,
        }  # fmt: skip
        assert got == {name: evaluate(Open(value), bound) for name, value in found.items()}
        assert all(type(value) is int for value in got.values())
