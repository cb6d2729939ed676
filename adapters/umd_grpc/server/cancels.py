"""Cancel frames: they act on what came before, also while that keeps the session from reaching them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf.message import DecodeError as ProtobufDecodeError

from umd_core.device import SequentialDevice
from umd_core.errors import CancelledError, UmdError
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.limits import Limits
from umd_grpc.messages import wire
from umd_grpc.messages.frames import cut_frames
from umd_grpc.server.work import Work

_SEQ_KEY, _CANCEL_KEY = 0x08, 13 << 3 | wire.BYTES
_EVERYTHING = 1 << 64


@dataclass(frozen=True, slots=True)
class Order:
    """What one Cancel frame, number `seq`, ends: submissions before it."""

    seq: int
    seqs: frozenset[int]
    queues: frozenset[int]

    def ends(self, seq: int, queue: int) -> bool:
        """Returns whether a submission is to end."""
        return seq < self.seq and (seq in self.seqs or queue in self.queues or not (self.seqs or self.queues))


class Cancels:
    """The Cancel frames of one session that are on their way.

    `look_ahead` and `everything` are called on the event loop, the rest on the device's thread.
    """

    def __init__(self, device: SequentialDevice, limits: Limits) -> None:
        self._device, self._limits = device, limits
        self._orders: list[Order] = []

    def look_ahead(self, raw: bytes) -> None:
        """Notes the Cancel frames of a message that arrives, and stops what runs and is meant."""
        if _CANCEL_KEY not in raw:
            return
        try:
            found = list(self._cancel_frames(raw))
        except (UmdError, ProtobufDecodeError):
            return  # the session will say so when it gets there
        for frame in found:
            self._note(Order(frame.seq, frozenset(frame.cancel.seqs), frozenset(frame.cancel.queues)))

    def _cancel_frames(self, raw: bytes) -> Iterator[pb.Frame]:
        for body in cut_frames(raw, self._limits):
            if body[:1] != bytes((_SEQ_KEY,)) or len(body) > self._limits.frame:
                continue
            _, at = wire.varint(body, 1)
            if at < len(body) and body[at] == _CANCEL_KEY:
                yield pb.Frame.FromString(body)

    def everything(self) -> None:
        """Ends whatever the session has submitted."""
        self._note(Order(_EVERYTHING, frozenset(), frozenset()))

    def _note(self, order: Order) -> None:
        # First the order, then the look at what runs: a submission that starts now does it the other way round.
        self._orders.append(order)
        work = self._device.control
        if isinstance(work, Work) and work.owner is self and order.ends(work.seq, work.queue) and not work.stops:
            work.stops.append(cancelled(work.seq))

    def begin(self, work: Work) -> Exception | None:
        """Returns the error of a submission that is to end before it starts."""
        for order in self._orders:
            if order.ends(work.seq, work.queue):
                return cancelled(work.seq)
        return None

    def passed(self, seq: int) -> None:
        """Forgets the orders that the session's frames have reached."""
        if self._orders:
            self._orders = [order for order in self._orders if order.seq > seq]


def cancelled(seq: int) -> CancelledError:
    """Returns the error of a submission that its client cancelled."""
    return CancelledError(f"submission {seq} was cancelled by its client")
