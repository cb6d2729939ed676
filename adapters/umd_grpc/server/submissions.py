"""Submit, Cancel and Spoil frames of one session."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from umd_core.commands import WRITE
from umd_core.device import Binding, FenceValue, SequentialDevice
from umd_core.device.control import CommandTime
from umd_core.device.execution import poison
from umd_core.errors import DeviceLostError, LimitError, UmdError
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.server.cancels import Cancels, Order, cancelled
from umd_grpc.server.parked import Parked
from umd_grpc.server.port import Meter, Setup
from umd_grpc.server.progress import Progress
from umd_grpc.server.repeats import Prepared, Repeats
from umd_grpc.server.replies import Replies
from umd_grpc.server.work import Work
from umd_grpc.server.workspace import Workspace, unequal

_QUEUES = 1 << 32
_NEVER, _EARLY = float("inf"), 0.001
_REASON = 1_000


class Submissions:
    """What one session submits. Everything here runs on the device's thread.

    What a refused or cancelled submission should have written is poisoned, and its signals fire all the same: whatever
    depends on a failure fails with its root cause, and the rest goes on.

    Attributes:
        progress: what has not ended yet.
        repeats: frames that need not be read again.
        parked: reads, writes and frees behind submissions that wait.
    """

    def __init__(
        self,
        setup: Setup,
        device: SequentialDevice,
        workspace: Workspace,
        meter: Meter,
        replies: Replies,
        cancels: Cancels,
        wake: Callable[[float], None],
        *,
        goes_on: bool = False,
    ) -> None:
        """`wake` is called with the seconds after which `poll` is wanted. `goes_on`: work does after `submit`."""
        self._first_queue, self._limits, self._device = setup.number * _QUEUES, setup.limits, device
        self._workspace, self._meter, self._replies, self._cancels = workspace, meter, replies, cancels
        self._wake = wake
        self.parked, self.repeats = Parked(device), Repeats()
        self.progress = Progress(setup.limits.waits, self._ended)
        self.progress.moved = replies.moved
        self._due, self._goes_on = _NEVER, goes_on

    def __bool__(self) -> bool:
        return bool(self.progress or self.parked)

    def close(self) -> None:
        """Ends everything."""
        self.parked.clear()
        lost = DeviceLostError(self._device.name, "the session that submitted this has ended")
        self._device.abandon(self.progress.clear(), lost)

    def poll(self, now: float) -> None:
        """Tells about what has ended, cancels what is late, and does what was parked."""
        if now >= self._due:
            for work, ticket in self.progress.unfinished():
                if now >= work.deadline:
                    self._device.cancel(ticket, work.late())
        self.progress.poll()
        if self.parked:
            self.parked.poll()
            self.progress.poll()
        self._see_to_the_next(now)

    def _see_to_the_next(self, now: float) -> None:
        """Has `poll` called when something is due, or when there is something to look at."""
        due = self.progress.due()
        if self._goes_on and any(work.started for work, _ in self.progress.unfinished()):
            due = min(due, now + self._limits.look_seconds)  # such work tells nobody when it ends
        if due != _NEVER and (due != self._due or now > due - _EARLY):
            self._wake(max(due - now, _EARLY))
        self._due = due

    def _ended(self, seq: int, error: Exception | None, value: int, times: Sequence[CommandTime]) -> None:
        if error is None:
            self._replies.done(seq, value, times)
        else:
            self._replies.fail(seq, error, times)

    def repeat(self, seq: int, prepared: Prepared) -> bool:
        """Runs a program again as before; False when that is not possible, and has to be looked into."""
        work, start = Work(self._cancels, seq, prepared.queue, prepared.priority), time.perf_counter()
        try:
            if self.progress:
                self.progress.check()
            self._meter.take_ops(1)
            lane = self._first_queue + prepared.queue
            ticket = self._device.submit_with(work, prepared.program, prepared.bindings, prepared.values, (), (), lane)
        except UmdError:
            return False  # nothing has run: the frame is read, and says what is wrong
        prepared.seconds = time.perf_counter() - start
        self.progress.submitted(work, ticket, prepared.reply)
        return True

    def submit(self, seq: int, command: pb.Submit, arrived: float, body: bytes) -> None:
        """Runs a program; `body` is the frame as it came."""
        try:
            work = self._work(seq, command, arrived)
            program, bindings = self._workspace.programs.get(command.program), self._bindings(command)
            fence = self._workspace.fence
            waits = [FenceValue(fence(wait.fence), wait.value) for wait in command.waits]
            signals = [FenceValue(fence(signal.fence), signal.value) for signal in command.signals]
            if self.parked:
                waits += self.parked.waits([binding.buffer for binding in bindings])
            if waits or self.progress:
                self.progress.check(len(self.parked))
            queue = self._first_queue + command.queue
            ticket = self._device.submit_with(work, program, bindings, command.values, waits, signals, queue)
        except Exception as error:
            self._refuse(seq, command, error)
            raise
        self.progress.submitted(work, ticket, command.reply)
        self.repeats.note(seq, body, command, program, bindings)

    def _work(self, seq: int, command: pb.Submit, arrived: float) -> Work:
        work = Work(self._cancels, seq, command.queue, command.priority, profile=command.profile)
        self._meter.take_ops(1)
        if command.deadline_ms:
            work.deadline = arrived + command.deadline_ms / 1000
        if not self._replies.remembers(command.queue):
            raise LimitError("queues of a session with a lease", self._limits.queues + 1, self._limits.queues)
        return work

    def _bindings(self, command: pb.Submit) -> list[Binding]:
        count = len(command.buffers)
        for name, given in (("offsets", len(command.offsets)), ("sizes", len(command.sizes))):
            if given not in (0, count):
                raise unequal(f"Submit {name}", given, count)
        handles = self._workspace.buffers
        things = handles.things
        buffers = [things.get(handle) or handles.get(handle) for handle in command.buffers]
        offsets = command.offsets or (0,) * count
        sizes = command.sizes or [buffer.size - offset for buffer, offset in zip(buffers, offsets, strict=True)]
        return list(map(Binding, buffers, offsets, sizes))

    def _refuse(self, seq: int, command: pb.Submit, error: Exception) -> None:
        """Poisons what a submission that never runs should have written, and fires its signals."""
        program = self._workspace.programs.things.get(command.program)
        slots = program.command_buffer.slots if program is not None else ()
        written = [i for i in range(len(command.buffers)) if i >= len(slots) or slots[i].access & WRITE]
        for index in written:
            ranges = [list(column)[index : index + 1] for column in (command.buffers, command.offsets, command.sizes)]
            self.spoil(self._workspace.present(*ranges), error)
        for signal in command.signals:
            self._workspace.fence(signal.fence).advance(signal.value)
        self.progress.refused(seq, command.queue)

    def spoil(self, ranges: list[Binding], error: Exception) -> None:
        """Poisons ranges, when it is their turn."""
        for target in ranges:
            if self.parked.busy(target.buffer):
                self.parked.spoil(target.buffer, error)
            else:
                poison(self._device, [target], error)

    def lost(self, seq: int, command: pb.Spoil) -> None:
        """Poisons what frames should have written that were lost, and fires their signals."""
        error = DeviceLostError(self._device.name, command.reason[:_REASON] or "frames were lost with their stream")
        columns = list(command.buffers), list(command.offsets), list(command.sizes)
        self.spoil(self._workspace.present(*columns), error)
        for signal in command.signals:
            self._workspace.fence(signal.fence).advance(signal.value)

    def cancel(self, seq: int, command: pb.Cancel) -> None:
        """Ends submissions that wait."""
        order = Order(seq, frozenset(command.seqs), frozenset(command.queues))
        for work, ticket in self.progress.unfinished():
            if order.ends(work.seq, work.queue):
                self._device.cancel(ticket, cancelled(work.seq))
