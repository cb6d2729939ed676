"""Submit frames that came before, byte for byte but for their number: they are not parsed again."""

from __future__ import annotations

import re
from dataclasses import dataclass

from umd_core.device import Binding, Program
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.messages import wire

MOST, LARGEST = 256, 4_096
LITTLE, LITTLE_READ = 4 << 10, 64 << 10
"""Bytes of a message that may be carried out where it arrives, and of a read in it."""
LITTLE_SECONDS = 0.00001
"""What a short read, a short write, or a Flush counts for: of Flush alone, such a message has hundreds."""
_SEQ_KEY = 0x08
_READ_KEY, _WRITE_KEY, _FLUSH_KEY = (bytes((number << 3 | wire.BYTES,)) for number in (8, 9, 11))
_MAY_BE_SHORT = re.compile(rb"\x0a[\x00-\xff]{1,2}?\x08[\x80-\xff]{0,9}+[\x00-\x7f][\x32\x42\x4a\x5a]", re.DOTALL)
"""How a message begins whose first frame is Submit, Read, Write or Flush."""


@dataclass(slots=True)
class Prepared:
    """What a Submit frame comes to.

    Attributes:
        seconds: how long it took the last time, infinity before that is known.
    """

    program: Program
    bindings: tuple[Binding, ...]
    values: tuple[int, ...]
    queue: int
    priority: int
    reply: bool
    seconds: float = float("inf")


class Repeats:
    """The frames of one session that were seen twice, while none of its handles is freed."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()
        self._prepared: dict[bytes, Prepared] = {}

    def find(self, body: bytes) -> tuple[int, Prepared] | None:
        """Returns a frame's number and what it comes to; None when it has to be parsed."""
        if not self._prepared:
            return None
        seq, rest = split(body)
        prepared = self._prepared.get(rest)
        return None if prepared is None else (seq, prepared)

    def seconds(self, body: bytes) -> float:
        """Returns how long a frame will take, infinity when that is not known.

        A submission takes what it took before, for the same program ran over the same bytes. Short reads and writes, of
        frames that are small themselves, and Flush take `LITTLE_SECONDS`.
        """
        _, rest = split(body)
        prepared = self._prepared.get(rest)
        if prepared is not None:
            return prepared.seconds
        return LITTLE_SECONDS if _is_little(rest) else float("inf")

    def note(self, seq: int, body: bytes, command: pb.Submit, program: Program, bindings: list[Binding]) -> None:
        """Notes a frame that was carried out well; what waits, signals, or has a deadline is never the same again."""
        if len(body) > LARGEST or command.waits or command.signals or command.deadline_ms or command.profile:
            return
        number, rest = split(body)
        if number != seq:  # written in some other way
            return
        if rest not in self._seen:
            if len(self._seen) >= MOST:
                self._seen.clear()
            self._seen.add(rest)
        elif not program.one_shot:
            if len(self._prepared) >= MOST:
                self._prepared.clear()
            self._prepared[rest] = Prepared(
                program, tuple(bindings), tuple(command.values), command.queue, command.priority, command.reply
            )

    def clear(self) -> None:
        """Forgets everything: a handle may mean something else from now on."""
        if self._seen:
            self._seen.clear()
            self._prepared.clear()


def may_be_short(message: bytes) -> bool:
    """Returns whether a message begins with a frame that may be short; see `Repeats.seconds`."""
    return len(message) <= LITTLE and _MAY_BE_SHORT.match(message) is not None


def _is_little(rest: bytes) -> bool:
    """Returns whether a frame without its number asks for hardly any time."""
    key = rest[:1]
    return key in (_FLUSH_KEY, _WRITE_KEY) or (key == _READ_KEY and pb.Frame.FromString(rest).read.size <= LITTLE_READ)


def split(body: bytes) -> tuple[int, bytes]:
    """Returns a frame's number, as our clients and most others write it: first; and the rest. (0, b"") if it is not."""
    if len(body) < 2 or body[0] != _SEQ_KEY:
        return 0, b""
    seq = shift = 0
    for at in range(1, min(11, len(body))):
        byte = body[at]
        seq |= (byte & 0x7F) << shift
        if byte < 0x80:
            return seq, body[at + 1 :]
        shift += 7
    return 0, b""
