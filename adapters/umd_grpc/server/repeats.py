"""Submit frames that came before, byte for byte but for their number: they are not parsed again."""

from __future__ import annotations

from typing import NamedTuple

from umd_core.device import Binding, Program
from umd_grpc._pb.umd import runtime_pb2 as pb

MOST, LARGEST = 256, 4_096
_SEQ_KEY = 0x08


class Prepared(NamedTuple):
    """What a Submit frame comes to."""

    program: Program
    bindings: tuple[Binding, ...]
    values: tuple[int, ...]
    queue: int
    priority: int
    reply: bool


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
