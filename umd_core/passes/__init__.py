"""Graph clean-up: small passes, each with a name, that leave what a graph computes as it is and make it cheaper.

Rounding changes where a pass says so, and nowhere else: results may then differ by a few epsilons of their type.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from umd_core.errors import AttributeValueError
from umd_core.ir import Graph, TensorDesc
from umd_core.passes.attention import find_attention
from umd_core.passes.cancel import cancel
from umd_core.passes.constants import drop_dead, fold_constants, merge_equal
from umd_core.passes.convolution import fold_into_convolution
from umd_core.passes.editor import Editor, Evaluate
from umd_core.passes.gelu import find_gelu
from umd_core.passes.layer_norm import find_layer_norm

Pass = Callable[[Editor], int]
"""Changes a graph and returns how many nodes it was about."""


def _fuse_elementwise(editor: Editor) -> int:
    """Asks for elementwise launches to be fused when the graph is translated; see `umd_core.fusion`.

    float16 and bfloat16 are then rounded once a chain, not once a node.
    """
    editor.graph.fuses = True
    return 0


PASSES: dict[str, Pass] = {
    "dead_nodes": drop_dead,
    "fold_constants": fold_constants,
    "common_subexpressions": merge_equal,
    "cancel": cancel,
    "convolution": fold_into_convolution,
    "attention": find_attention,
    "layer_norm": find_layer_norm,
    "gelu": find_gelu,
    "elementwise_chain": _fuse_elementwise,
}
"""Every pass by name, in the order in which they run."""

DEFAULT = frozenset(PASSES)


class Optimised(NamedTuple):
    """A new graph, and how many nodes each pass that ran was about."""

    graph: Graph
    report: dict[str, int]


def optimise(
    graph: Graph,
    passes: Collection[str] = DEFAULT,
    *,
    evaluate: Evaluate | None = None,
    descs: Mapping[str, TensorDesc] | None = None,
) -> Optimised:
    """Returns a graph that computes the same with less; the given one stays as it is.

    Args:
        graph: what to clean up.
        passes: names of those that run; `DEFAULT - {"convolution"}` leaves one out.
        evaluate: computes an op on arrays, for constant folding; without it only shapes are folded.
        descs: what values of the graph are, as far as that is known; the rest is inferred where a pass asks.

    Raises:
        AttributeValueError: there is no pass of that name.
        UmdError: an op refuses its inputs.
    """
    unknown = sorted(set(passes) - PASSES.keys())
    if unknown:
        detail, wanted = f"there is no pass {unknown[0]!r}", f"some of {', '.join(PASSES)}"
        raise AttributeValueError("optimise", "passes", detail, value=unknown[0], wanted=wanted)
    editor = Editor(graph, evaluate, descs)
    report = {name: run(editor) for name, run in PASSES.items() if name in passes}
    return Optimised(editor.graph, report)


__all__ = ["DEFAULT", "PASSES", "Evaluate", "Optimised", "Pass", "optimise"]
