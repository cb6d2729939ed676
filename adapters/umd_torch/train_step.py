"""Whole training steps on a device: `step = train_step(model, loss_fn, optimizer, device="sim:0"); step(x, y)`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch.optim import Optimizer

import umd_core as umd
from umd_core.errors import DTypeError, InputCountError, UnsupportedError
from umd_core.passes import DEFAULT, optimise
from umd_torch.builder import SEED
from umd_torch.handles import from_bytes
from umd_torch.host import Bytes, copy_from, drawn_seed
from umd_torch.inputs import in_layout
from umd_torch.joint import LossFunction, Objective, StepLowering, batch_input, trace
from umd_torch.layouts import Layout
from umd_torch.memory import Region, aligned, regions
from umd_torch.resident import Resident
from umd_torch.session import Session, session_for
from umd_torch.settings import check_passes, settings

PROGRAMS = 64
"""Programs that one training run keeps: for kinds of batches, modes and settings."""


class Program:
    """A step translated for one kind of batch.

    Attributes:
        command_buffer: forward, backward and update.
        updated: names of the parameters that it updates.
    """

    def __init__(
        self,
        session: Session,
        resident: Resident,
        objective: Objective,
        batch: Sequence[torch.Tensor],
        clip_norm: float | None,
        passes: Collection[str],
    ) -> None:
        updates = resident.updates()
        lowering = StepLowering(trace(objective, batch), resident.names, updates, clip_norm)
        lowering.run()
        if not lowering.step.updated:
            raise UnsupportedError("no parameter of the optimizer has a gradient", op="train_step")
        self._session, self._resident, self._step = session, resident, lowering.step
        graph, self.updated = lowering.step.graph, lowering.step.updated
        self._steps = {updates[name].step: name for name in self.updated}
        cleaned = optimise(graph, passes, descs=lowering.builder.descs).graph if passes else graph
        self.command_buffer = umd.translate(cleaned, caps=session.caps)
        self._loaded = session.load(self.command_buffer)
        sizes = {name: desc.byte_size for name, desc in graph.inputs.items() if name not in resident.regions}
        self._places, self._size = regions(sizes)
        self._loss = Region(aligned(self._size), self.command_buffer.outputs[0].byte_size)
        self._slab = session.slab(self._loss.offset + self._loss.size)
        self._loss_layout = Layout(lowering.loss_dtype, (), ())
        self._bindings = [
            *(self._places[n].of(self._slab) if n in sizes else resident.binding(n) for n in graph.inputs),
            self._loss.of(self._slab),
            *(resident.binding(name) for name in lowering.step.aliases),
        ]

    def __call__(self, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns the loss of one step: one write, one submission, one read."""
        data: Bytes = np.zeros(self._size, np.uint8)
        for position, layout in self._step.batch.items():
            place = self._places[batch_input(position)]
            copy_from(in_layout(batch[position], layout)[0], data, place.offset)
        if SEED in self._places:
            copy_from(drawn_seed(), data, self._places[SEED].offset)
        for name, value in self._resident.scalars(self._steps):
            if name in self._places:
                offset = self._places[name].offset
                data[offset : offset + 8].view(np.float64)[0] = value
        self._session.write(self._slab, 0, data)
        ticket = self._session.submit(self._loaded, self._bindings)
        return from_bytes(
            self._session.read(self._slab, self._loss.offset, self._loss.size, ticket), 0, self._loss_layout
        )


class TrainStep:
    """Calls run one training step each: forward, backward and update as one program.

    Parameters, buffers and optimizer state live on the device, and are there changed in place; `sync()` brings them
    back. A step sends the batch, the learning rates and the step's number, and brings back the loss: one round trip.
    A batch of another shape, another mode of the model (train, eval), another set of frozen parameters or another
    setting of the optimizer makes another program; another learning rate does not.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss_fn: LossFunction,
        optimizer: Optimizer,
        *,
        clip_norm: float | None = None,
        device: str | None = None,
        passes: Collection[str] = DEFAULT,
    ) -> None:
        check_passes(passes)
        self._session = session_for(settings({} if device is None else {"device": device}).device)
        self._objective = Objective(model, loss_fn)
        self._resident = Resident(self._session, self._objective, optimizer)
        self._clip_norm, self._passes = clip_norm, passes
        self._programs: OrderedDict[tuple[Any, tuple[int, ...]], Program] = OrderedDict()
        self._updated: dict[Any, tuple[str, ...]] = {}
        """By kind of batch, mode and settings, the parameters that get a gradient."""

    def __call__(self, *batch: torch.Tensor) -> torch.Tensor:
        """Returns the loss, a 0-d CPU tensor, and leaves the model's update on the device.

        The last of `batch` is the target, what comes before goes to the model.

        Raises:
            UnsupportedError: a node of the graph cannot run on the device, the host's copy of the model was changed
                while the device's was ahead, or a part of the batch is not on the CPU.
            DTypeError: a part of the batch is no tensor.
        """
        if len(batch) < 2:
            raise InputCountError("train_step", len(batch), 2, 1 << 10)
        for position, part in enumerate(cast("tuple[object, ...]", batch)):
            if not isinstance(part, torch.Tensor):
                name = type(part).__name__
                raise DTypeError("train_step", f"is a {name}, no tensor", input=str(position), got=name)
            if part.device.type != "cpu":
                reason = f"part {position} of the batch lies on {part.device}; give it from the CPU"
                raise UnsupportedError(reason, op="train_step")
        self._session.check_process()
        with self._session.lock:
            self._resident.check()
            program = self.program(*batch)
            self._resident.begin(program.updated)
            loss = program(batch)
            self._resident.note_step(program.updated)
            return loss

    def program(self, *batch: torch.Tensor) -> Program:
        """Returns the program for batches of this kind, made at the first use."""
        kind = (*((t.dtype, t.shape, t.stride()) for t in batch), *self._mode(), *self._resident.key())
        updated = self._updated.get(kind, ())
        found = self._programs.get((kind, self._resident.classes(updated)))
        if found is None:
            found = Program(self._session, self._resident, self._objective, batch, self._clip_norm, self._passes)
            self._updated[kind] = found.updated
        self._keep((kind, self._resident.classes(found.updated)), found)
        return found

    def _keep(self, key: tuple[Any, tuple[int, ...]], program: Program) -> None:
        """Notes that a program was used last; of too many, the one whose use is longest ago goes."""
        self._programs[key] = program
        self._programs.move_to_end(key)
        if len(self._programs) > PROGRAMS:
            (kind, _), _ = self._programs.popitem(last=False)
            if all(other != kind for other, _ in self._programs):
                del self._updated[kind]

    def _mode(self) -> tuple[Any, ...]:
        """Returns what else the trace of the model depends on."""
        cast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        modules = tuple([m.training for m in self._objective.modules()])
        return cast, modules, tuple([p.requires_grad for p in self._objective.parameters()])

    def sync(self) -> None:
        """Brings parameters, buffers and optimizer state back into the model and the optimizer."""
        with self._session.lock:
            self._resident.sync()

    def load(self) -> None:
        """Sends the model's and the optimizer's present values to the device, whose own are lost."""
        with self._session.lock:
            self._resident.load()


def train_step(
    model: torch.nn.Module,
    loss_fn: LossFunction,
    optimizer: Optimizer,
    *,
    clip_norm: float | None = None,
    device: str | None = None,
    passes: Collection[str] = DEFAULT,
) -> TrainStep:
    """Returns a callable that runs one training step on a device: `loss = step(x, y)`.

    Args:
        model: on the CPU.
        loss_fn: `loss_fn(model(x), y)` is one number.
        optimizer: one of torch.optim's that take no closure, over parameters of the model.
        clip_norm: what the norm of all gradients together is at most, as `torch.nn.utils.clip_grad_norm_` has it.
        device: "sim:0", "grpc://host:port/sim:0"; UMD_DEVICE or the available device of highest priority without it.
        passes: names of the clean-ups (`umd_core.passes`) that the step goes through before it is translated.

    Raises:
        UnsupportedError: an optimizer or an option of it that is not there; or a model that is not on the CPU.
        AttributeValueError: there is no pass of a name.
    """
    return TrainStep(model, loss_fn, optimizer, clip_norm=clip_norm, device=device, passes=passes)
