"""Work under way: submissions whose queue has not come to their end yet, and what waits for that.

A submission returns when its work has been handed over. Its event comes when the work is done; until then the program,
memory that is freed, and the fences that it will signal are kept here. Nothing runs in the background: events are
looked at when somebody asks (a ticket, a fence, a read), and when there is no room for more.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from umd_core.device import Binding, Buffer, Fence, FenceValue, Program, SubmissionTicket
from umd_core.errors import CancelledError, UmdError
from umd_cuda.driver import Driver, DriverError, Memory

MOST = 64
"""Submissions under way at a time: one more waits for the oldest."""
_PAUSE = 50e-6
"""Seconds between two looks at an event, when waiting has a time limit."""


class QueueTicket(SubmissionTicket):
    """A submission of a device with queues.

    Attributes:
        flights: the device's.
        lane: the driver's queue that it runs on.
        after: events that it runs after.
        flying: whether all its work has been handed over and goes on.
    """

    __slots__ = ("after", "flights", "flying", "lane")

    flights: Flights
    lane: int
    after: Sequence[Any]

    def __init__(self, flights: Flights, lane: int, after: Sequence[Any]) -> None:
        super().__init__()
        self.flights, self.lane, self.after = flights, lane, after
        self.flying: bool = False

    def complete(self, error: Exception | None) -> None:
        super().complete(error)
        self.flying = False

    def done(self) -> bool:
        if not self._done:
            self.flights.poll()
        return self._done

    def wait(self, timeout: float | None = None) -> None:
        if not self._done:
            self.flights.until(lambda: self._done, timeout, self)
        super().wait(timeout)


class QueueFence(Fence):
    """A fence that work under way may signal.

    Attributes:
        flights: the device's.
        promises: values that will be signalled, each with the flight that does it.
    """

    __slots__ = ("_reached", "flights", "promises")

    def __init__(self, flights: Flights) -> None:
        self.flights: Flights = flights
        self.promises: list[tuple[int, Flight]] = []
        super().__init__()

    @property
    def value(self) -> int:
        """The highest value signalled so far."""
        if self.promises:
            self.flights.poll()
        return self._reached

    @value.setter
    def value(self, value: int) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]  # it polls first
        self._reached = value

    def wait(self, value: int, timeout: float | None = None) -> None:
        self.flights.until(lambda: self._reached >= value, timeout)
        super().wait(value, timeout)

    @property
    def due(self) -> int:
        """The highest value that has been signalled or will be by work under way."""
        return max((value for value, _ in self.promises), default=0)


@dataclass(slots=True, eq=False)
class Flight:
    """A submission under way.

    Attributes:
        number: how many had been handed over with it.
        event: comes with its end.
    """

    number: int
    program: Program
    bindings: Sequence[Binding]
    signals: Sequence[FenceValue]
    ticket: QueueTicket
    event: Any

    def uses(self, buffer: Buffer) -> bool:
        """Returns whether a buffer is among the bindings."""
        return any(binding[0] is buffer for binding in self.bindings)


class Flights:
    """The submissions under way of one device, and its queues.

    Args:
        driver: who executes. Outside `enter` and `leave`, its current queue is its first, where memory is zeroed,
            written and read.
        lanes: how many queues the driver is asked for; the device's queues share them.
        failed: returns the error of submissions that a fault of the driver ended.
    """

    def __init__(
        self,
        driver: Driver,
        lanes: int,
        failed: Callable[[DriverError, Sequence[Program]], UmdError],
    ) -> None:
        self._driver, self._failed = driver, failed
        self._queues: list[Any] = [None] * lanes
        self._flying: list[Flight] = []
        self._held: deque[tuple[int, Memory, Callable[[Memory], None]]] = deque()
        self._number = 0
        self._zeroed = self._marked = 0
        self._mark: Any = None
        self._seen = [0] * lanes
        self._looking = False

    def __bool__(self) -> bool:
        return bool(self._flying)

    @property
    def programs(self) -> list[Program]:
        """The programs under way."""
        return [flight.program for flight in self._flying]

    def lane(self, queue: int) -> int:
        """Returns which of the driver's queues a queue of the device runs on."""
        return (queue + (queue >> 32)) % len(self._queues)

    def ordered(self, waits: Sequence[FenceValue]) -> list[Any] | None:
        """Returns events that stand for the waits; None when one of them is for what no work under way signals."""
        events = []
        for fence, value in waits:
            if fence.value >= value:
                continue
            promises = fence.promises if isinstance(fence, QueueFence) and fence.flights is self else ()
            flight = next((flight for promised, flight in promises if promised >= value), None)
            if flight is None:
                return None
            events.append(flight.event)
        return events

    # handing over

    def zeroed(self) -> None:
        """Notes that memory was zeroed on the first queue: what is handed over next runs after that."""
        self._zeroed += 1

    def enter(self, ticket: QueueTicket, program: Program) -> None:
        """Makes the queue of a submission the current one, held back by all that the submission runs after."""
        lane, driver = ticket.lane, self._driver
        behind = self._seen[lane] != self._zeroed
        if behind and self._marked != self._zeroed:
            self._mark, self._marked = driver.record(), self._zeroed
        if self._queues[lane] is None:
            self._queues[lane] = driver.queue()
        driver.use(self._queues[lane])
        if behind:
            driver.wait(self._mark)
            self._seen[lane] = self._zeroed
        for event in ticket.after:
            driver.wait(event)
        for flight in reversed(self._flying):
            if flight.program is program:  # arena and constants are the program's: its runs never overlap
                if flight.ticket.lane != lane:
                    driver.wait(flight.event)
                break

    def add(
        self, program: Program, bindings: Sequence[Binding], signals: Sequence[FenceValue], ticket: QueueTicket
    ) -> None:
        """Notes that all work of a submission has been handed over."""
        event = self._driver.record()
        self._number += 1
        flight = Flight(self._number, program, bindings, signals, ticket, event)
        self._flying.append(flight)
        ticket.flying = True
        for fence, value in signals:
            fence.promises.append((value, flight))

    def leave(self) -> None:
        """Makes the first queue the current one again."""
        self._driver.use(None)

    def hold(self, memory: Memory, release: Callable[[Memory], None]) -> None:
        """Releases memory as soon as nothing that is under way now can use it."""
        self._held.append((self._number, memory, release))

    # coming to the end

    def poll(self) -> None:
        """Ends the submissions whose events have come. Never blocks."""
        if self._looking or not self._flying:
            return
        self._looking = True
        late: set[int] = set()
        ended = []
        try:
            for flight in self._flying:
                lane = flight.ticket.lane
                if lane in late:
                    continue
                if self._driver.come(flight.event):
                    ended.append(flight)
                else:
                    late.add(lane)
        except DriverError as fault:
            self._fail(fault)
            return
        finally:
            self._looking = False
        if ended:
            self._end(ended, None)

    def finish(self, buffer: Buffer) -> None:
        """Returns when nothing under way uses a buffer."""
        self._finish([flight for flight in self._flying if flight.uses(buffer)])

    def settle(self) -> None:
        """Returns when nothing is under way."""
        while self._flying:
            self._finish(list(self._flying))

    def make_room(self) -> None:
        """Returns when one more submission may be under way."""
        if len(self._flying) >= MOST:
            self._finish(self._flying[:1])

    def until(self, reached: Callable[[], bool], timeout: float | None, ticket: QueueTicket | None = None) -> None:
        """Returns when something is so, or when no work is under way that might make it so.

        `ticket` is the submission that it depends on, when it is known.

        Raises:
            CancelledError: `timeout` seconds passed.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self.poll()
        while self._flying and not reached():
            if deadline is None:
                self._finish([next((f for f in self._flying if f.ticket is ticket), self._flying[0])])
            elif time.monotonic() >= deadline:
                raise CancelledError(f"wait for work under way: it was not done in {timeout:g} s")
            else:
                time.sleep(_PAUSE)
                self.poll()

    def _finish(self, flights: Sequence[Flight]) -> None:
        try:
            for flight in flights:
                self._driver.synchronise(flight.event)
        except DriverError as fault:
            self._fail(fault)
        else:
            self.poll()

    def _fail(self, fault: DriverError) -> None:
        self._end(self._flying, self._failed(fault, self.programs))

    def _end(self, ended: Sequence[Flight], error: UmdError | None) -> None:
        """Ends submissions: their memory may be used again, their tickets and fences say so."""
        self._flying = [flight for flight in self._flying if flight not in ended]
        oldest = self._flying[0].number if self._flying else self._number + 1
        while self._held and self._held[0][0] < oldest:
            _, memory, release = self._held.popleft()
            release(memory)
        for flight in ended:
            flight.ticket.complete(error)
        for flight in ended:
            for fence, value in flight.signals:
                fence.promises = [promise for promise in fence.promises if promise[1] is not flight]
                fence.advance(value)


class Settled:
    """A fence that a command in the middle of a program signals: what was handed over before is waited for."""

    __slots__ = ("_driver", "_fence")

    def __init__(self, driver: Driver, fence: Fence) -> None:
        self._driver, self._fence = driver, fence

    def advance(self, value: int) -> None:
        """Raises the fence's counter."""
        self._driver.synchronise(self._driver.record())
        self._fence.advance(value)
