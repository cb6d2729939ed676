"""Compiled graphs over tensors of the device: programs that read them where they lie."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from umd_core.errors import UmdError, UnsupportedError
from umd_core.ir import Graph
from umd_core.passes import optimise
from umd_torch.builder import Value
from umd_torch.compiled import Runner
from umd_torch.eager.arguments import Arguments, Strides, is_state
from umd_torch.eager.builders import EagerBuilder, Finish, kept_layout, own_layout
from umd_torch.eager.devices import NAME, EagerDevice, device_of
from umd_torch.eager.fallback import reason_of
from umd_torch.eager.hosted import Found, HostPart
from umd_torch.eager.plans import Plan
from umd_torch.eager.tensors import extent
from umd_torch.eager.traced import TracedLowering
from umd_torch.eager.transfers import to_host
from umd_torch.graphs import KEYS
from umd_torch.inputs import Roles
from umd_torch.layouts import Layout, layout_of
from umd_torch.nodes import holds_keys, saves_keys, source_line
from umd_torch.partition import Fallback, Probe
from umd_torch.session import Session
from umd_torch.symbols import Bound

PROGRAMS = 16
"""Programs that a graph keeps for arguments that lie in different ways."""


class OnDevice:
    """Graphs over tensors of the device, as `umd_torch.compiled` asks for them."""

    def session(self, module: fx.GraphModule) -> Session | None:
        """Returns the session of the device that a graph works on, None when it is none of ours."""
        homes = homes_of(module)
        return homes[0].session if homes else None

    def runner(
        self,
        session: Session,
        module: fx.GraphModule,
        roles: Roles,
        bound: Bound,
        strict: bool,
        passes: Collection[str],
    ) -> Runner:
        """Returns what runs a graph for one set of sizes. What cannot be one program runs op by op.

        `session` is the one that the graph works on, or what stands for it where nothing is to run.

        Raises:
            UmdError: with `strict`, what the device cannot run.
        """
        home, *others = homes_of(module)
        if session is not home.session:
            home = EagerDevice(home.ordinal, session)
        try:
            if others:
                raise UnsupportedError("the graph has tensors of several devices")
            return GraphOnDevice(home, module, roles, bound, passes)
        except UmdError as error:
            if strict:
                raise
            return OpByOp(module, bound, error)


def homes_of(module: fx.GraphModule) -> list[EagerDevice]:
    """Returns the devices that a traced graph works on."""
    values = [node.meta.get("val") for node in module.graph.nodes]
    found = dict.fromkeys(v.device for v in values if isinstance(v, torch.Tensor) and v.device.type == NAME)
    return list(dict.fromkeys(device_of(device) for device in found))


class OpByOp:
    """A graph that cannot be one program, run as torch runs it.

    Attributes:
        parts: its programs: none, each op has its own.
    """

    parts = ()

    def __init__(self, module: fx.GraphModule, bound: Bound, error: UmdError) -> None:
        self._module, self._bound, self._error = module, bound, error
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        self._states = [position for position, node in enumerate(placeholders) if holds_keys(node)]

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """Returns the graph's results.

        Raises:
            UmdError: the forward graph is a program, and this one has to draw the same numbers again.
        """
        if not all(is_state(arguments[position]) for position in self._states):
            raise self._error
        return list(self._module(*arguments))

    @property
    def reason(self) -> str:
        """Says why the graph cannot be one program."""
        return reason_of(self._error)

    @property
    def ops(self) -> Counter[str]:
        """Counts what runs on the device."""
        return Counter(node.op for node in Probe(self._module, self._bound).run().graph.nodes)

    @property
    def fallbacks(self) -> list[Fallback]:
        """Says what runs on the CPU, and why."""
        probe = Probe(self._module, self._bound)
        probe.run()
        refused = probe.refused
        calls = [n for n in self._module.graph.nodes if n.op == "call_function" and n.name in refused]
        return [Fallback(str(n.target), n.name, source_line(n), reason_of(refused[n.name])) for n in calls]


class GraphOnDevice:
    """A graph as programs, one for each way in which its arguments lie.

    Its results stay on the device; those that torch wants on the CPU are read. What the graph computes from tensors of
    the CPU alone is computed there.

    Attributes:
        inputs: what its programs are given.
    """

    def __init__(
        self, home: EagerDevice, module: fx.GraphModule, roles: Roles, bound: Bound, passes: Collection[str]
    ) -> None:
        self._home, self._module, self._roles, self._bound, self._passes = home, module, roles, bound, passes
        self._host = HostPart(module, bound)
        self.inputs = Arguments(home, module, roles, bound, self._host)
        self._programs: dict[Strides, _Program] = {}
        self._first = self._program(self.inputs.strides)

    @property
    def command_buffer(self) -> Any:
        """The program for arguments that lie as torch has said; None where nothing is computed on the device."""
        return self._first.plan.program

    @property
    def bytes_down(self) -> int:
        """Bytes that a call reads back."""
        return self._first.bytes_down

    def _program(self, strides: Strides) -> _Program:
        """Returns the program for arguments with these strides."""
        found = self._programs.get(strides)
        if found is None:
            if len(self._programs) >= PROGRAMS:
                self._programs.clear()
            found = self._programs[strides] = self._lowered(strides)
        return found

    def _lowered(self, strides: Strides) -> _Program:
        geometries = self.inputs.geometries(strides)
        builder = EagerBuilder(Graph("compiled"))
        lowering = TracedLowering(
            self._module, builder, self.inputs.slots(geometries), self._bound, self.inputs.hosted(geometries)
        )
        lowering.run()
        finish = Finish(builder, lowering.written, dict(enumerate(geometries)))
        results = _Results(finish, self._host.results, self._bound)
        for position, item in enumerate(lowering.returned):
            results.add(lowering, item, resident=position in self._roles.resident)
        for position, value in lowering.landing.items():
            results.land(position, value, self.inputs.layout_at(position))
        draft = finish.draft(single=False)
        if self._passes:
            cleaned = optimise(draft.graph, self._passes, descs=builder.descs)
            draft = dataclasses.replace(draft, graph=cleaned.graph)
        return _Program(Plan(self._home, draft), results)

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """Returns the graph's results; arguments that it changes are changed."""
        with torch.no_grad():
            if self.inputs.hold_states(arguments):  # the forward graph ran op by op
                return list(self._module(*arguments))
            hosted = self._host(arguments)
            tensors, numbers = self.inputs.placed(arguments, hosted.given)
            program = self._program(tuple([tensor.stride() for tensor in tensors]))
            return program(tensors, numbers, arguments, hosted)


class _Result(NamedTuple):
    """One result: "made" on the device, or "read" from there, by number; "argument", by position; "host"; "value"."""

    kind: str
    which: Any


class _Results:
    """What a graph returns, and which arguments on the host get what the device computes.

    Attributes:
        results: in order.
        read: numbers of what is read, and how torch wants it to lie.
        landing: (position of an argument, number of what is read).
    """

    def __init__(self, finish: Finish, hosted: Collection[fx.Node], bound: Bound) -> None:
        self._finish, self._hosted, self._bound = finish, frozenset(hosted), bound
        self._made = 0
        self.results: list[_Result] = []
        self.read: dict[int, Layout] = {}
        self.landing: list[tuple[int, int]] = []

    def add(self, lowering: TracedLowering, item: Any, *, resident: bool) -> None:
        """Adds a result; one that is `resident` only programs need again."""
        position = lowering.position_of(item)
        if position is not None:
            self.results.append(_Result("argument", position))
        elif item in self._hosted:
            self.results.append(_Result("host", item))
        else:
            self._add_value(item, lowering.value_of(item), resident)

    def _add_value(self, item: Any, value: Any, resident: bool) -> None:
        if not isinstance(value, Value):
            self.results.append(_Result("value", value))
            return
        layout = KEYS if saves_keys(item) else layout_of(item.meta["val"], self._bound)
        if item.meta["val"].device.type != NAME and layout is not KEYS:
            self.results.append(_Result("read", self._declare_read(value, layout)))
        else:
            self.results.append(_Result("made", self._declare(value, kept_layout(layout) if resident else layout)))

    def land(self, position: int, value: Value, layout: Layout) -> None:
        """Adds what an argument on the host becomes."""
        self.landing.append((position, self._declare_read(value, layout)))

    def _declare_read(self, value: Value, layout: Layout) -> int:
        number = self._declare(value, own_layout(layout.shape, layout.strides, layout.dtype))
        self.read[number] = layout
        return number

    def _declare(self, value: Value, layout: Layout) -> int:
        self._finish.tensor(value, layout)
        self._made += 1
        return self._made - 1


class _Program:
    """A program, and what becomes of its results."""

    def __init__(self, plan: Plan, results: _Results) -> None:
        self.plan = plan
        self._results, self._read, self._landing = results.results, results.read, results.landing
        plain = [_Result("made", number) for number in range(len(self._results))]
        self._is_plain = self._results == plain and not self._read and not self._landing

    @property
    def bytes_down(self) -> int:
        """Bytes that a call reads back."""
        return sum(layout.desc.byte_size for layout in self._read.values())

    def __call__(
        self, tensors: Sequence[torch.Tensor], numbers: Sequence[Any], arguments: Sequence[Any], hosted: Found
    ) -> list[Any]:
        """Returns the graph's results. Arguments on the host are changed when all else has gone well."""
        made = list(self.plan(tensors, numbers))
        if self._is_plain and not hosted.writes:
            return made
        for number, layout in self._read.items():
            made[number] = _lying(to_host(made[number]), layout)
        sources: dict[str, Any] = {"made": made, "read": made, "argument": arguments, "host": hosted.results}
        results = [which if kind == "value" else sources[kind][which] for kind, which in self._results]
        for position, number in self._landing:
            arguments[position].copy_(made[number])
        for position, value in hosted.writes:
            arguments[position].copy_(value)
        return results


def _lying(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Returns a tensor of the CPU with these strides, gaps and repetitions included."""
    if tensor.stride() == layout.strides:
        return tensor
    storage = torch.empty(extent(layout.shape, layout.strides), dtype=layout.dtype)
    storage[torch.arange(storage.numel()).as_strided(layout.shape, layout.strides)] = tensor
    return storage.as_strided(layout.shape, layout.strides)
