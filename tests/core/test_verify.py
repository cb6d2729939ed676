"""verify: names the broken rule, and every missing dependency, against a search over all pairs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import umd_core as umd
from tests.core.buffer_builder import Build
from tests.core.encoding_samples import add, every_command, every_slot
from umd_core import dtypes
from umd_core.commands import (
    READ,
    WRITE,
    Barrier,
    Command,
    CommandBuffer,
    Copy,
    Dispatch,
    Fill,
    Nop,
    Ref,
    SlotKind,
    refs_of,
)
from umd_core.encoding import decode, encode, verify, verify_dependencies
from umd_core.ir import Graph, TensorDesc


def fills(*places: tuple[int, int, int], deps: dict[int, tuple[int, ...]] | None = None) -> CommandBuffer:
    """Returns fills of (slot, offset, length); negative slots read instead (a copy of slot -1 - slot elsewhere)."""
    build = Build()
    for _ in range(2):
        build.slot()
    scratch = build.slot(SlotKind.ARENA, 256, length=1 << 20)
    for index, (slot, offset, length) in enumerate(places):
        waits = (deps or {}).get(index, ())
        if slot >= 0:
            build.add(Fill(Ref(slot, WRITE, offset, length), b"x", waits))
        else:
            to = Ref(scratch, WRITE, 4096 * index, length)
            build.add(Copy(to, Ref(-1 - slot, READ, offset, length), waits))
    return build.done()


def found(cb: CommandBuffer) -> set[tuple[int, int]]:
    return {(m.first, m.second) for m in verify_dependencies(cb).missing}


def test_complete_buffers_are_ok() -> None:
    for cb in (add(), every_command(), every_slot()):
        report = verify(encode(cb))
        assert report.ok, str(report)
        assert report.commands == len(cb.commands)
    assert verify(encode(every_command())).conflicts == 4


def test_a_broken_rule_is_named_with_its_byte() -> None:
    raw = bytearray(encode(add()))
    raw[-1] ^= 1
    report = verify(bytes(raw))
    assert not report.ok
    assert report.error is not None
    assert (report.error.rule, report.error.offset) == ("body-checksum", 56)
    assert "body-checksum" in str(report)
    assert report.missing == []


def test_each_hazard_is_found_and_named() -> None:
    report = verify_dependencies(fills((0, 0, 8), (-1, 4, 8), (0, 8, 8), (0, 0, 4)))
    assert [(m.first, m.second, m.hazard, m.slot, m.low, m.high) for m in report.missing] == [
        (0, 1, "read-after-write", 0, 4, 8),
        (1, 2, "write-after-read", 0, 8, 12),
        (0, 3, "write-after-write", 0, 0, 4),
    ]
    assert str(report.missing[0]) == ("command 1 does not wait for command 0: read-after-write of slot 0, bytes 4 to 8")


def test_paths_and_barriers_order() -> None:
    places = ((0, 0, 8), (1, 0, 8), (0, 0, 8))
    assert found(fills(*places)) == {(0, 2)}
    assert found(fills(*places, deps={2: (0,)})) == set()
    assert found(fills(*places, deps={1: (0,), 2: (1,)})) == set()
    assert found(fills(*places, deps={2: (1,)})) == {(0, 2)}
    with_barrier = fills(*places)
    with_barrier.commands.insert(1, Barrier())
    assert found(with_barrier) == set()
    behind = fills(*places)
    behind.commands.append(Barrier())
    assert found(behind) == {(0, 2)}


def test_alias_groups_are_one_buffer() -> None:
    for group in (0, 7):
        build = Build()
        a, b = build.slot(group=group), build.slot(group=group)
        build.add(Fill(Ref(a, WRITE, 0, 8), b"x"))
        build.add(Fill(Ref(b, WRITE, 4, 8), b"x"))
        assert found(build.done()) == ({(0, 1)} if group else set())


def test_a_removed_dependency_is_noticed() -> None:
    cb = every_command()
    for index, command in enumerate(cb.commands):
        for dep in command.deps:
            if isinstance(command, (Dispatch, Copy)):
                rest = tuple(d for d in command.deps if d != dep)
                less = every_command()
                less.commands[index] = command._replace(deps=rest)
                first = {m.first for m in verify_dependencies(less).missing if m.second == index}
                assert dep in first or (index, dep) == (10, 7)  # 7 is ordered by the barrier as well


def happens_before(commands: list[Command]) -> list[set[int]]:
    """Returns, per command, all commands that are ordered before it: the definition, without cleverness."""
    before: list[set[int]] = []
    for index, command in enumerate(commands):
        own = set(command.deps)
        for barrier in range(index):
            if isinstance(commands[barrier], Barrier):
                own |= {*range(barrier), barrier}
        if isinstance(command, Barrier):
            own |= set(range(index))
        before.append(own.union(*(before[dep] for dep in own)))
    return before


def conflict(cb: CommandBuffer, i: int, j: int) -> bool:
    return any(
        a.slot == b.slot
        and bool((a.access | b.access) & WRITE)
        and min(a.offset + a.length, b.offset + b.length) > max(a.offset, b.offset)
        and bool(a.length and b.length)
        for a, b in itertools.product(refs_of(cb.commands[i]), refs_of(cb.commands[j]))
    )


@st.composite
def programs(draw: st.DrawFn) -> CommandBuffer:
    build = Build()
    slots = [build.slot() for _ in range(2)]
    ranges = st.tuples(st.sampled_from(slots), st.integers(0, 12), st.integers(0, 6))
    for index in range(draw(st.integers(0, 14))):
        deps = tuple(sorted(draw(st.sets(st.integers(0, index - 1), max_size=3)))) if index else ()
        kind = draw(st.sampled_from(("fill", "fill", "copy", "copy", "barrier", "nop")))
        if kind == "fill":
            slot, offset, length = draw(ranges)
            build.add(Fill(Ref(slot, WRITE, offset, length), b"x", deps))
        elif kind == "copy":
            slot, offset, length = draw(ranges)
            other = draw(st.integers(13, 20))
            build.add(Copy(Ref(slot, WRITE, 20 + other, length), Ref(slot, READ, offset, length), deps))
        else:
            build.add((Barrier if kind == "barrier" and draw(st.booleans()) else Nop)(deps))
    return build.done()


@settings(max_examples=300)
@given(programs())
def test_the_answer_is_that_of_a_search_over_all_pairs(cb: CommandBuffer) -> None:
    before = happens_before(cb.commands)
    pairs = itertools.combinations(range(len(cb.commands)), 2)
    unordered = {(i, j) for i, j in pairs if conflict(cb, i, j) and i not in before[j]}
    missing = found(cb)
    assert missing <= unordered
    assert bool(missing) == bool(unordered)
    # with the missing ones added, everything is ordered: pairs that were left out are implied
    for first, second in missing:
        command = cb.commands[second]
        cb.commands[second] = command._replace(deps=tuple(sorted({*command.deps, first})))
    before = happens_before(cb.commands)
    assert all(i in before[j] for i, j in unordered)


def test_long_programs_take_one_pass() -> None:
    """Every command writes what the one before wrote; the pairs are looked up in batches."""
    count = 20_000
    commands: list[Command] = [Fill(Ref(0, WRITE, 0, 8), b"x", (i - 1,) if i else ()) for i in range(count)]
    commands[count // 2] = commands[count // 2]._replace(deps=())
    build = Build()
    build.slot()
    build.commands = commands
    report = verify_dependencies(build.done())
    assert [(m.first, m.second) for m in report.missing] == [(count // 2 - 1, count // 2)]


F32 = dtypes.float32
OPS: list[tuple[str, list[TensorDesc], dict[str, Any]]] = [
    ("Add", [TensorDesc(F32, (3, 1)), TensorDesc(F32, (4,))], {}),
    ("Softmax", [TensorDesc(F32, (3, 5, 7))], {"axis": 1}),
    ("Conv", [TensorDesc(F32, (2, 3, 8, 8)), TensorDesc(F32, (4, 3, 3, 3))], {"pads": [1, 1, 1, 1]}),
    ("MaxPool", [TensorDesc(F32, (2, 3, 8, 8))], {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("Concat", [TensorDesc(F32, (2, 3))] * 70, {"axis": 0}),
    ("LayerNormalization", [TensorDesc(F32, (4, 6)), TensorDesc(F32, (6,)), TensorDesc(F32, (6,))], {}),
    ("Transpose", [TensorDesc(F32, (2, 3, 4))], {"perm": [2, 0, 1]}),
    ("Add", [TensorDesc(F32, (0, 3)), TensorDesc(F32, (0, 3))], {}),
]


@pytest.mark.parametrize(("op", "inputs", "attributes"), OPS, ids=[f"{i}-{op}" for i, (op, _, _) in enumerate(OPS)])
def test_translated_ops_are_valid_and_complete(op: str, inputs: list[TensorDesc], attributes: dict[str, Any]) -> None:
    cb = umd.translate(op, inputs, **attributes)
    report = verify(encode(cb))
    assert report.ok, str(report)
    assert encode(decode(encode(cb))) == encode(cb)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from(("Add", "Mul", "Softmax", "MatMul")), st.integers(0, 99)), max_size=40))
def test_translated_graphs_are_valid_and_complete(steps: list[tuple[str, int]]) -> None:
    """Arena reuse included: an independent search finds no two commands that nothing orders."""
    graph = Graph()
    values = [graph.input(name, TensorDesc(F32, (6, 6))) for name in ("x", "y")]
    for op, pick in steps:
        own = [values[-1], values[pick % len(values)]] if op != "Softmax" else [values[pick % len(values)]]
        values.append(graph.add(op, own))
    for value in values[-3:]:
        graph.output(value)
    cb = umd.translate(graph)
    report = verify(encode(cb))
    assert report.ok, str(report)
    before = happens_before(cb.commands)
    pairs = itertools.combinations(range(len(cb.commands)), 2)
    assert all(i in before[j] for i, j in pairs if conflict(cb, i, j))
