"""Order between queues: what runs after what, on which of the driver's queues; and a missing wait shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.device_samples import bound
from tests.cuda.cuda_samples import COUNT, SIZE, X, adding, floats, lazy, recorded, through_arena
from umd_core.device import Binding, FenceValue

QUEUES = 5


@given(data=st.data())
def test_queues_that_are_ordered_by_fences_give_what_one_queue_gives(data: st.DataObject) -> None:
    """Submissions to random queues, each after those that share its buffers; freed buffers, reads, writes between."""
    device, _ = lazy(data.draw(st.integers(0, 1 << 30), "seed"), data.draw(st.booleans(), "strict"))
    wanted = {i: X * (i + 1) for i in range(6)}
    bindings = dict(enumerate(bound(device, *wanted.values())))
    programs = [device.load(bytes(adding())), device.load(bytes(through_arena()))]
    users: dict[int, list[tuple[int, FenceValue]]] = {i: [] for i in wanted}
    for _ in range(data.draw(st.integers(1, 12), "steps")):
        action = data.draw(st.sampled_from(["add", "copy", "add", "copy", "replace", "read", "write"]), "action")
        a, b, c = (data.draw(st.integers(0, 5)) for _ in range(3))
        if action in ("add", "copy") and c not in (a, b):
            used = (a, b, c) if action == "add" else (a, c)
            queue, end = data.draw(st.integers(0, QUEUES), "queue"), FenceValue(device.fence(), 1)
            waits = [signal for i in used for other, signal in users[i] if other != queue]
            given = [bindings[i] for i in used]
            device.submit(programs[action == "copy"], given, waits=waits, signals=[end], queue=queue)
            for i in used:
                users[i].append((queue, end))
            wanted[c] = wanted[a] + wanted[b] if action == "add" else wanted[a]
        elif action == "replace":
            device.free(bindings[a].buffer)
            bindings[a] = Binding(device.allocate(SIZE), 0, SIZE)
            wanted[a], users[a] = np.zeros_like(X), []
        elif action == "read":
            assert floats(device, bindings[a]) == wanted[a].tolist()
        elif action == "write":
            device.write(bindings[a].buffer, 0, wanted[b])
            wanted[a] = wanted[b]
    for i, binding in bindings.items():
        assert floats(device, binding) == wanted[i].tolist()


def test_a_missing_wait_shows() -> None:
    """The stand-in does not order queues by chance: without the fence some seed gives another result."""
    seen = set()
    for seed in range(20):
        device, _ = lazy(seed)
        a, b, c = bound(device, X, np.zeros_like(X), np.zeros_like(X))
        device.settle()
        device.submit(device.load(bytes(adding())), [a, a, b], queue=1)
        device.submit(device.load(bytes(adding(4))), [b, b, c], queue=2)
        seen.add(tuple(floats(device, c)))
    assert seen == {tuple((4 * X).tolist()), (0.0,) * COUNT}


def test_runs_of_one_program_never_share_its_arena() -> None:
    for seed in range(20):
        device, _ = lazy(seed)
        program = device.load(bytes(through_arena()))
        pairs = [bound(device, X * (i + 1), np.zeros_like(X)) for i in range(4)]
        for queue, pair in enumerate(pairs):
            device.submit(program, pair, queue=queue)
        assert [floats(device, pair[1]) for pair in pairs] == [(X * (i + 1)).tolist() for i in range(4)]


def test_what_a_queue_is_told_to_wait_for() -> None:
    """Only other queues' events: the zeroing of memory, a fence on its way, the program's last run elsewhere."""
    device, driver = recorded()
    bindings = bound(device, X, X, X)
    program, other = device.load(bytes(adding())), device.load(bytes(adding(4)))
    driver.waits.clear()
    for queue in (1, 1, 2):
        device.submit(other if queue == 2 else program, bindings, queue=queue)
    assert driver.queues == [1, 1, 2]
    assert [(queue, event[0]) for queue, event in driver.waits] == [(1, 0), (2, 0)]
    assert driver.current == 0


@pytest.mark.parametrize(("options", "queues"), [({}, True), ({"queues": 1}, False), ({"sync": True}, False)])
def test_the_flag_says_whether_queues_overlap(options: dict[str, Any], queues: bool) -> None:
    device, driver = recorded(**options)
    assert ("queues" in device.caps().flags) is queues
    bindings = bound(device, X, X, X)
    for queue in range(20):
        device.submit(device.load(bytes(adding())), bindings, queue=queue << 32).wait()
    late, _ = lazy(**options)
    ticket = late.submit(late.load(bytes(adding())), bound(late, X, X, X))
    assert ticket._done is not queues
    assert len(set(driver.queues)) == (8 if queues else 1)


@pytest.mark.parametrize("queue", [1, 7, 3 << 32, (5 << 32) + 2])
def test_a_queue_always_runs_in_the_same_place(queue: int) -> None:
    device, driver = recorded()
    bindings = bound(device, X, X, X)
    for _ in range(2):
        for used in (queue, queue + 1):
            device.submit(device.load(bytes(adding())), bindings, queue=used).wait()
    assert driver.queues[:2] == driver.queues[2:]
    assert driver.queues[0] != driver.queues[1]
