"""The order of a program's steps: one in which less transient memory is in use at a time.

A step takes memory where it is the first to use a buffer, and gives back what it is the last to use.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from umd_core.commands import WRITE
from umd_core.linking import Linked, LinkedStep
from umd_core.memory import aligned
from umd_core.recorder import Launch

WORTH = 1.5
"""A program keeps its order where its peak is below this many times what its hungriest step uses by itself. Inference
comes to at most 1.3 times that, most training to between 1.7 and 8 times."""
_NOBODY = -1


def schedule(linked: Linked) -> None:
    """Puts the steps of a linked program into an order with a lower peak of transient bytes, where it finds one.

    Every buffer is written and read in the order in which it was, so no result changes.

    Args:
        linked: its steps change their order.
    """
    flow = Flow(linked)
    peak = flow.peak(range(len(linked.steps)))
    if peak < WORTH * flow.hungriest():
        return
    frugal = flow.frugal()
    if flow.peak(frugal) < peak:
        linked.steps = [linked.steps[step] for step in frugal]


class Flow:
    """Which transients the steps of a program use, and which steps must come before which."""

    def __init__(self, linked: Linked) -> None:
        self._linked = linked
        self._sizes = {buffer: aligned(size) for buffer, size in linked.transients.items()}
        self._users: dict[int, list[int]] = {}  # per transient, the steps that use it
        self._uses: list[set[int]] = []  # per step, the transients
        for at, step in enumerate(linked.steps):
            used = {ref[0] for ref in step.refs if ref[0] in self._sizes}
            self._uses.append(used)
            for buffer in used:
                self._users.setdefault(buffer, []).append(at)

    def hungriest(self) -> int:
        """Returns the most transient bytes that one step uses: no order needs less."""
        return max((sum(self._sizes[buffer] for buffer in used) for used in self._uses), default=0)

    def peak(self, order: Sequence[int]) -> int:
        """Returns the most transient bytes in use at a time."""
        left = {buffer: len(users) for buffer, users in self._users.items()}
        born: set[int] = set()
        live = peak = 0
        for step in order:
            taken = given = 0
            for buffer in self._uses[step]:
                if buffer not in born:
                    born.add(buffer)
                    taken += self._sizes[buffer]
                left[buffer] -= 1
                if not left[buffer]:
                    given += self._sizes[buffer]
            in_place = min(taken, given)
            if in_place and not _may_overwrite(self._linked.steps[step]):
                in_place = 0
            peak = max(peak, live + taken - in_place)
            live += taken - given
        return peak

    def frugal(self) -> list[int]:
        """Returns an order in which steps run early that give back much, and those late that take much.

        First, of the steps that can run, that always does which takes the least more than it gives back. What takes
        more than it gives back then waits until it is needed: seen from the end of the program, where takings are what
        is given back, it is what may not run while anything else can.
        """
        before, after = _dependencies(self._linked)
        greedy = self._listed(before, after, range(len(self._uses)), lambda taken: taken)
        return self._listed(after, before, greedy[::-1], lambda taken: taken >= 0)[::-1]

    def _listed(
        self, before: Sequence[list[int]], after: Sequence[list[int]], order: Sequence[int], rank: Callable[[int], int]
    ) -> list[int]:
        """Returns the order in which, of the steps that can run, one of the lowest rank always does.

        Args:
            before: per step, those that must come before it; some more than once.
            after: per step, those that must come after it.
            order: one that is allowed; among equals the first in it runs.
            rank: of a step that takes so many bytes more than it gives back.
        """
        run = _Run(self._sizes, self._users, len(order))
        place = {step: at for at, step in enumerate(order)}
        waiting = [len(steps) for steps in before]
        heap = [(rank(run.taken[step]), at, step) for step, at in place.items() if not waiting[step]]
        heapq.heapify(heap)
        found: list[int] = []
        while heap:
            step = heapq.heappop(heap)[2]
            if run.done[step]:
                continue
            found.append(step)
            changed = run.perform(step, self._uses[step])
            for later in after[step]:
                waiting[later] -= 1
                changed.append(later)
            for other in changed:
                if not waiting[other]:
                    heapq.heappush(heap, (rank(run.taken[other]), place[other], other))
        return found


class _Run:
    """What has run so far.

    Attributes:
        done: per step, whether it has.
        taken: per step that has not, the bytes that it would take more than it gives back.
    """

    def __init__(self, sizes: dict[int, int], users: dict[int, list[int]], count: int) -> None:
        self._sizes, self._users = sizes, users
        self._left = {buffer: len(steps) for buffer, steps in users.items()}
        self._unborn = set(users)
        self.done = [False] * count
        self.taken = [0] * count
        for buffer, steps in users.items():
            if len(steps) > 1:
                for step in steps:
                    self.taken[step] += sizes[buffer]

    def perform(self, step: int, uses: set[int]) -> list[int]:
        """Notes that a step runs; returns those that take less by that."""
        self.done[step] = True
        changed: list[int] = []
        for buffer in uses:
            self._left[buffer] -= 1
            is_born, is_last = buffer in self._unborn, self._left[buffer] == 1
            self._unborn.discard(buffer)
            if not (is_born or is_last):
                continue
            for user in self._users[buffer]:
                if not self.done[user]:
                    self.taken[user] -= self._sizes[buffer] * (is_born + is_last)
                    changed.append(user)
        return changed


def _may_overwrite(step: LinkedStep) -> bool:
    return isinstance(step.step, Launch) and bool(step.step.record.row.alias)


def _dependencies(linked: Linked) -> tuple[list[list[int]], list[list[int]]]:
    """Returns, per step, those that must come before it, and those that must come after it; some more than once."""
    before: list[list[int]] = [[] for _ in linked.steps]
    after: list[list[int]] = [[] for _ in linked.steps]
    seen: dict[int, tuple[int, list[int]]] = {}  # by memory, the last writer, and the readers since
    for at, step in enumerate(linked.steps):
        for buffer, access, _, _ in step.refs:
            memory = linked.same.get(buffer, buffer)
            writer, readers = seen.setdefault(memory, (_NOBODY, []))
            for other in [*readers, writer] if access & WRITE else (writer,):
                if other not in (at, _NOBODY):
                    before[at].append(other)
                    after[other].append(at)
            if access & WRITE:
                seen[memory] = (at, [])
            else:
                readers.append(at)
    return before, after
