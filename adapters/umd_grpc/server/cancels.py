"""Cancel frames: they act on what came before, also while that keeps the session from reaching them."""

from __future__ import annotations

import re
import threading
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

_CANCEL_KEY = 13 << 3 | wire.BYTES
_SEQ_START, _CANCEL_START = b"\x08", bytes((_CANCEL_KEY,))
_VARINT = rb"[\x80-\xff]{0,9}+[\x00-\x7f]"
_LOOKS_LIKE_ONE = re.compile(rb"\x0a" + _VARINT + rb"\x08" + _VARINT + rb"\x6a", re.DOTALL)
"""How a Cancel frame begins: the key of a frame, its length, its number, the key of a Cancel."""
_LONGEST_START = 23
WINDOW, FRAMES = 32 << 10, 256
"""Bytes, and frames, that are looked at before others have their turn."""
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


class _Noted:
    """What many orders end, by what they name: a session may be sent a million of them.

    Attributes:
        newest: the highest number of an order, 0 when there is none.
    """

    __slots__ = ("_everything", "_queues", "_seqs", "newest")

    def __init__(self) -> None:
        self._seqs: dict[int, int] = {}
        self._queues: dict[int, int] = {}
        self._everything = self.newest = 0

    def add(self, order: Order) -> None:
        """Adds an order."""
        for named, numbers in ((self._seqs, order.seqs), (self._queues, order.queues)):
            for number in numbers:
                named[number] = max(order.seq, named.get(number, 0))
        if not (order.seqs or order.queues):
            self._everything = max(order.seq, self._everything)
        self.newest = max(order.seq, self.newest)

    def ends(self, seq: int, queue: int) -> bool:
        """Returns whether one of them ends a submission; see `Order.ends`."""
        return seq < self._everything or seq < self._seqs.get(seq, 0) or seq < self._queues.get(queue, 0)


class Cancels:
    """The Cancel frames of one session that are on their way.

    `look_ahead` and `everything` are called on the event loop, the rest on the device's thread.
    """

    def __init__(self, device: SequentialDevice, limits: Limits) -> None:
        self._device, self._limits = device, limits
        self._lock = threading.Lock()  # an order that is noted must not go to what has just been forgotten
        self._older, self._newer = _Noted(), _Noted()

    def look_ahead(self, raw: bytes, through: int = 0) -> Iterator[None]:
        """Notes the Cancel frames of a message that arrives, and stops what runs and is meant.

        A large message is looked at in parts, one each time that the iterator is asked. Most have nothing in them that
        looks like a Cancel frame, and are not cut into frames. `through` is the number of the last frame that was
        carried out: one that does not rise above it, or above those before it in the message, will be refused when it
        is reached, and must not be obeyed now.
        """
        if _CANCEL_KEY not in raw:
            return
        found: re.Match[bytes] | None = None
        for start in range(0, len(raw), WINDOW):
            if start:
                yield
            found = _LOOKS_LIKE_ONE.search(raw, start, start + WINDOW + _LONGEST_START)
            if found is not None:
                break
        if found is not None:
            yield from self._find(raw, through)

    def _find(self, raw: bytes, through: int) -> Iterator[None]:
        orders = list[Order]()
        try:
            for count, body in enumerate(cut_frames(raw, self._limits), 1):
                seq, at = wire.varint(body, 1) if body[:1] == _SEQ_START else (0, 0)
                if seq > through:
                    through = seq
                    if body[at : at + 1] == _CANCEL_START and len(body) <= self._limits.frame:
                        orders.append(_order(body))
                if not count % FRAMES:
                    yield
        except (UmdError, ProtobufDecodeError):
            return  # the session will say so when it gets there
        for count, order in enumerate(orders, 1):
            self._note(order)
            if not count % FRAMES:
                yield

    def everything(self) -> None:
        """Ends whatever the session has submitted."""
        self._note(Order(_EVERYTHING, frozenset(), frozenset()))

    def _note(self, order: Order) -> None:
        # First the order, then the look at what runs: a submission that starts now does it the other way round.
        with self._lock:
            self._newer.add(order)
        work = self._device.control
        if isinstance(work, Work) and work.owner is self and order.ends(work.seq, work.queue) and not work.stops:
            work.stops.append(cancelled(work.seq))

    def begin(self, work: Work) -> Exception | None:
        """Returns the error of a submission that is to end before it starts."""
        ended = any(noted.ends(work.seq, work.queue) for noted in (self._older, self._newer))
        return cancelled(work.seq) if ended else None

    def passed(self, seq: int) -> None:
        """Forgets orders that the session's frames have reached: all the older ones, once it has reached them all."""
        if (self._older.newest or self._newer.newest) and self._older.newest <= seq:
            with self._lock:
                self._older, self._newer = self._newer, _Noted()


def _order(body: bytes) -> Order:
    """Returns what a Cancel frame orders."""
    frame = pb.Frame.FromString(body)
    return Order(frame.seq, frozenset(frame.cancel.seqs), frozenset(frame.cancel.queues))


def cancelled(seq: int) -> CancelledError:
    """Returns the error of a submission that its client cancelled."""
    return CancelledError(f"submission {seq} was cancelled by its client")
