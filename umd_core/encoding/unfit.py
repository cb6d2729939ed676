"""Which number of a command buffer does not fit in its field: the long search after encoding failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from umd_core.commands import CommandBuffer, Dispatch, Mark, refs_of
from umd_core.encoding.layout import COMMAND, DEBUG, EVENT, LAUNCH, PATCH, REF, SLOT, RecordLayout
from umd_core.errors import LimitError


def unfit(cb: CommandBuffer, count: int) -> LimitError:
    """Returns an error about the first number that does not fit in its field; `count` commands did fit."""
    for record, where, values in _records(cb, count):
        for field, value in zip(record.fields, values, strict=False):
            bits = int(field.type[1:])
            least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if field.type[0] == "i" else (0, (1 << bits) - 1)
            if not least <= value <= most:
                return LimitError(f"{field.name} of {where}", value, most if value > most else least)
    return LimitError("dependencies", max((d for c in cb.commands for d in c.deps), default=0), 2**32 - 1)


def _records(cb: CommandBuffer, count: int) -> Iterator[tuple[RecordLayout, str, Sequence[int]]]:
    """Yields records that may not fit: their layout, a name, their numbers."""
    for index, slot in enumerate(cb.slots):
        yield SLOT, f"slot {index}", slot
    for index, command in enumerate(cb.commands[count : count + 1], count):
        for ref in refs_of(command):
            yield REF, f"a ref of command {index}", ref
        if isinstance(command, Dispatch):
            yield LAUNCH, f"the launch of command {index}", command.launch
        arg0 = command.kernel if isinstance(command, Dispatch) else command.id if isinstance(command, Mark) else 0
        yield COMMAND, f"command {index}", (0, 0, command.queue, len(command.deps), arg0)
    for event in cb.events:
        yield EVENT, "an event", event
    for patch in cb.patches:
        yield PATCH, f"a patch of command {patch.command}", (0, patch.kind, patch.symbol, patch.addend)
    for index, info in enumerate(cb.debug):
        yield DEBUG, f"the debug text of command {index}", [len(text.encode("utf-8", "replace")) for text in info]
