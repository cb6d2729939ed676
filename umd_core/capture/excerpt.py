"""Programs of some of a program's commands, with every slot they use turned into an argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from umd_core.commands import Command, CommandBuffer, Copy, Dispatch, Fill, Ref, Slot, SlotKind, Update, refs_of


class Excerpt(NamedTuple):
    """A program of commands [first, last) of another.

    Attributes:
        command_buffer: its arguments are `slots` of the other program; arena and constants are among them.
        slots: for each argument, the slot that it was.
    """

    command_buffer: CommandBuffer
    slots: tuple[int, ...]


def excerpt(cb: CommandBuffer, first: int, last: int, blocks: Mapping[int, bytes]) -> Excerpt:
    """Returns commands [first, last) as a program of their own.

    Args:
        cb: the whole program.
        first: index of the first command.
        last: index after the last.
        blocks: parameter blocks that patches have changed, by command index.
    """
    chosen = [_patched(cb.commands[i], blocks.get(i)) for i in range(first, last)]
    reach: dict[int, int] = {}
    access: dict[int, int] = {}
    for ref in (ref for command in chosen for ref in refs_of(command)):
        reach[ref.slot] = max(reach.get(ref.slot, 0), ref.offset + ref.length)
        access[ref.slot] = access.get(ref.slot, 0) | ref.access
    slots = tuple(sorted(reach))
    place = {slot: index for index, slot in enumerate(slots)}
    used = list(dict.fromkeys(command.kernel for command in chosen if isinstance(command, Dispatch)))
    kernels = {kernel: index for index, kernel in enumerate(used)}
    return Excerpt(
        CommandBuffer(
            kernels=[cb.kernels[kernel] for kernel in used],
            slots=[_argument(cb.slots[slot], access[slot], reach[slot]) for slot in slots],
            commands=[_moved(command, place, kernels, first) for command in chosen],
            debug=cb.debug[first:last],
        ),
        slots,
    )


def _argument(slot: Slot, access: int, reach: int) -> Slot:
    return Slot(SlotKind.ARGUMENT, access, slot.alias_group, slot.alignment, reach, 0, 0)


def _patched(command: Command, block: bytes | None) -> Command:
    return command if block is None or not isinstance(command, Dispatch) else command._replace(parameters=block)


def _moved(command: Command, place: Mapping[int, int], kernels: Mapping[int, int], first: int) -> Command:
    """Returns a command with the numbers of the excerpt; what it waited for before the excerpt is done."""

    def moved(ref: Ref) -> Ref:
        return ref._replace(slot=place[ref.slot])

    deps = tuple(dep - first for dep in command.deps if dep >= first)
    match command:
        case Dispatch():
            refs = tuple(map(moved, command.refs))
            return command._replace(kernel=kernels[command.kernel], refs=refs, deps=deps, queue=0)
        case Copy():
            source, destination = moved(command.source), moved(command.destination)
            return command._replace(source=source, destination=destination, deps=deps, queue=0)
        case Fill() | Update():
            return command._replace(destination=moved(command.destination), deps=deps, queue=0)
        case _:
            return command._replace(deps=deps, queue=0)
