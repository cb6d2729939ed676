"""QueuedDevice: a sequential device whose submissions go on after `submit`, each on a queue of the driver."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Any

from umd_core.device import Binding, Buffer, Fence, FenceValue, Program, SequentialDevice, SubmissionTicket
from umd_core.device.execution import poison
from umd_core.device.submission import Work, end
from umd_core.errors import DeviceLostError, InternalError, LimitError, UmdError
from umd_cuda.driver import Driver, DriverError, Memory
from umd_cuda.faults import facts, suspects
from umd_cuda.flights import Flights, QueueFence, QueueTicket, Settled
from umd_cuda.options import Options


class QueuedDevice(SequentialDevice):
    """A device over a driver.

    A submission has ended when the driver has done its work, so its ticket and its fences tell the truth. With several
    queues (the flag "queues") `submit` returns before that, and submissions to different queues overlap. What fails by
    itself, by what its data hold for example, has failed when `submit` returns; later nothing fails but the device.

    Attributes:
        driver: who executes.
        options: how the device was opened.
        queues: how many of the driver's queues it uses.
    """

    driver: Driver
    options: Options

    def __init__(self, driver: Driver, name: str, options: Options) -> None:
        super().__init__(name)
        self.driver, self.options = driver, options
        self.queues: int = options.queues if driver.asynchronous and not options.sync else 1
        self._flights = Flights(driver, self.queues, self._failed) if driver.asynchronous else None
        self._after: Sequence[Any] = ()
        self._draining = self._woken = False
        self._lost = ""

    @property
    def lost(self) -> str:
        return self._lost

    # submissions

    def fence(self) -> Fence:
        return super().fence() if self._flights is None else QueueFence(self._flights)

    def submit(
        self,
        program: Program,
        bindings: Sequence[Binding],
        values: Sequence[int] = (),
        waits: Sequence[FenceValue] = (),
        signals: Sequence[FenceValue] = (),
        queue: int = 0,
    ) -> SubmissionTicket:
        flights = self._flights
        if flights is None:
            return super().submit(program, bindings, values, waits, signals, queue)
        flights.make_room()
        after = flights.ordered(waits) if waits else ()
        self._after, left = ((), waits) if after is None else (after, ())
        try:
            return super().submit(program, bindings, values, left, signals, queue)
        finally:
            self._after = ()

    def settle(self) -> None:
        if self._flights is None or self._lost:
            return
        self._flights.settle()
        if not self._lost:
            with self._faults():
                self.driver.synchronise()

    def _new_ticket(self, queue: int) -> SubmissionTicket:
        flights = self._flights
        return super()._new_ticket(queue) if flights is None else QueueTicket(flights, flights.lane(queue), self._after)

    def _check(self, buffer: Buffer, offset: int, size: int, what: str) -> None:
        super()._check(buffer, offset, size, what)
        if self._flights:
            self._flights.finish(buffer)

    def _check_submission(self, program: Program, signals: Sequence[FenceValue]) -> None:
        self._check_alive()
        super()._check_submission(program, signals)
        for fence, value in signals if self._flights else ():
            if isinstance(fence, QueueFence) and value <= fence.due:
                raise LimitError("fence signal", value, fence.due)

    def _run(self, work: Work, ticket: SubmissionTicket) -> None:
        if not isinstance(ticket, QueueTicket):
            super()._run(work, ticket)
            return
        self._running = True
        try:
            error = self._hand_over(work, ticket)
            if not ticket.flying:
                end(work, ticket, error)
        finally:
            self._running = False
            if self._woken:
                self._drain()

    def _drain(self) -> None:
        """Runs what may run. To look at a fence may raise others, so it is not begun anew on the way."""
        if self._flights is None:
            super()._drain()
            return
        self._woken = True
        if self._running or self._draining:
            return
        self._draining = True
        try:
            while self._woken:
                self._woken = False
                super()._drain()
        finally:
            self._draining = False

    def _hand_over(self, work: Work, ticket: QueueTicket) -> Exception | None:
        """Gives a submission's work to its queue; waits for it where it has to be, or went wrong."""
        if self._lost:
            return DeviceLostError(self.name, self._lost)
        program, bindings, words, signals = work
        flights, error = ticket.flights, None
        settled = [FenceValue(Settled(self.driver, fence), value) for fence, value in signals]
        foreign = any(not (isinstance(f, QueueFence) and f.flights is flights) for f, _ in signals)
        try:
            flights.enter(ticket, program)
            error = self.perform(program, bindings, words, settled if program.events else signals)
            if error is None and self.queues > 1 and not foreign:
                flights.add(program, bindings, signals, ticket)
            elif not self._lost:
                self.driver.synchronise(self.driver.record())
        except DriverError as fault:
            error = self._failed(fault, [program])
            poison(self, program.writable(), error)
        finally:
            if not self._lost:
                flights.leave()
        return error

    # memory

    def _release_later(self, memory: Memory, release: Callable[[Memory], None]) -> None:
        """Releases memory as soon as no work under way can use it."""
        if self._flights:
            self._flights.hold(memory, release)
        else:
            release(memory)

    def _zeroed(self) -> None:
        """Notes that memory was zeroed: what is submitted next runs after that, on any queue."""
        if self._flights is not None:
            self._flights.zeroed()

    # faults

    def _fault(self, fault: DriverError, what: str) -> UmdError:
        """Returns the error for a fault of the driver, and notes the loss of the device."""
        text = what if fault.reason in what else f"{fault} {what}".strip()
        if not fault.fatal:
            return InternalError(f"{self.name}: {text}")
        earlier = suspects(self._flights.programs if self._flights is not None else (), self.options.sync)
        if earlier and earlier not in text:  # CUDA tells of a fault when it is next asked, whatever for
            text = f"{text}, or {earlier}"
        self._lost = self._lost or text
        return DeviceLostError(self.name, self._lost)

    def _failed(self, fault: DriverError, programs: Sequence[Program]) -> UmdError:
        """Returns the error of submissions that a fault ended."""
        return self._fault(fault, suspects(programs, self.options.sync)).at(**facts(programs))

    @contextlib.contextmanager
    def _faults(self, when: str = "") -> Generator[None]:
        self._check_alive()
        try:
            yield
        except DriverError as fault:
            raise self._fault(fault, when) from fault

    def _check_alive(self) -> None:
        if self._lost:
            raise DeviceLostError(self.name, self._lost)

    def close(self) -> None:
        if self._flights is not None:
            self._flights.settle()
        super().close()
