"""Whose turn it is on a device: shares, bounds on waiting, and the server's own jobs."""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umd_grpc.server.lanes import DEBT_SECONDS, QUANTUM_SECONDS, Job, Lane, Lanes

MILLISECOND = 0.001


class Machine:
    """Lanes, and jobs whose cost is given instead of measured."""

    def __init__(self) -> None:
        self.lanes, self.now = Lanes(), 0.0
        self.used: defaultdict[Lane, float] = defaultdict(float)

    def keep_busy(self, lane: Lane, cost: float) -> None:
        """Gives a lane a job that puts itself again, as a session with more work does."""

        def job() -> None:
            self.spend(lane, cost)
            self.lanes.put(lane, job)

        self.lanes.put(lane, job)

    def spend(self, lane: Lane, cost: float) -> None:
        """Lets time pass."""
        self.now += cost
        self.used[lane] += cost

    def step(self) -> Lane:
        """Runs the next job; returns whose it was."""
        lane, job = self.lanes.take()
        before = self.now
        assert job is not None
        job()
        self.lanes.charge(lane, self.now - before)
        return lane


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.sampled_from([0.25, 1.0, 2.0, 4.0]), st.floats(0.5, 20.0)), min_size=2, max_size=6),
)
def test_busy_lanes_share_by_weight_whatever_their_jobs_cost(given_: list[tuple[float, float]]) -> None:
    machine = Machine()
    lanes = [Lane(weight) for weight, _ in given_]
    for lane, (_, cost) in zip(lanes, given_, strict=True):
        machine.keep_busy(lane, cost * MILLISECOND)
    while machine.now < 15.0:
        machine.step()
    total = sum(weight for weight, _ in given_)
    for lane, (weight, _) in zip(lanes, given_, strict=True):
        assert machine.used[lane] / machine.now == pytest.approx(weight / total, rel=0.15, abs=0.01)


@given(st.integers(1, 8), st.floats(1.0, 20.0))
def test_little_work_waits_for_one_slice_of_busy_lanes(count: int, slice_ms: float) -> None:
    """Whoever asks now and then for less than a quantum is next, however many others are always busy."""
    machine = Machine()
    for _ in range(count):
        machine.keep_busy(Lane(), slice_ms * MILLISECOND)
    for _ in range(200):
        machine.step()
    small, done = Lane(), list[float]()

    def ask() -> None:
        machine.spend(small, 0.2 * MILLISECOND)
        done.append(machine.now)

    for _ in range(20):
        asked = machine.now
        machine.lanes.put(small, ask)
        while machine.step() is not small:
            pass
        assert done[-1] - asked <= slice_ms * MILLISECOND + 0.2 * MILLISECOND + 1e-9
        for _ in range(4 * count):
            machine.step()


@pytest.mark.parametrize("busy", [1, 4])
def test_who_uses_less_than_its_share_waits_for_one_slice_however_long_it_goes_on(busy: int) -> None:
    """A fifth of a turn at each turn of the others: what is used of the credit comes back with the turns."""
    machine, small = Machine(), Lane()
    for _ in range(busy):
        machine.keep_busy(Lane(), MILLISECOND)
    for _ in range(200):
        machine.step()
    waits = list[float]()

    def ask() -> None:
        waits.append(machine.now - asked)
        machine.spend(small, QUANTUM_SECONDS / 5)

    for _ in range(1_000):
        asked, seen = machine.now, len(waits)
        machine.lanes.put(small, ask)
        while len(waits) == seen:
            machine.step()
        until = machine.now + busy * QUANTUM_SECONDS
        while machine.now < until:
            machine.step()
    assert max(waits) <= 1.01 * MILLISECOND


def test_one_very_long_job_is_not_held_against_a_lane_for_ever() -> None:
    machine = Machine()
    long, other = Lane(), Lane()
    machine.lanes.put(long, lambda: machine.spend(long, 100.0))
    machine.step()
    machine.keep_busy(long, MILLISECOND)
    machine.keep_busy(other, MILLISECOND)
    begun = machine.now
    while machine.step() is not long:
        pass
    assert machine.now - begun <= DEBT_SECONDS + 4 * QUANTUM_SECONDS


def test_coming_and_going_sheds_no_debt() -> None:
    """A lane that is empty between its jobs has no more than one that is always busy."""
    machine = Machine()
    busy, shy = Lane(), Lane()
    machine.keep_busy(busy, 2 * MILLISECOND)
    while machine.now < 20.0:
        machine.lanes.put(shy, lambda: machine.spend(shy, 20 * MILLISECOND))
        while machine.step() is not shy:
            pass
    assert machine.used[shy] / machine.now < 0.55


@given(st.lists(st.integers(0, 3), max_size=60))
def test_jobs_of_a_lane_keep_their_order_and_none_is_lost(choices: list[int]) -> None:
    lanes = Lanes()
    each = [Lane(weight) for weight in (0.5, 1.0, 4.0, 16.0)]
    ran: list[tuple[int, int]] = []

    def noting(which: int, number: int) -> Job:
        return lambda: ran.append((which, number))

    for number, which in enumerate(choices):
        lanes.put(each[which], noting(which, number))
    assert lanes.depth == len(choices)
    for _ in choices:
        lane, job = lanes.take()
        assert job is not None
        job()
        lanes.charge(lane, 3 * MILLISECOND)
    assert sorted(number for _, number in ran) == list(range(len(choices)))
    for which in range(4):
        mine = [number for lane, number in ran if lane == which]
        assert mine == sorted(mine)
    assert lanes.depth == 0


def test_nobody_is_without_any_share() -> None:
    machine = Machine()
    none = Lane(0)
    machine.keep_busy(Lane(), MILLISECOND)
    machine.keep_busy(none, MILLISECOND)
    while machine.step() is not none:
        pass
    while machine.step() is not none:
        assert machine.now < 5.0


def test_others() -> None:
    lanes, a, b = Lanes(), Lane(), Lane()
    nothing: Callable[[], None] = lambda: None  # noqa: E731  # a job
    assert not lanes.others(a)
    lanes.put(a, nothing)
    assert (lanes.others(a), lanes.others(b)) == (False, True)
    lanes.put(b, nothing)
    assert lanes.others(a)


def test_a_turn_is_claimed_only_when_nobody_has_it_or_waits_for_it() -> None:
    lanes, a, b = Lanes(), Lane(), Lane()
    nothing: Callable[[], None] = lambda: None  # noqa: E731  # a job
    assert lanes.claim(a)
    assert not lanes.claim(b)
    lanes.put(b, nothing)
    lane, _ = lanes.take()  # it has to wait for the turn
    assert lane is b
    assert not lanes.turn.acquire(blocking=False)
    lanes.turn.release()
    lanes.charge(a, MILLISECOND)
    assert not lanes.claim(a)  # what was taken is about to run, and came before
    lanes.charge(b, MILLISECOND)
    assert lanes.claim(a)
    lanes.turn.release()
    lanes.charge(a, MILLISECOND)
    lanes.put(b, nothing)
    assert not lanes.claim(a)


def test_work_of_an_idle_device_is_not_held_against_a_lane() -> None:
    lanes, lane = Lanes(), Lane()
    for _ in range(100):
        assert lanes.claim(lane)
        lanes.turn.release()
        lanes.charge(lane, QUANTUM_SECONDS / 2)
    assert lane.credit > -QUANTUM_SECONDS


def test_claims_and_jobs_of_one_lane_keep_their_order() -> None:
    lanes, lane, ran = Lanes(), Lane(), list[int]()

    def device() -> None:
        while True:
            which, job = lanes.take()
            if job is None:
                return
            with lanes.turn:
                job()
            lanes.charge(which, 0.0)

    thread = threading.Thread(target=device)
    thread.start()
    claimed = 0
    for number in range(5_000):
        while number % 10 == 0 and len(ran) < number:
            time.sleep(0)
        if number % 10 < 5 and lanes.claim(lane):
            claimed += 1
            ran.append(number)
            lanes.turn.release()
            lanes.charge(lane, 0.0)
        else:
            lanes.put(lane, functools.partial(ran.append, number))
    lanes.put(lane, None)
    thread.join()
    assert ran == list(range(5_000))
    assert claimed
