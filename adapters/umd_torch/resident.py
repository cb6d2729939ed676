"""A model's parameters and buffers, and its optimizer's state, where training keeps them: on the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    """

    def __init__(self, session: Session, objective: Objective, optimizer: Optimizer) -> None:
        self._session, self._optimizer = session, optimizer
        self.rule = rule_of(optimizer)
        self.names: dict[str, str] = {}
        self._tensors: dict[str, torch.Tensor] = {}
        self._name_tensors(objective)
        self._updated: set[str] = set()
        """Names of the parameters that steps have updated since everything was sent."""
        self._layouts = {name: _layout(tensor) for name, tensor in self._tensors.items()}
        self._state = dict(self._state_names())
        self.regions, self._size = regions({n: layout.desc.byte_size for n, layout in self._layouts.items()})
        self._slab = session.slab(self._size)
        self.load()

    def _name_tensors(self, objective: Objective) -> None:
        first: dict[int, str] = {}
        named = [*objective.named_parameters(remove_duplicate=False), *objective.named_buffers(remove_duplicate=False)]
        for target, tensor in named:
            name = first.setdefault(id(tensor), target.removeprefix("model."))
            if tensor.device.type != "cpu":
                raise UnsupportedError(_elsewhere(name, tensor), op="train_step")
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
                result[name] = Update(name, layouts, f"lr:{number}", f"step:{self._counts[name]}", emit)
        return result

    def classes(self, parameters: Sequence[str]) -> tuple[int, ...]:
        """Returns which of these parameters were updated equally often: the same number for those that were.

        A program has one input for each such class, so that the number of a step costs 8 bytes and not that many times
        the parameters.
        """
        numbers: dict[int, int] = {}
        return tuple([numbers.setdefault(self._counts[name], len(numbers)) for name in parameters])

    def key(self) -> tuple[Any, ...]:
        """Returns what of the optimizer's settings a program depends on: everything but the learning rates.

        Raises:
            UnsupportedError: parameters or groups were added.
        """
        groups = self._optimizer.param_groups
        if [len(g["params"]) for g in groups] != [len(names) for names in self._groups]:
            raise UnsupportedError("the optimizer's parameter groups changed after training began", op="train_step")
        return tuple([(self.rule.settings(g), len(g["params"])) for g in groups])

    def scalars(self, steps: Mapping[str, str]) -> Iterator[tuple[str, float]]:
        """Yields the learning rate of each group, and the number of the coming update for each class of parameters.

        Args:
            steps: for each input that is such a number, one of the parameters that it is of.
        """
        for number, group in enumerate(self._optimizer.param_groups):
            yield f"lr:{number}", float(group["lr"])
        for name, parameter in steps.items():
            yield name, float(self._counts[parameter] + 1)

    def note_step(self, updated: Sequence[str]) -> None:
        """Notes that a step was run, and which parameters it updated."""
        self._updated.update(updated)
        for name in updated:
            self._counts[name] += 1
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

    def begin(self, updated: Sequence[str]) -> None:
        """Sends the state again that parameters start from whose first update comes, where rates changed since `load`.

        ASGD's and Rprop's starts from the learning rate of the first update.
        """
        if self._updated.issuperset(updated):
            return
        groups = zip(self._groups, self._optimizer.param_groups, self._rates, strict=True)
        for names, group, rate in groups:
            if not self._starts_otherwise(group, rate):
                continue
            for name in set(names).intersection(updated) - self._updated:
                for kind, tensor in self.rule.initial(group, self._tensors[name]).items():
                    region, layout = self.regions[f"{name}.{kind}"], self._layouts[f"{name}.{kind}"]
                    data: Bytes = np.zeros(layout.desc.byte_size, np.uint8)
                    copy_from(in_layout(tensor, layout)[0], data, 0)
                    self._session.write(self._slab, region.offset, data)

    def _starts_otherwise(self, group: Group, rate: float) -> bool:
        """Returns whether state starts from something else than it would at another learning rate."""
        if float(group["lr"]) == rate:
            return False
        probe = torch.zeros(())
        now, before = self.rule.initial(group, probe), self.rule.initial({**group, "lr": rate}, probe)
        return any(not torch.equal(before[kind], tensor) for kind, tensor in now.items())

    def load(self) -> None:
        """Sends parameters, buffers and optimizer state: the host's values become the device's."""
        data: Bytes = np.zeros(self._size, np.uint8)
        initial = self._initial()
        for name, region in self.regions.items():
            tensor = self._host(name)
            if tensor is None:
                tensor = initial[name]
            copy_from(in_layout(tensor.detach(), self._layouts[name])[0], data, region.offset)
        self._counts = {name: self.rule.steps(group, self._tensors[name]) for name, group in self._grouped()}
        self._rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        self._updated.clear()
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
        for name, (parameter, kind) in self._state.items():
            if parameter in self._updated:
                self._optimizer.state[self._tensors[parameter]][kind] = self._fetched(source, name)
        if self.rule.counts:
            for name in self._updated:
                self._optimizer.state[self._tensors[name]][STEP] = torch.tensor(float(self._counts[name]))

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


def _elsewhere(name: str, tensor: torch.Tensor) -> str:
    """Returns why a tensor that is not on the CPU is refused, and what to do."""
    reason = f"{name} lies on {tensor.device}: a step keeps parameters on its own device and takes them from the CPU"
    there = ""
    if tensor.device.type == "umd":
        there = ", or train it where it is, with optimizer.step() and torch.compile(model, backend='umd')"
    return f"{reason}; model.cpu() before train_step{there}"


def _layout(tensor: torch.Tensor) -> Layout:
    return Layout(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))
