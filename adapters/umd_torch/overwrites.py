"""Inputs that a program changes in place: bound as outputs too, and the host's tensors brought up to date."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from umd_torch.graphs import Lowered
from umd_torch.host import note_change
from umd_torch.lasting import Given
from umd_torch.mutations import Landing, Outputs, Replay, Wanted
from umd_torch.session import Session

Fetch = Callable[[Wanted], torch.Tensor]
"""Returns a tensor that the device has sent."""
Repeat = Callable[[torch.Tensor, Sequence[Any], Fetch], object]
"""Changes the host's tensor, its first argument; gets the arguments of the call."""


class Overwrites:
    """What one program does to its inputs.

    Where the device sees host memory the program writes into torch's own tensor. Elsewhere the device's copy is
    changed in place and stays; the host's repeats the change from what little it needs (`Replay`), or from the whole.

    Attributes:
        inputs: numbers of the program's inputs that change.
        sent: numbers of the outputs that exist only to bring the host's tensors up to date.
    """

    def __init__(self, session: Session, lowered: Lowered, outputs: Outputs, landing: Landing) -> None:
        graph, self._session = lowered.graph, session
        self._mutations = lowered.mutations
        numbers = {argument.position: i for i, argument in enumerate(lowered.arguments)}
        self._inputs = [numbers[m.position] for m in self._mutations]
        self.inputs = frozenset(self._inputs)
        self.sent: set[int] = set()
        self._repeats: list[Repeat] = []
        if not session.maps:
            for mutation in self._mutations:
                whole = Wanted(mutation.value, mutation.layout)
                wanted = mutation.replay.wanted if mutation.replay else (whole,)
                self.sent |= {outputs.number(w) for w in wanted}
                self._repeats.append(_repeat(mutation.replay, whole, landing))
        self._aliases: dict[int, int] = {}
        for mutation, number in zip(self._mutations, self._inputs, strict=True):
            self._aliases[len(graph.outputs)] = number
            graph.output(mutation.value.name, mutation.layout.desc, alias=mutation.name)

    def input_of(self, output: int) -> int:
        """Returns the number of the input that an output overwrites."""
        return self._aliases[output]

    def before(self, arguments: Sequence[Any], given: Given) -> None:
        """Notes that the device's copies are about to differ from the host's."""
        if self._session.maps:
            return
        for mutation, number in zip(self._mutations, self._inputs, strict=True):
            tensor, own = given.get(number, (arguments[mutation.position], True))
            if own:
                self._session.parameters.doubt(tensor)

    def after(self, arguments: Sequence[Any], given: Given, fetch: Fetch) -> None:
        """Brings the host's tensors up to date; `given` is what the program was given for them."""
        if not self._mutations:
            return
        with torch.no_grad():
            for index, (mutation, number) in enumerate(zip(self._mutations, self._inputs, strict=True)):
                target = arguments[mutation.position]
                tensor, own = given.get(number, (target, True))
                if not self._session.maps:
                    self._repeats[index](target, arguments, fetch)
                    if own:
                        self._session.parameters.settle(tensor)
                elif own:
                    note_change(target)
                else:
                    target.copy_(tensor)


def _repeat(replay: Replay | None, whole: Wanted, landing: Landing) -> Repeat:
    """Returns what changes the host's tensor as the program has changed the device's."""
    if replay is None:
        return lambda target, _, fetch: target.copy_(fetch(whole))
    change, filled = replay.change, replay.filler(landing)
    return lambda target, arguments, _: change(target, *filled(arguments))
