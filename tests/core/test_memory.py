"""The memory planner: live transients never overlap, the arena never exceeds the naive sum."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umd_core import memory
from umd_core.memory import Transient, plan


@st.composite
def transients(draw: st.DrawFn) -> list[Transient]:
    found: list[Transient] = []
    heirs: set[int] = set()
    for _ in range(draw(st.integers(0, 24))):
        first = draw(st.integers(0, 30))
        last = first + draw(st.integers(0, 12))
        size = draw(st.integers(0, 2000))
        dying = [
            i for i, t in enumerate(found) if t.last == first and t.first < first and t.size == size and i not in heirs
        ]
        inherits = draw(st.sampled_from([-1, *dying]))
        if inherits >= 0:
            heirs.add(inherits)
        found.append(Transient(size, first, last, inherits))
    return found


def aligned(size: int) -> int:
    return -(-max(size, 1) // 256) * 256


@given(transients())
def test_live_transients_do_not_overlap(items: list[Transient]) -> None:
    offsets, arena = plan(items)
    for i, (a, at) in enumerate(zip(items, offsets, strict=True)):
        assert at % 256 == 0
        assert at + aligned(a.size) <= arena
        for b, bt in list(zip(items, offsets, strict=True))[:i]:
            heir = a.inherits >= 0 and items[a.inherits] is b
            alive_together = a.first <= b.last and b.first <= a.last
            if alive_together and not heir:
                assert at + a.size <= bt or bt + b.size <= at


@given(transients())
def test_the_arena_is_at_most_the_naive_sum(items: list[Transient]) -> None:
    _, arena = plan(items)
    assert arena <= sum(aligned(t.size) for t in items if t.inherits < 0)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=30))
def test_a_chain_needs_room_for_two(sizes: list[int]) -> None:
    items = [Transient(max(sizes), i, i + 1) for i in range(len(sizes))]
    _, arena = plan(items)
    assert arena == aligned(max(sizes)) * min(len(sizes), 2)


GROWING = [
    Transient(size, first, last)
    for at, large in ((0, 1024), (2, 1280), (4, 1536))
    for size, first, last in ((large, at, at + 1), (256, at, 9))
]
"""Three large ones, each too large for the place of the one before, and small ones that stay."""


def test_large_ones_leave_no_gaps_to_small_ones() -> None:
    offsets, arena = plan(GROWING)
    assert arena == 3 * 256 + 1536
    assert offsets[::2] == [0, 0, 0]


def test_too_many_to_compare_are_placed_in_program_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MANY", len(GROWING) - 1)
    offsets, arena = plan(GROWING)
    assert offsets == [0, 1024, 1280, 0, 1280, 256]
    assert arena == 1280 + 1536


def test_an_heir_takes_its_parents_bytes() -> None:
    offsets, arena = plan([Transient(100, 0, 1), Transient(100, 1, 2, inherits=0), Transient(100, 2, 3, inherits=1)])
    assert offsets == [0, 0, 0]
    assert arena == 256


def test_freed_neighbours_join() -> None:
    items = [Transient(256, 0, 1), Transient(256, 0, 1), Transient(512, 2, 3)]
    offsets, arena = plan(items)
    assert arena == 512
    assert offsets[2] == 0
