"""One session: frames carried out in order on the device's thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError as ProtobufDecodeError

from umd_core.device import Buffer
from umd_core.errors import DecodeError, LimitError, UmdError
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.limits import Limits
from umd_grpc.messages.frames import cut_frames, read_frame
from umd_grpc.server.cancels import Cancels
from umd_grpc.server.inbox import Inbox
from umd_grpc.server.lanes import Lane
from umd_grpc.server.moves import Moves
from umd_grpc.server.parked import Act, Finish
from umd_grpc.server.port import Meter, Outlet, Setup
from umd_grpc.server.replies import Replies
from umd_grpc.server.submissions import Submissions
from umd_grpc.server.transfer import Transfer
from umd_grpc.server.workspace import Workspace
from umd_grpc.telemetry import around

if TYPE_CHECKING:
    from umd_grpc.server.host import DeviceHost

PROTOCOL = 1
SHORT_SECONDS = 0.0002
"""What a message may take that is carried out where it arrives."""


class Session:
    """The order of one session's frames. What is here runs when it has the device's turn, but `cancels`, `idle`, `seq`.

    Attributes:
        cancels: what its client wants to end.
        moves: its transfers.
        workspace, submissions: what it made, and what it runs.
    """

    def __init__(self, setup: Setup, host: DeviceHost, lane: Lane, outlet: Outlet, meter: Meter) -> None:
        """`lane` is where its jobs run; `meter` counts what it uses."""
        self._setup, self._host, self._lane, self._outlet = setup, host, lane, outlet
        self._limits, self._report, self._device = setup.limits, host.report, host.device
        limits = setup.limits
        self._replies = Replies(setup.number, limits, host.epoch, outlet, remember=bool(setup.lease_seconds))
        self.cancels = Cancels(host.device, limits)
        self.moves = Moves(host.device, limits, self._replies.done, self._replies.fail, self.run)
        self.workspace: Workspace = Workspace(setup, host.device, host.programs, meter, self._replies.fail)
        self.submissions: Submissions = Submissions(
            setup, host.device, self.workspace, meter, self._replies, self.cancels, outlet.wake,
            goes_on="queues" in host.caps.flags,
        )  # fmt: skip
        self._inbox = Inbox(limits)
        self._next: pb.Frame | None = None
        self._through, self._body = 0, b""
        self._opened = self._over = self._resumed = False
        self._resume = setup.resume

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not (self._inbox or self.moves or self._replies.consumed)

    @property
    def seq(self) -> int:
        """Number of the last frame that was carried out; it only rises."""
        return self._replies.seq

    def short_frames(self, raw: bytes) -> list[bytes] | None:
        """Returns the frames of a message that keeps nobody waiting, carried out at once; None when it may.

        It was short before, or asks for hardly anything, and nothing stands before it.
        """
        if self._inbox or self.moves or self.submissions or self._over or not self._opened:
            return None
        frames, left = list[bytes](), SHORT_SECONDS
        try:
            for body in cut_frames(raw, self._limits):
                left -= self.submissions.repeats.seconds(body)
                if left < 0:
                    return None
                frames.append(body)
        except (UmdError, ProtobufDecodeError):
            return None  # it will be said when the frame is carried out
        return frames

    def feed(self, raw: bytes, arrived: float, frames: list[bytes] | None = None) -> None:
        """Takes a message in, which came at the time `arrived` of `time.monotonic`; `frames` if it was cut already."""
        if self._over:
            return
        if not self._inbox:
            self._replies.told = time.monotonic()
        self._inbox.add(raw, arrived, frames)
        self.run()

    def run(self) -> None:
        """Carries out what has arrived, until something has to be waited for or others have their turn."""
        start = time.perf_counter()
        while self._inbox and not self._over:
            if self._outlet.emitted - self._outlet.taken > self._limits.unread or not self._step():
                break
            if self._host.turn_is_over(self._lane, start) and self._inbox and not self._over:
                self._pause()
                return
        self._poll()
        if self._replies.pending:
            self._replies.flush()

    def _pause(self) -> None:
        """Lets others go on. A message whose last frame has been carried out is over first, with all its answers."""
        if self._inbox.at_end:
            self._end_message()
        else:
            self._poll()
            self._replies.flush_part(time.monotonic())
        if self._inbox:  # what is left belongs to the same trace
            self._host.post(around(self._host.spans, "umd.session", self.run), self._lane)

    def _step(self) -> bool:
        """Carries out the next frame, or ends its message after the last; False when it has to wait."""
        try:
            body = self._inbox.frame()
        except UmdError as error:
            self._break(error)
            return False
        if body is None:
            self._end_message()
            return True
        if not self._repeat(body):
            frame = self._read(body)
            if frame is None or (self.moves and self._blocked(frame)):
                return False
            self._carry_out(frame, body)
        self._next = None  # also of a frame that was read, had to wait, and is carried out as a repeat
        self._inbox.done()
        return True

    def _end_message(self) -> None:
        self._replies.consumed += self._inbox.end_message()
        self._poll()
        self._replies.flush()

    def attach(self, resume: bytes) -> None:
        """Drops what has arrived and was not carried out; the next frame is another Open."""
        self._replies.consumed += self._inbox.size
        self._inbox.clear()
        self._next = None
        self._replies.drop()
        self._opened, self._resumed, self._resume = False, True, resume

    def close(self) -> None:
        """Frees everything that the session made."""
        self._over = True
        self._inbox.clear()
        self.moves.clear()
        self.submissions.close()
        self.workspace.close()

    def _read(self, body: bytes) -> pb.Frame | None:
        """Returns the next frame; one that cannot be read ends the session, for what follows depends on it."""
        if self._next is None:
            try:
                self._next = read_frame(body, self._limits)
            except UmdError as error:
                self._break(error)
        return self._next

    def _break(self, error: UmdError) -> None:
        self._replies.fail(0, error)
        self._replies.flush()
        self._over = True
        self._outlet.stop(error)

    def _poll(self) -> None:
        if self.submissions:
            self.submissions.poll(time.monotonic())
            self.workspace.settle()

    def _repeat(self, body: bytes) -> bool:
        """Carries out a Submit frame that came before, if it is one; False when the frame has to be read."""
        found = self.submissions.repeats.find(body)
        if found is None or self.moves or self.submissions.parked or not self._opened:
            return False
        seq, prepared = found
        if seq <= self._replies.seq or not self.submissions.repeat(seq, prepared):
            return False
        self._report.frames += 1
        self._report.submissions += 1
        self._replies.seq = self._through = seq
        return True

    def _carry_out(self, frame: pb.Frame, body: bytes) -> None:
        kind, seq = frame.WhichOneof("command"), frame.seq
        self._report.frames += 1
        try:
            if seq <= self._replies.seq:
                detail = f"frame {seq} follows frame {self._replies.seq}"
                raise DecodeError("frame-seq", detail, section="SESSION", index=seq)
            self._replies.seq = seq
            if kind == "open" and not self._opened:
                self._open(seq, frame.open)
            elif kind is None or kind == "open" or not self._opened:
                detail = f"frame {seq} ({kind or 'unknown'}) does not belong here: Open comes first, once"
                raise DecodeError("frame-order", detail, section="SESSION", index=seq)
            else:
                self._through, self._body = seq, body
                _COMMANDS[kind](self, seq, getattr(frame, kind))
        except Exception as error:  # noqa: BLE001  # one frame's fault is answered, the session goes on
            self._replies.fail(seq, error)
        self.cancels.passed(seq)

    # commands

    def _open(self, seq: int, command: pb.Open) -> None:
        """Answers with the session's tokens and limits."""
        if command.protocol != PROTOCOL:
            raise LimitError("protocol version of the client", command.protocol, PROTOCOL)
        self._opened = True
        opened = self._replies.opened(seq)
        opened.session, opened.device = self._setup.token, self._host.name
        opened.resume, opened.lease_seconds = self._resume, self._setup.lease_seconds
        opened.resumed, opened.processed_through = self._resumed, self._through
        write_limits(self._limits, opened.limits)

    def close_frame(self, seq: int, command: pb.Close) -> None:
        """Ends the session in good order."""
        self._replies.done(seq)
        self._poll()
        self._replies.flush()
        self._over = True
        self._outlet.stop(None)

    def free(self, seq: int, command: pb.Free) -> None:
        """Forgets handles."""
        self.submissions.repeats.clear()
        self.workspace.forget(command)
        for handle in command.buffers:
            buffer = self.workspace.buffers.remove(handle)
            if buffer is not None:
                self._free(buffer)

    def _free(self, buffer: Buffer) -> None:
        """Frees a buffer once reads and writes before it are done; submissions that wait hold it themselves."""
        parked = self.submissions.parked
        if not parked.holds(buffer):
            self.workspace.free(buffer)
            return

        def later(finish: Finish) -> None:
            self.workspace.free(buffer)
            finish()

        parked.add(buffer, later)

    def submit(self, seq: int, command: pb.Submit) -> None:
        """Runs a program."""
        self._report.submissions += 1
        spans = self._host.spans
        if spans is None:
            self.submissions.submit(seq, command, self._inbox.arrived, self._body)
            return
        program = self.workspace.programs.things.get(command.program)
        commands = len(program.command_buffer.commands) if program is not None else 0
        facts: dict[str, str | int] = {
            "umd.device": self._host.name,
            "umd.session": self._setup.number,
            "umd.commands": commands,
        }
        with spans.span("umd.submit", None, **facts):
            self.submissions.submit(seq, command, self._inbox.arrived, self._body)

    def wait(self, seq: int, command: pb.Wait) -> None:
        """Answers when a fence is there, or its time is over."""
        fence = self.workspace.fence(command.fence.fence)
        self.submissions.progress.check(len(self.submissions.parked))
        self.submissions.progress.wait(seq, fence, command.fence.value, command.timeout_ms / 1000)

    def signal(self, seq: int, command: pb.FenceValue) -> None:
        """Raises a fence."""
        self.workspace.fence(command.fence).signal(command.value)

    def flush(self, seq: int, command: pb.Flush) -> None:
        """Answers."""
        self._replies.done(seq)

    def read(self, seq: int, command: pb.ReadRange) -> None:
        """Answers with bytes, when the work before it is done."""
        if command.size > self._limits.inline:
            raise LimitError("bytes of an inline read", command.size, self._limits.inline)
        buffer, offset, size = self.workspace.buffers.get(command.buffer), command.offset, command.size

        def act() -> None:
            self._replies.data(seq, bytes(self._device.read(buffer, offset, size)))

        self._when_free(seq, buffer, act, reads=True)

    def write(self, seq: int, command: pb.WriteRange) -> None:
        """Writes bytes, when the work before it is done. What could not be written is poisoned."""
        data = command.data
        if len(data) > self._limits.inline:
            raise LimitError("bytes of an inline write", len(data), self._limits.inline)
        target = self.workspace.range(command.buffer, command.offset, len(data))
        buffer = target.buffer
        try:
            self._when_free(seq, buffer, lambda: self._device.write(buffer, target.offset, data), len(data))
        except LimitError as error:
            self.submissions.spoil([target], error)
            raise

    def _when_free(
        self, seq: int, buffer: Buffer, act: Callable[[], None], size: int = 0, *, reads: bool = False
    ) -> None:
        """Does something to a buffer, now or when what uses it has ended; reading waits for what writes it."""
        if not self.submissions.parked.busy(buffer, reads=reads):
            act()
            return

        def later(finish: Finish) -> None:
            try:
                act()
            except Exception as error:  # noqa: BLE001  # it is answered like that of any frame
                self._replies.fail(seq, error)
            finish()

        self._park(buffer, later, size, reads=reads)

    def _park(self, buffer: Buffer, act: Act, size: int = 0, *, reads: bool = False) -> None:
        parked = self.submissions.parked
        self.submissions.progress.check(len(parked))
        if parked.size + size > self._limits.credit:
            raise LimitError("bytes of writes that wait", parked.size + size, self._limits.credit)
        parked.add(buffer, act, size, reads=reads)

    def transfer(self, seq: int, command: pb.Transfer) -> None:
        """Lets a call of Write or Read begin, when the work before it is done."""
        try:
            self.moves.check(seq, command, len(self.submissions.parked))
            target = self.workspace.range(command.buffer, command.offset, command.size)
        except UmdError as error:
            self._outlet.reached(command.id, error)
            raise

        def begin(finish: Finish) -> None:
            self.moves.begin(seq, command, target, finish)
            transfer = Transfer(command.id, command.size, command.direction == pb.DIRECTION_WRITE, command.sha256)
            self._outlet.reached(command.id, transfer)

        reads = command.direction == pb.DIRECTION_READ
        if self.submissions.parked.busy(target.buffer, reads=reads):
            self._park(target.buffer, begin, reads=reads)
        else:
            begin(_nothing)

    def _blocked(self, frame: pb.Frame) -> bool:
        """Returns whether a frame touches a buffer whose bytes are still on their way."""
        kind, handles = frame.WhichOneof("command"), self.moves.handles
        if kind in ("submit", "free", "spoil"):
            return not handles.isdisjoint(getattr(frame, kind).buffers)
        if kind not in ("read", "write", "transfer"):
            return False
        command = getattr(frame, kind)
        size = len(command.data) if kind == "write" else command.size
        return self.moves.overlaps(command.buffer, command.offset, size)


def _nothing() -> None:
    """What follows the end of a transfer that nothing waits for."""


def write_limits(limits: Limits, message: pb.Limits) -> None:
    """Fills the message that tells clients the limits."""
    message.message_size, message.inline_size, message.chunk_size = limits.message, limits.inline, limits.chunk
    message.transfer_size, message.frame_count = limits.transfer, limits.frames
    message.handle_count, message.wait_count = limits.handles, limits.waits


_COMMANDS: Mapping[str, Callable[[Session, int, Any], None]] = {
    "allocate": lambda session, seq, command: session.workspace.allocate(seq, command),
    "free": Session.free,
    "load": lambda session, seq, command: session.workspace.load(seq, command),
    "submit": Session.submit,
    "wait": Session.wait,
    "read": Session.read,
    "write": Session.write,
    "transfer": Session.transfer,
    "flush": Session.flush,
    "signal": Session.signal,
    "cancel": lambda session, seq, command: session.submissions.cancel(seq, command),
    "close": Session.close_frame,
    "spoil": lambda session, seq, command: session.submissions.lost(seq, command),
}
