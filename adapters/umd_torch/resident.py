"""A model's parameters and buffers, and its optimizer's state, where training keeps them: on the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from umd_core.device import Binding
from umd_core.errors import UnsupportedError
from umd_torch.handles import from_bytes
from umd_torch.host import Bytes, copy_from
from umd_torch.inputs import in_layout
from umd_torch.joint import Objective, Update
from umd_torch.layouts import Layout
from umd_torch.memory import regions
from umd_torch.optimizers import STEP, Group, rule_of
from umd_torch.session import Session
from umd_torch.torch_private import note_optimizer_step

Mark = tuple[int, int]


class Resident:
    """The tensors of one training run on one device, in one slab.

    Attributes:
        names: for each name that a parameter or buffer has in the module, its name here; tied ones share it.
        regions: where each tensor lies, by name; the optimizer's state is "parameter.exp_avg" and the like.
        updated: names of the parameters that the steps so far have updated, None before the first.
    """

    def __init__(self, session: Session, objective: Objective, optimizer: Optimizer) -> None:
        self._session, self._optimizer = session, optimizer
        self.rule = rule_of(optimizer)
        self.names: dict[str, str] = {}
        self._tensors: dict[str, torch.Tensor] = {}
        self._name_tensors(objective)
        self.updated: tuple[str, ...] | None = None
        self._layouts = {name: _layout(tensor) for name, tensor in self._tensors.items()}
        self._state = dict(self._state_names())
        self.regions, self._size = regions({n: layout.desc.byte_size for n, layout in self._layouts.items()})
        self._slab = session.slab(self._size)
        self._taken = 0
        self.load()

    def _name_tensors(self, objective: Objective) -> None:
        first: dict[int, str] = {}
        named = [*objective.named_parameters(remove_duplicate=False), *objective.named_buffers(remove_duplicate=False)]
        for target, tensor in named:
            if tensor.device.type != "cpu":
                raise UnsupportedError(f"{target} lies on {tensor.device}, not on the CPU", op="train_step")
            name = first.setdefault(id(tensor), target.removeprefix("model."))
            self.names[target] = name
            self._tensors.setdefault(name, tensor)
        known = {id(tensor): name for name, tensor in self._tensors.items()}
        self._groups: list[list[str]] = []
        for group in self._optimizer.param_groups:
            if any(id(p) not in known for p in group["params"]):
                raise UnsupportedError("the optimizer holds a parameter that the model does not have", op="train_step")
            self._groups.append([known[id(p)] for p in group["params"]])

    def _state_names(self) -> Iterator[tuple[str, tuple[str, str]]]:
        """Yields the name here of each state tensor, with its parameter's name and its name in torch's state."""
        for name, group in self._grouped():
            for kind, tensor in self.rule.initial(group, self._tensors[name], shapes_only=True).items():
                self._layouts[f"{name}.{kind}"] = _layout(tensor)
                yield f"{name}.{kind}", (name, kind)

    def _grouped(self) -> Iterator[tuple[str, Group]]:
        """Yields each parameter's name with its group."""
        for names, group in zip(self._groups, self._optimizer.param_groups, strict=True):
            for name in names:
                yield name, group

    # what programs need

    def binding(self, name: str) -> Binding:
        """Returns where a tensor lies."""
        return self.regions[name].of(self._slab)

    def updates(self) -> dict[str, Update]:
        """Returns how each parameter is updated, by the optimizer's settings of now.

        Raises:
            UnsupportedError: an option is not there, or was changed so that there would be more state than before.
        """
        result = {}
        for number, (names, group) in enumerate(zip(self._groups, self._optimizer.param_groups, strict=True)):
            for name in names:
                kinds = self.rule.initial(group, self._tensors[name], shapes_only=True)
                state = [f"{name}.{kind}" for kind in kinds]
                if any(s not in self.regions for s in state):
                    raise UnsupportedError("momentum was switched on after training began", op="train_step")
                layouts = {s: self._layouts[s] for s in state}
                emit = self.rule.emit(group, self._tensors[name])
                result[name] = Update(name, layouts, f"lr:{number}", f"step:{self._start[name]}", emit)
        return result

    def key(self) -> tuple[Any, ...]:
        """Returns what of the optimizer's settings a program depends on: everything but the learning rates.

        Raises:
            UnsupportedError: parameters or groups were added.
        """
        groups = self._optimizer.param_groups
        if [len(g["params"]) for g in groups] != [len(names) for names in self._groups]:
            raise UnsupportedError("the optimizer's parameter groups changed after training began", op="train_step")
        settings = [(self.rule.settings(g), len(g["params"])) for g in groups]
        return (*settings, *self._starts)

    def scalars(self) -> Iterator[tuple[str, float]]:
        """Yields the learning rate of each group, and the number of the coming update."""
        for number, group in enumerate(self._optimizer.param_groups):
            yield f"lr:{number}", float(group["lr"])
        for start in self._starts:
            yield f"step:{start}", float(start + self._taken + 1)

    def note_step(self, updated: tuple[str, ...]) -> None:
        """Notes that a step was run.

        Raises:
            UnsupportedError: another set of parameters was updated than before.
        """
        if self.updated is not None and self.updated != updated:
            raise UnsupportedError("the set of parameters that have a gradient changed", op="train_step")
        self.updated = updated
        self._taken += 1
        self._ahead = True
        note_optimizer_step(self._optimizer)

    # host and device

    def check(self) -> None:
        """Sends what the host changed since the last sync.

        Raises:
            UnsupportedError: the device holds newer values than the host's, so one of the two would be lost.
        """
        marks = self._marks()
        if marks == self._known:
            return
        if self._ahead:
            changed = next(n for n in marks if marks[n] != self._known.get(n))
            reason = f"{changed!r} was changed on the host while the device holds newer values"
            raise UnsupportedError(f"{reason}; sync() before the change, or load() after it", op="train_step")
        self.load()

    def load(self) -> None:
        """Sends parameters, buffers and optimizer state: the host's values become the device's."""
        data: Bytes = np.zeros(self._size, np.uint8)
        initial = self._initial()
        for name, region in self.regions.items():
            tensor = self._host(name)
            if tensor is None:
                tensor = initial[name]
            copy_from(in_layout(tensor.detach(), self._layouts[name])[0], data, region.offset)
        self._start = {name: self.rule.steps(group, self._tensors[name]) for name, group in self._grouped()}
        self._starts = sorted(set(self._start.values()))
        self._taken = 0
        self._session.write(self._slab, 0, data)
        self._settle()

    def _initial(self) -> dict[str, torch.Tensor]:
        """Returns what the optimizer's state starts from, by name here."""
        return {
            f"{name}.{kind}": tensor
            for name, group in self._grouped()
            for kind, tensor in self.rule.initial(group, self._tensors[name]).items()
        }

    def sync(self) -> None:
        """Brings parameters, buffers and optimizer state back into the torch objects: one round trip."""
        if self._ahead:
            source = self._session.read(self._slab, 0, self._size)
            with torch.no_grad():
                for name, tensor in self._tensors.items():
                    tensor.copy_(self._fetched(source, name))
            self._sync_state(source)
        self._settle()

    def _sync_state(self, source: Bytes) -> None:
        updated = set(self.updated or ())
        for name, (parameter, kind) in self._state.items():
            if parameter in updated:
                self._optimizer.state[self._tensors[parameter]][kind] = self._fetched(source, name)
        for name in updated:
            steps = self._start[name] + self._taken
            if self.rule.counts:
                self._optimizer.state[self._tensors[name]][STEP] = torch.tensor(float(steps))

    def _fetched(self, source: Bytes, name: str) -> torch.Tensor:
        return from_bytes(source, self.regions[name].offset, self._layouts[name])

    def _host(self, name: str) -> torch.Tensor | None:
        """Returns torch's own tensor, None where the optimizer has no state yet."""
        if name in self._tensors:
            return self._tensors[name]
        parameter, kind = self._state[name]
        found: torch.Tensor | None = self._optimizer.state.get(self._tensors[parameter], {}).get(kind)
        return found

    def _settle(self) -> None:
        """Notes that host and device agree."""
        self._known = self._marks()
        self._ahead = False

    def _marks(self) -> dict[str, Mark]:
        """Returns address and version of every tensor on the host; either changes with its contents."""
        marks = {}
        for name in self.regions:
            tensor = self._host(name)
            marks[name] = (0, 0) if tensor is None else (tensor.data_ptr(), tensor._version)
        return marks


def _layout(tensor: torch.Tensor) -> Layout:
    return Layout(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))
