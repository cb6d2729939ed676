"""What would run where: `print(umd_torch.explain(model, x, device="sim:0"))`, without running anything."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, cast

import torch
from torch import fx

from umd_core.commands import CommandBuffer, Dispatch, SlotKind
from umd_core.passes import DEFAULT
from umd_torch.backend import compile_with
from umd_torch.compiled import boxed, runner, session_of
from umd_torch.inputs import Roles
from umd_torch.partition import Fallback, quiet
from umd_torch.runtime import Executable
from umd_torch.session import Session, session_for
from umd_torch.settings import check_passes, settings
from umd_torch.symbols import bind, evaluate, hints, is_symbolic
from umd_torch.torch_private import backward_at_once, compile_apart, compiled_function, graph_breaks

_JOINED = "+"
"""What stands between the names of nodes that share a launch; see `umd_core.fusion`."""


@dataclass(frozen=True, slots=True)
class GraphReport:
    """One graph that torch made of the model.

    Attributes:
        kind: "inference", "forward" or "backward".
        ops: nodes on the device, by umd's op.
        kernels: launches, by kernel.
        fused: launches that several nodes share, by their ops.
        fallbacks: nodes on the CPU, with the reason and the line of the model.
        programs: parts on the device: each is a submission and at most one round trip.
        arena: bytes of transient memory, of the largest part.
        parameters: bytes of parameters and buffers, sent once.
        bytes_up, bytes_down: bytes of a call to and from a device with memory of its own. What the backward graph
            gets from the forward graph stays there, and is not among them.
        op_by_op: why a graph over tensors of the device `umd` is no program; each op is one there. "" where it is.
    """

    kind: str
    ops: Counter[str]
    kernels: Counter[str]
    fused: Counter[str]
    fallbacks: tuple[Fallback, ...]
    programs: int
    arena: int
    parameters: int
    bytes_up: int
    bytes_down: int
    op_by_op: str = ""

    def lines(self) -> list[str]:
        """Returns the report as text."""
        work = f"{self.ops.total()} ops on the device as {self.kernels.total()} launches in {self.programs} programs"
        if self.op_by_op:
            work = f"{self.ops.total()} ops on the device, each alone ({self.op_by_op})"
        trips = self.programs if self.bytes_down else 0
        result = [
            f"{self.kind}: {work}, {len(self.fallbacks)} nodes on the CPU",
            f"  memory: arena {self.arena:,} bytes, parameters {self.parameters:,} bytes",
            f"  a call sends {self.bytes_up:,} bytes and reads {self.bytes_down:,}, in {trips} round trips",
            f"  kernels: {', '.join(f'{name} {count}' for name, count in self.kernels.most_common())}",
        ]
        if self.fused:
            chains = ", ".join(f"{ops} {count}" for ops, count in self.fused.most_common())
            result.append(f"  several ops in one launch: {chains}")
        for f in self.fallbacks:
            result.append(f"  on the CPU: {f.op} ({f.node}{f' at {f.source}' if f.source else ''}): {f.reason}")
        return result


@dataclass(slots=True)
class Explanation:
    """What would run where.

    Attributes:
        device: its name.
        graphs: in the order in which torch made them.
        breaks: why torch made several graphs of the model's code, and how often.
        recompiles: graphs that torch made anew within this one call.
    """

    device: str
    graphs: list[GraphReport] = field(default_factory=list)
    breaks: dict[str, int] = field(default_factory=dict)
    recompiles: int = 0

    @property
    def fallbacks(self) -> list[Fallback]:
        """Every node that would run on the CPU."""
        return [fallback for graph in self.graphs for fallback in graph.fallbacks]

    def __str__(self) -> str:
        head = f"{len(self.graphs)} graphs for {self.device}, {len(self.fallbacks)} nodes on the CPU"
        lines = [f"{head}, {sum(self.breaks.values())} graph breaks, {self.recompiles} recompiles"]
        for graph in self.graphs:
            lines += graph.lines()
        return "\n".join([*lines, *(f"graph break: {why.splitlines()[0]} ({n})" for why, n in self.breaks.items())])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


class Dry:
    """What translation needs of a session, without a device that would be given anything.

    Attributes:
        caps, maps: of the device; `maps` is False, so that what would be sent is counted.
    """

    maps = False

    def __init__(self, session: Session) -> None:
        self.name, self.caps = session.name, session.caps

    def load(self, command_buffer: CommandBuffer) -> CommandBuffer:
        """Returns the program as it is: it is not loaded."""
        return command_buffer


def explain(
    model: Callable[..., Any],
    *args: Any,
    device: str | None = None,
    passes: Collection[str] = DEFAULT,
    **kwargs: Any,
) -> Explanation:
    """Returns what `torch.compile(model, backend="umd")` would run where, when called with these arguments.

    Torch traces the model, and every graph is translated; neither the device nor the CPU computes anything. In place of
    its results the model's own Python code sees zeros; where its tensors are on the device `umd`, these are put there.
    Gradients are explained too where they are enabled.

    Args:
        model: a module or a function over tensors of the CPU or of the device `umd`.
        args: what it would be called with.
        device: "sim:0", "grpc://host:port/sim:0"; UMD_DEVICE or the available device of highest priority without it.
            Tensors of the device `umd` are where they are.
        passes: names of the clean-ups (`umd_core.passes`) that graphs go through.
        kwargs: what it would be called with.
    """
    check_passes(passes)
    chosen = settings({} if device is None else {"device": device}).device
    explanation = Explanation("")
    functions: set[int] = set()

    def compiler(graph: fx.GraphModule, roles: Roles, kind: str) -> Callable[..., Any]:
        values = [n.meta.get("val") for n in graph.graph.nodes if n.op == "placeholder"]
        symbolic = {i: v for i, v in enumerate(values) if is_symbolic(v)}
        bound = bind(symbolic, hints(symbolic))
        session = session_of(graph, device or "") or session_for(chosen)
        explanation.device, dry = session.name, cast("Session", Dry(session))
        found = runner(dry, graph, roles, bound, strict=False, passes=passes)
        explanation.graphs.append(_report(kind, found))
        return boxed(lambda _: [_nothing(item, bound) for item in _returned(graph)])

    def backend(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        explanation.recompiles += compiled_function() in functions
        functions.add(compiled_function())
        return compile_with(compiler, module, inputs)

    before = graph_breaks()
    with quiet(), backward_at_once(), torch.random.fork_rng(devices=[]):
        compile_apart(model, backend)(*args, **kwargs)
    after = graph_breaks()
    explanation.device = explanation.device or session_for(chosen).name  # of code without a graph
    explanation.breaks = {why: n - before.get(why, 0) for why, n in after.items() if n > before.get(why, 0)}
    return explanation


def _report(kind: str, found: Any) -> GraphReport:
    parts: Sequence[Executable] = getattr(found, "parts", [found])
    buffers = [part.command_buffer for part in parts if part.command_buffer and part.command_buffer.commands]
    alone: Counter[str] = Counter(getattr(found, "ops", ()))
    return GraphReport(
        kind=kind,
        ops=alone + Counter(op for b in buffers for op in _ops(b)),
        kernels=Counter(b.kernels[c.kernel].row.name for b in buffers for c in b.commands if isinstance(c, Dispatch)),
        fused=Counter(entry.op for b in buffers for entry in b.debug if _JOINED in entry.op),
        fallbacks=tuple(getattr(found, "fallbacks", ())),
        programs=len(buffers) + alone.total(),
        arena=max((s.length for b in buffers for s in b.slots if s.kind == SlotKind.ARENA), default=0),
        parameters=sum(part.inputs.bytes_kept for part in parts),
        bytes_up=sum(part.inputs.bytes_up for part in parts) if kind != "backward" else 0,
        bytes_down=sum(part.bytes_down for part in parts),
        op_by_op=getattr(found, "reason", ""),
    )


def _ops(command_buffer: CommandBuffer) -> list[str]:
    """Returns the op of each node that launches something; the launches of one node follow each other."""
    found: list[str] = []
    before: set[tuple[str, str]] = set()
    for entry in command_buffer.debug:
        here = set(zip_longest(entry.op.split(_JOINED), entry.node.split(_JOINED), fillvalue=""))
        found += [op for op, node in here if op and (op, node) not in before]
        before = here
    return found


def _returned(graph: fx.GraphModule) -> Sequence[Any]:
    found: Any = graph.graph.output_node().args[0]
    return found if isinstance(found, (tuple, list)) else (found,)


def _nothing(item: Any, bound: Any) -> Any:
    """Returns zeros in place of a result."""
    value = item.meta.get("val") if isinstance(item, fx.Node) else item
    if not isinstance(value, torch.Tensor):
        return evaluate(value, bound)
    shape, strides = (tuple(evaluate(e, bound) for e in extents) for extents in (value.shape, value.stride()))
    return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device).zero_()
