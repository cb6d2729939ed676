"""`torch.compile(model, backend="umd", options={"device": "sim:0", "strict": True})`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from umd_core.errors import AttributeValueError
from umd_torch.compiled import CompiledGraph, boxed, session_of
from umd_torch.counters import counters
from umd_torch.graphs import source_line
from umd_torch.partition import FallbackWarning
from umd_torch.runtime import Roles
from umd_torch.self_writes import check_writes
from umd_torch.session import session_for
from umd_torch.settings import Settings, settings
from umd_torch.torch_private import (
    TracingContext,
    aot_autograd,
    check_version,
    compiles_left,
    fail_at_the_limit,
    is_recompile,
    unroll_recurrent_layers,
)
from umd_torch.tracing import decompositions, tracing

check_version()
unroll_recurrent_layers()

Compiler = Callable[[fx.GraphModule, Roles, str], Callable[..., Any]]


def umd(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Returns what runs the graph on a umd device; the entry point that torch.compile finds by name.

    Options: `device` ("sim:0", "grpc://host:port/sim:0"; UMD_DEVICE or the available device of highest priority
    without it), `strict` (raise where a node would run on the CPU) and `passes` (names of the clean-ups that graphs go
    through, `umd_core.passes`; all without it, none for `()`).

    Graphs over tensors of the device `umd` run where these are.

    Raises:
        AttributeValueError: unknown or ill-typed option; `device` is another than the one that the tensors are on.
        UnsupportedError: with `strict`, a node that the device cannot run; it names the node and its source line.
    """
    if mode is not None:
        raise AttributeValueError("backend umd", "mode", f"{mode!r} means nothing here", value=mode, wanted="no mode")
    chosen = settings(options)
    check_writes(module)
    named = str((options or {}).get("device", ""))
    counters.recompiles += is_recompile()
    _look_at_the_limit(module, chosen)

    def compiler(graph: fx.GraphModule, roles: Roles, _: str) -> Callable[..., Any]:
        session = session_of(graph, named) or session_for(chosen.device)
        return boxed(CompiledGraph(session, graph, roles, strict=chosen.strict, passes=chosen.passes))

    return compile_with(compiler, module, example_inputs)


def _look_at_the_limit(module: fx.GraphModule, chosen: Settings) -> None:
    """Sees to it that a function does not run on the CPU unnoticed once torch has compiled it as often as it may."""
    if compiles_left() > 0:
        return
    if chosen.strict:
        fail_at_the_limit()
        return
    lines = [source_line(node) for node in module.graph.nodes]
    place = next((f" (at {line})" for line in lines if line), "")
    warnings.warn(
        f"a function{place} was compiled for the last time that torch._dynamo.config.recompile_limit allows: called "
        "with what none of its graphs is for, it runs on the CPU from now on. torch.compile(…, dynamic=True) or a "
        "higher limit avoids that; options={'strict': True} makes it an error",
        FallbackWarning,
        stacklevel=2,
    )


def compile_with(compiler: Compiler, module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Returns what calls the graphs that torch makes of one, which `compiler` gets: (graph, roles, kind of graph)."""

    def bound(kind: str, roles: Callable[[fx.GraphModule], Roles]) -> Callable[..., Any]:
        return lambda graph, _: compiler(graph, roles(graph), kind)

    with tracing():
        compiled: Callable[..., Any] = aot_autograd(
            fw_compiler=bound("forward", _forward_roles),
            bw_compiler=bound("backward", lambda _: Roles()),
            inference_compiler=bound("inference", _inference_roles),
            decompositions=decompositions(),
            keep_inference_input_mutations=True,
        )(module, example_inputs)
    return compiled


def _inference_roles(_: fx.GraphModule) -> Roles:
    context = TracingContext.try_get()
    metadata = context and context.fw_metadata
    if not metadata:
        return Roles()
    counted = frozenset(metadata.mutated_graph_handled_indices_seen_by_autograd)
    return Roles(frozenset(metadata.static_input_indices), counted=counted, plain=True)


def _forward_roles(graph: fx.GraphModule) -> Roles:
    """Returns the roles of a forward graph: what comes after the user's results is for the backward graph alone."""
    context = TracingContext.try_get()
    metadata = context and context.fw_metadata
    if not metadata:
        return Roles()
    count = len(graph.graph.output_node().args[0])  # type: ignore[arg-type]  # one flat tuple
    resident = range(metadata.num_forward_returns, count)
    return replace(_inference_roles(graph), resident=frozenset(resident))
