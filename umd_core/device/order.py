"""Other legal schedules of a program: what DEPS and BARRIERs leave open."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from umd_core.commands import Barrier, Command
from umd_core.device.program import Program


def legal_order(program: Program, pick: Callable[[int], int]) -> list[int]:
    """Returns the positions of the program's steps in an order that its dependencies and barriers allow.

    `pick(count)` chooses among the commands that may come next: `random.Random(seed).randrange`, for example. A result
    that differs from program order's shows that a dependency is missing.
    """
    return [
        program.position[index]
        for index in command_order(program.command_buffer.commands, pick)
        if index in program.position
    ]


def command_order(commands: Sequence[Command], pick: Callable[[int], int]) -> list[int]:
    """Returns command indices in a legal order; see `legal_order`."""
    before, after = predecessors(commands)
    ready = [index for index, count in enumerate(before) if count == 0]
    result = []
    while ready:
        chosen = pick(len(ready))
        ready[chosen], ready[-1] = ready[-1], ready[chosen]
        index = ready.pop()
        result.append(index)
        for successor in after[index]:
            before[successor] -= 1
            if before[successor] == 0:
                ready.append(successor)
    return result


def predecessors(commands: Sequence[Command]) -> tuple[list[int], list[list[int]]]:
    """Returns, per command, how many it must follow, and which must follow it."""
    before = [0] * len(commands)
    after: list[list[int]] = [[] for _ in commands]
    barrier = -1
    for index, command in enumerate(commands):
        earlier = set(command.deps)
        if isinstance(command, Barrier):
            earlier.update(range(max(barrier, 0), index))
        elif barrier >= 0:
            earlier.add(barrier)
        for other in earlier:
            after[other].append(index)
        before[index] = len(earlier)
        if isinstance(command, Barrier):
            barrier = index
    return before, after
