"""The device's side of a session's transfers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from umd_core.device import Binding, SequentialDevice
from umd_core.device.execution import poison
from umd_core.errors import DecodeError, LimitError, StaleHandleError, UmdError
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.limits import Limits
from umd_grpc.server.parked import Finish, overtaking

SHA256_SIZE = 32


@dataclass(slots=True)
class _Move:
    seq: int
    handle: int
    target: Binding
    writes: bool
    finish: Finish
    done: int = 0


class Moves:
    """Transfers that one session's order has reached and that have not ended. Everything runs on the device's thread.

    Attributes:
        handles: of the buffers that they go to or come from.
    """

    def __init__(
        self,
        device: SequentialDevice,
        limits: Limits,
        done: Callable[[int, int], None],
        fail: Callable[[int, Exception], None],
        go_on: Callable[[], None],
    ) -> None:
        """`done` and `fail` answer a transfer's frame; `go_on` lets the session carry out what has waited."""
        self._device, self._limits, self._done, self._fail, self._go_on = device, limits, done, fail, go_on
        self._moves: dict[int, _Move] = {}
        self.handles: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._moves)

    def check(self, seq: int, command: pb.Transfer, parked: int) -> None:
        """Checks a transfer frame; `parked` others wait to begin.

        Raises:
            LimitError, DecodeError: what is wrong with it.
        """
        if not 0 < command.size <= self._limits.transfer:
            raise LimitError("bytes of a transfer", command.size, self._limits.transfer)
        if command.id in self._moves:
            raise DecodeError("transfer-id", f"transfer {command.id} is under way", section="SESSION", index=seq)
        if len(self._moves) + parked >= self._limits.waits:
            raise LimitError("transfers under way", self._limits.waits + 1, self._limits.waits)
        if command.direction not in (pb.DIRECTION_READ, pb.DIRECTION_WRITE):
            raise DecodeError("transfer-direction", f"direction {command.direction}", section="SESSION", index=seq)
        if command.sha256 and (command.direction != pb.DIRECTION_WRITE or len(command.sha256) != SHA256_SIZE):
            detail = f"{len(command.sha256)} bytes of sha256; {SHA256_SIZE} would be right, and for writes only"
            raise DecodeError("transfer-sha256", detail, section="SESSION", index=seq)

    def overlaps(self, handle: int, offset: int, size: int) -> bool:
        """Returns whether a transfer has to do with some of these bytes of a buffer."""
        if handle not in self.handles:
            return False
        ranges = (move.target for move in self._moves.values() if move.handle == handle)
        return any(offset < target.offset + target.size and target.offset < offset + size for target in ranges)

    def begin(self, seq: int, command: pb.Transfer, target: Binding, finish: Finish) -> None:
        """Lets the bytes of a transfer come; `finish` is called when it has ended."""
        writes = command.direction == pb.DIRECTION_WRITE
        self._moves[command.id] = _Move(seq, command.buffer, target, writes, finish)
        self.handles.add(command.buffer)

    def write(self, number: int, data: memoryview) -> int:
        """Writes the next bytes of a transfer; returns how many it has now.

        Raises:
            StaleHandleError: the transfer has failed, or the session has ended.
        """
        move = self._get(number)
        with overtaking(self._device):
            self._device.write(move.target.buffer, move.target.offset + move.done, data)
        self._advance(number, move, len(data))
        return move.done

    def read(self, number: int, offset: int, size: int) -> memoryview:
        """Returns bytes of a transfer; they stay as they are until all are taken or the transfer ends.

        Raises:
            StaleHandleError: the transfer has failed, or the session has ended.
            PoisonedError: work that failed should have written them.
        """
        move = self._get(number)
        size = min(size, move.target.size - offset)
        with overtaking(self._device):
            return self._device.read(move.target.buffer, move.target.offset + offset, size)

    def copy(self, number: int, offset: int, target: memoryview) -> None:
        """Copies bytes of a transfer from `offset` on; see `read`."""
        data = self.read(number, offset, len(target))
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(data, np.uint8))

    def taken(self, number: int) -> None:
        """Notes that all bytes of a transfer from the device were sent."""
        move = self._moves.get(number)
        if move is not None:
            self._end(number, move)

    def answer(self, number: int, size: int) -> None:
        """Answers a transfer that came with the hash of its bytes: `size` of them are here already."""
        move = self._moves.get(number)
        if move is not None:
            self._done(move.seq, size)
            self._go_on()

    def _get(self, number: int) -> _Move:
        move = self._moves.get(number)
        if move is None:
            raise StaleHandleError("transfer", number, "has failed, or its session has ended")
        return move

    def _advance(self, number: int, move: _Move, size: int) -> None:
        move.done += size
        if move.done == move.target.size:
            self._end(number, move)

    def fail(self, number: int, error: UmdError) -> None:
        """Ends a transfer whose bytes do not come, or are not taken. A range that was to be written is poisoned."""
        move = self._moves.get(number)
        if move is not None:
            if move.writes:
                poison(self._device, [move.target], error)
            self._fail(move.seq, error)
            self._end(number, move)

    def _end(self, number: int, move: _Move) -> None:
        del self._moves[number]
        self.handles = {other.handle for other in self._moves.values()}
        move.finish()
        self._go_on()

    def clear(self) -> None:
        """Forgets everything."""
        self._moves.clear()
        self.handles.clear()
