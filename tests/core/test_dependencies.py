"""Dependencies: every conflict by byte range is ordered, and no dependency follows from the others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from umd_core.commands import READ, WRITE
from umd_core.dependencies import Hazards

Access = tuple[int, int, int, int]

accesses = st.lists(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.sampled_from([READ, WRITE, READ | WRITE]), st.integers(0, 12), st.integers(0, 6)
        ),
        min_size=1,
        max_size=3,
    ),
    max_size=16,
)


def conflict(a: list[Access], b: list[Access]) -> bool:
    return any(
        m == n and (x | y) & WRITE and lo < other + size and other < lo + length and length and size
        for m, x, lo, length in a
        for n, y, other, size in b
    )


def reachable(deps: list[list[int]], start: int) -> set[int]:
    seen: set[int] = set()
    todo = list(deps[start])
    while todo:
        command = todo.pop()
        if command not in seen:
            seen.add(command)
            todo += deps[command]
    return seen


def derive(commands: list[list[Access]]) -> list[list[int]]:
    hazards = Hazards()
    return [hazards.depend(i, refs) for i, refs in enumerate(commands)]


@given(accesses)
def test_every_conflict_is_ordered(commands: list[list[Access]]) -> None:
    deps = derive(commands)
    for later in range(len(commands)):
        before = reachable(deps, later)
        for earlier in range(later):
            if conflict(commands[earlier], commands[later]):
                assert earlier in before


@given(accesses)
def test_every_dependency_is_a_conflict_that_nothing_else_orders(commands: list[list[Access]]) -> None:
    deps = derive(commands)
    for command, own in enumerate(deps):
        assert own == sorted(set(own))
        for dependency in own:
            assert conflict(commands[dependency], commands[command])
            others = [[*d] for d in deps]
            others[command].remove(dependency)
            assert dependency not in reachable(others, command)


def test_reduction_reaches_over_a_long_chain() -> None:
    commands: list[list[Access]] = [[(0, WRITE, 0, 8)]]
    commands += [[(0, READ | WRITE, 0, 8), (1, READ, 0, 4)] for _ in range(700)]
    deps = derive(commands)
    assert deps == [[]] + [[i] for i in range(700)]


def test_a_barrier_orders_everything_before_it() -> None:
    hazards = Hazards()
    assert hazards.depend(0, [(0, WRITE, 0, 8)]) == []
    hazards.barrier = 1
    assert hazards.depend(2, [(0, READ, 0, 8)]) == []
    assert hazards.depend(3, [(0, WRITE, 4, 2)]) == [2]
