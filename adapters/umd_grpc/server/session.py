"""One session: frames carried out in order on the device's thread."""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from umd_core.device import Binding
from umd_core.device.execution import poison
from umd_core.errors import DecodeError, InternalError, LimitError, StaleHandleError, UmdError
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.limits import Limits
from umd_grpc.messages.convert import error_text, facts_text
from umd_grpc.messages.frames import cut_frames, read_frame
from umd_grpc.server.host import DeviceHost
from umd_grpc.server.programs import Programs
from umd_grpc.server.report import Report, log
from umd_grpc.server.transfer import Transfer
from umd_grpc.server.workspace import Workspace

PROTOCOL = 1
SLICE_SECONDS = 0.02


class Outlet:
    """The way from a session, on its device's thread, to the event loop. Every call may come from any thread.

    Attributes:
        emitted, taken: bytes of responses given, and those that the stream has accepted.
        reached: called with the id of each transfer frame, and the transfer or why there is none.
        stop: called with the error that ends the session.
        wake: called with the seconds after which `run` is wanted.
    """

    def __init__(
        self,
        send: Callable[[bytes, int], None],
        reached: Callable[[int, Transfer | UmdError], None],
        stop: Callable[[UmdError], None],
        wake: Callable[[float], None],
    ) -> None:
        self._send, self.reached, self.stop, self.wake = send, reached, stop, wake
        self.emitted = self.taken = 0

    def send(self, response: bytes, consumed: int) -> None:
        """Sends a response; `consumed` bytes of requests are done with."""
        self.emitted += len(response)
        self._send(response, consumed)


class Session:
    """The order of one session's frames, its transfers and its replies. Everything here runs on the device's thread."""

    def __init__(
        self,
        number: int,
        token: bytes,
        host: DeviceHost,
        limits: Limits,
        known: Programs,
        report: Report,
        outlet: Outlet,
    ) -> None:
        self._number, self._token, self._host = number, token, host
        self._limits, self._report, self._outlet = limits, report, outlet
        self.workspace = Workspace(number, token, host.device, limits, known, self._ended)
        self._inbox: deque[bytes | int] = deque()
        self._next: pb.Frame | None = None
        self._seq = 0
        self._opened = self._over = False
        self._transfers: dict[int, Transfer] = {}
        self._response = pb.SessionResponse()
        self._reply_size = self._consumed = 0

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not (self._inbox or self._transfers or self._consumed)

    def feed(self, raw: bytes) -> None:
        """Takes a message in."""
        if self._over:
            return
        try:
            self._inbox.extend(cut_frames(raw, self._limits))
        except UmdError as error:
            self._break(error)
            return
        self._inbox.append(len(raw))
        self.run()

    def run(self) -> None:
        """Carries out what has arrived, until something has to be waited for or others have their turn."""
        stop = time.perf_counter() + SLICE_SECONDS
        while self._inbox and not self._over:
            if self._outlet.emitted - self._outlet.taken > self._limits.unread:
                break
            item = self._inbox[0]
            if isinstance(item, int):
                self._inbox.popleft()
                self._consumed += item
                self._poll()
                self._flush()
                continue
            frame = self._read(item)
            if frame is None or (self._transfers and self._blocked(frame)):
                break
            self._inbox.popleft()
            self._next = None
            self._carry_out(frame)
            if time.perf_counter() > stop:
                self._host.post(self.run)
                break
        self._poll()
        if self._response.replies or self._consumed or self.workspace.progress.moved:
            self._flush()

    def close(self) -> None:
        """Frees everything that the session made."""
        self._over = True
        self._inbox.clear()
        self._transfers.clear()
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
        self._fail(0, error)
        self._flush()
        self._over = True
        self._outlet.stop(error)

    def _poll(self) -> None:
        if self.workspace.progress:
            self.workspace.progress.poll()

    def _flush(self) -> None:
        """Sends what there is to say."""
        response, moved = self._response, self.workspace.progress.moved
        response.processed_through = self._seq
        response.credit = self._limits.credit
        response.device_epoch = self._host.epoch
        for queue, seq in moved.items():
            response.completed_through.add(queue=queue, seq=seq)
        moved.clear()
        consumed, self._consumed, self._reply_size = self._consumed, 0, 0
        self._response = pb.SessionResponse()
        self._outlet.send(response.SerializeToString(), consumed)

    def _carry_out(self, frame: pb.Frame) -> None:
        kind = frame.WhichOneof("command")
        self._report.frames += 1
        try:
            if frame.seq <= self._seq:
                detail = f"frame {frame.seq} follows frame {self._seq}"
                raise DecodeError("frame-seq", detail, section="SESSION", index=frame.seq)
            self._seq = frame.seq
            if kind is None or (kind == "open") == self._opened:
                detail = f"frame {frame.seq} ({kind or 'unknown'}) does not belong here: Open comes first, once"
                raise DecodeError("frame-order", detail, section="SESSION", index=frame.seq)
            _COMMANDS[kind](self, frame.seq, getattr(frame, kind))
        except Exception as error:  # noqa: BLE001  # one frame's fault is answered, the session goes on
            self._fail(frame.seq, error)

    # replies

    def _ended(self, seq: int, error: Exception | None, value: int) -> None:
        if error is None:
            self._response.replies.add(seq=seq).done.value = value
        else:
            self._fail(seq, error)

    def _fail(self, seq: int, error: Exception) -> None:
        if not isinstance(error, UmdError):
            log("internal_error", where=f"session {self._number}", traceback="".join(traceback.format_exception(error)))
            error = InternalError(f"frame {seq} failed: {type(error).__name__}")
        found = self._response.replies.add(seq=seq).error
        found.status, found.message, found.facts = int(error.status), error_text(error), facts_text(error)

    # commands

    def open(self, seq: int, command: pb.Open) -> None:
        """Answers with the session's token and limits."""
        if command.protocol != PROTOCOL:
            raise LimitError("protocol version of the client", command.protocol, PROTOCOL)
        self._opened = True
        opened = self._response.replies.add(seq=seq).opened
        opened.session, opened.device = self._token, self._host.name
        write_limits(self._limits, opened.limits)

    def submit(self, seq: int, command: pb.Submit) -> None:
        """Runs a program."""
        self._report.submissions += 1
        self.workspace.submit(seq, command)

    def wait(self, seq: int, command: pb.Wait) -> None:
        """Answers when a fence is there, or its time is over."""
        self.workspace.wait(seq, command)
        if command.timeout_ms:
            self._outlet.wake(command.timeout_ms / 1000)

    def read(self, seq: int, command: pb.ReadRange) -> None:
        """Answers with bytes."""
        data = self.workspace.read(command)
        self._response.replies.add(seq=seq).data = data
        self._reply_size += len(data)
        if self._reply_size > self._limits.inline:
            self._flush()

    def flush(self, seq: int, command: pb.Flush) -> None:
        """Answers."""
        self._response.replies.add(seq=seq).done.SetInParent()

    def transfer(self, seq: int, command: pb.Transfer) -> None:
        """Lets a call of Write or Read begin."""
        try:
            transfer = self._new_transfer(seq, command)
        except UmdError as error:
            self._outlet.reached(command.id, error)
            raise
        self._outlet.reached(command.id, transfer)

    # transfers

    def _new_transfer(self, seq: int, command: pb.Transfer) -> Transfer:
        if not 0 < command.size <= self._limits.transfer:
            raise LimitError("bytes of a transfer", command.size, self._limits.transfer)
        if command.id in self._transfers:
            raise DecodeError("transfer-id", f"transfer {command.id} is under way", section="SESSION", index=seq)
        if len(self._transfers) >= self._limits.waits:
            raise LimitError("transfers under way", self._limits.waits + 1, self._limits.waits)
        if command.direction not in (pb.DIRECTION_READ, pb.DIRECTION_WRITE):
            raise DecodeError("transfer-direction", f"direction {command.direction}", section="SESSION", index=seq)
        buffer, offset, size = self.workspace.range(command.buffer, command.offset, command.size)
        writes = command.direction == pb.DIRECTION_WRITE
        transfer = self._transfers[command.id] = Transfer(command.id, seq, command.buffer, buffer, offset, size, writes)
        return transfer

    def _blocked(self, frame: pb.Frame) -> bool:
        """Returns whether a frame touches a buffer whose bytes are still on their way."""
        handles = {transfer.handle for transfer in self._transfers.values()}
        kind = frame.WhichOneof("command")
        if kind in ("submit", "free"):
            return not handles.isdisjoint(getattr(frame, kind).buffers)
        return kind in ("read", "write", "transfer") and getattr(frame, kind).buffer in handles

    def write_chunk(self, transfer: Transfer, data: memoryview) -> None:
        """Writes the next bytes of a transfer.

        Raises:
            StaleHandleError: the transfer has failed, or the session has ended.
        """
        self._check_under_way(transfer)
        self._host.device.write(transfer.buffer, transfer.offset + transfer.done, data)
        self._advance(transfer, len(data))

    def read_chunk(self, transfer: Transfer) -> memoryview:
        """Returns the next bytes of a transfer; they stay as they are until they are taken or the transfer ends.

        Raises:
            StaleHandleError: the transfer has failed, or the session has ended.
            PoisonedError: work that failed should have written them.
        """
        self._check_under_way(transfer)
        size = min(self._limits.chunk, transfer.size - transfer.done)
        return self._host.device.read(transfer.buffer, transfer.offset + transfer.done, size)

    def taken(self, transfer: Transfer, size: int) -> None:
        """Notes that bytes of a transfer from the device were sent."""
        if transfer.id in self._transfers:
            self._advance(transfer, size)

    def _check_under_way(self, transfer: Transfer) -> None:
        if transfer.id not in self._transfers:
            raise StaleHandleError("transfer", transfer.id, "has failed, or its session has ended")

    def _advance(self, transfer: Transfer, size: int) -> None:
        transfer.done += size
        if transfer.done == transfer.size:
            self._end_transfer(transfer)

    def fail_transfer(self, transfer: Transfer, error: UmdError) -> None:
        """Ends a transfer whose bytes do not come, or are not taken. A range that was to be written is poisoned."""
        if transfer.id not in self._transfers:
            return
        if transfer.writes:
            poison(self._host.device, [Binding(transfer.buffer, transfer.offset, transfer.size)], error)
        self._fail(transfer.seq, error)
        self._end_transfer(transfer)

    def _end_transfer(self, transfer: Transfer) -> None:
        del self._transfers[transfer.id]
        self.run()


def write_limits(limits: Limits, message: pb.Limits) -> None:
    """Fills the message that tells clients the limits."""
    message.message_size, message.inline_size, message.chunk_size = limits.message, limits.inline, limits.chunk
    message.transfer_size, message.frame_count = limits.transfer, limits.frames
    message.handle_count, message.wait_count = limits.handles, limits.waits


_COMMANDS: Mapping[str, Callable[[Session, int, Any], None]] = {
    "open": Session.open,
    "allocate": lambda session, seq, command: session.workspace.allocate(seq, command),
    "free": lambda session, seq, command: session.workspace.free(seq, command),
    "load": lambda session, seq, command: session.workspace.load(seq, command),
    "submit": Session.submit,
    "wait": Session.wait,
    "read": Session.read,
    "write": lambda session, seq, command: session.workspace.write(seq, command),
    "transfer": Session.transfer,
    "flush": Session.flush,
    "signal": lambda session, seq, command: session.workspace.signal(seq, command),
}
