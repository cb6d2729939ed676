"""After a session was resumed: what becomes of frames that were lost with their stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from umd_core.errors import DeviceLostError
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.client.link import Link
from umd_grpc.client.outbox import Outbox

LOST = "it was lost with the connection, before the server had carried it out; nothing is sent again"
_AGAIN = frozenset(("allocate", "free", "load", "signal", "cancel", "spoil"))
Writes = Callable[[int], Sequence[bool] | None]
"""Returns, for a program's handle, which of its bindings are written; None when it is not known any more."""


def lost_frames(messages: Iterable[bytes], processed: int) -> list[pb.Frame]:
    """Returns the frames of messages after frame `processed`: they were not carried out, and never will be."""
    requests = map(pb.SessionRequest.FromString, messages)
    return [frame for request in requests for frame in request.frames if frame.seq > processed]


def recover(lost: Iterable[pb.Frame], outbox: Outbox, link: Link, writes: Writes) -> None:
    """Makes the session know what was lost.

    What only says which things there are, and which fences the host has raised, is said again, in its place. Work and
    data are not: tickets fail, and the ranges that would have been written are poisoned, so nothing that depends on
    them is taken for computed.
    """
    for frame in lost:
        kind = frame.WhichOneof("command")
        if kind in _AGAIN:
            outbox.copy(frame)
        elif kind == "submit":
            link.lose(frame.seq, DeviceLostError(link.name, LOST))
            _spoil_submit(frame.submit, outbox, writes(frame.submit.program))
        elif kind == "write":
            _spoil(outbox, frame.write.buffer, frame.write.offset, len(frame.write.data))
        elif kind == "transfer" and frame.transfer.direction == pb.DIRECTION_WRITE:
            _spoil(outbox, frame.transfer.buffer, frame.transfer.offset, frame.transfer.size)


def _spoil(outbox: Outbox, buffer: int, offset: int, size: int) -> None:
    command = outbox.frame().spoil
    command.buffers.append(buffer)
    command.offsets.append(offset)
    command.sizes.append(size)
    command.reason = LOST


def _spoil_submit(submit: pb.Submit, outbox: Outbox, writes: Sequence[bool] | None) -> None:
    command = outbox.frame(24 * len(submit.buffers)).spoil
    command.reason = LOST
    command.signals.extend(submit.signals)
    for index, (buffer, size) in enumerate(zip(submit.buffers, submit.sizes, strict=True)):
        if writes is None or writes[index]:
            command.buffers.append(buffer)
            command.offsets.append(submit.offsets[index] if submit.offsets else 0)
            command.sizes.append(size)


def add_unsent(frames: Iterable[pb.Frame], outbox: Outbox, link: Link) -> None:
    """Puts frames that were never sent behind what was said to recover, with new numbers."""
    numbers: dict[int, int] = {}
    for frame in frames:
        old = frame.seq
        if frame.HasField("cancel"):
            frame.cancel.seqs[:] = [numbers.get(seq, seq) for seq in frame.cancel.seqs]
        numbers[old] = outbox.copy(frame)
        link.renumber(old, numbers[old])
