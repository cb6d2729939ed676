"""A driver whose queues run late and side by side, as a GPU's do: work runs when it must, in any allowed order."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from umd_cuda.driver import Call, DriverError, Geometry, HostMemory, Memory, MemoryInfo
from umd_cuda.libraries import Gemm


class Queue:
    """Work that has not run yet: calls, and events that hold back what follows; counts of what was given and run."""

    def __init__(self) -> None:
        self.work: deque[Call | Event] = deque()
        self.given = self.run = 0


@dataclass(frozen=True)
class Event:
    """Comes when a queue has run so much."""

    queue: Queue
    count: int

    @property
    def come(self) -> bool:
        """Whether it has come."""
        return self.queue.run >= self.count


class LazyDriver:
    """Work of another driver, put off.

    Attributes:
        inner: who executes.
        strict: nothing runs before somebody waits for it; else looks at events let some work run.
        fault: what every call says once work has raised it.
    """

    maps, asynchronous, captures = False, True, True

    def __init__(self, inner: Any, seed: int = 0, strict: bool = False) -> None:
        self.inner, self.strict, self.name = inner, strict, f"{inner.name}, put off"
        self.fault: DriverError | None = None
        self._random = random.Random(seed)
        self._queues = [Queue()]
        self._current = self._queues[0]
        self._captured: list[Call] | None = None
        self._given_back: list[Memory] = []

    # memory

    def memory_info(self) -> MemoryInfo:
        info: MemoryInfo = self.inner.memory_info()
        return info

    def allocate(self, size: int) -> Memory:
        memory: Memory = self.inner.allocate(size)
        return memory

    def free(self, memory: Memory) -> None:
        memory.owner[...] = 0xDD  # whoever still uses it shall notice
        self._given_back.append(memory)

    def wrap(self, data: Any) -> HostMemory:
        raise DriverError("not on this one")

    def write(self, memory: Memory, offset: int, data: memoryview) -> None:
        self.synchronise(self.record())
        self.inner.write(memory, offset, data)

    def read(self, memory: Memory, offset: int, size: int) -> memoryview:
        self.synchronise(self.record())
        return memoryview(bytes(self.inner.read(memory, offset, size)))

    def copy(self, destination: Memory, at: int, source: Memory, offset: int, size: int) -> None:
        self._give(lambda: self.inner.copy(destination, at, source, offset, size))

    def fill(self, memory: Memory, offset: int, pattern: bytes, count: int) -> None:
        self._give(lambda: self.inner.fill(memory, offset, pattern, count))

    # kernels

    def load(self, text: str, options: Sequence[str]) -> Any:
        return self.inner.load(text, options)

    def function(self, module: Any, name: str) -> Any:
        return self.inner.function(module, name)

    def prepare(self, function: Any, geometry: Geometry, addresses: Sequence[int], block: bytes) -> Call:
        call: Call = self.inner.prepare(function, geometry, addresses, block)
        return lambda: self._give(call)

    def gemm(self, gemm: Gemm, addresses: Sequence[int]) -> Call | None:
        return None

    # order

    def queue(self) -> Queue:
        self._queues.append(Queue())
        return self._queues[-1]

    def use(self, queue: Queue | None) -> None:
        self._current = queue or self._queues[0]

    def record(self) -> Event:
        return Event(self._current, self._current.given)

    def wait(self, event: Event) -> None:
        self._alive()
        self._current.work.append(event)
        self._current.given += 1

    def come(self, event: Event) -> bool:
        self._alive()
        if not self.strict:
            for _ in range(self._random.randrange(4)):
                self._step()
        return event.come

    def begin_capture(self) -> None:
        self._captured = []

    def end_capture(self) -> Call | None:
        captured, self._captured = self._captured or [], None

        def replay() -> None:
            for call in captured:
                self._give(call)

        return replay

    def synchronise(self, event: Event | None = None) -> None:
        events = [event] if event else [Event(queue, queue.given) for queue in self._queues]
        while not all(event.come for event in events):
            moved = self._step()
            self._alive()
            assert moved, "the queues wait for each other"
        self._alive()

    def close(self) -> None:
        self.inner.close()

    def _alive(self) -> None:
        if self.fault is not None:
            raise self.fault

    def _give(self, call: Call) -> None:
        self._alive()
        if self._captured is not None:
            self._captured.append(call)
        else:
            self._current.work.append(call)
            self._current.given += 1

    def _step(self) -> bool:
        """Runs the next work of a queue that may run; returns whether there was one."""
        ready = [q for q in self._queues if q.work and not (isinstance(q.work[0], Event) and not q.work[0].come)]
        if not ready:
            return False
        queue = self._random.choice(ready)
        work: Call | Event | Callable[[], None] = queue.work.popleft()
        if not isinstance(work, Event):
            try:
                work()
            except DriverError as fault:
                self.fault = fault
                return False
        queue.run += 1
        return True
