"""What lowering a graph for one set of sizes leaves to the next: what it knows of the nodes, and what they became."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from typing import Any, NamedTuple

from torch import fx

from umd_torch.builder import Interned, Promise, Record, Value
from umd_torch.layouts import Layout, OpenLayout
from umd_torch.nodes import Facts, facts_of
from umd_torch.symbols import Bound

KEPT = 1 << 12
"""Ops and constants that are kept of any graph; of one with many nodes, as many as it has `SPARE` times."""
SPARE = 16
_EXACT = (Value, int, bool, type(None))
"""Types whose equal values are the same; 0.0 equals -0.0, and equal tensors have no truth."""


class Emission(NamedTuple):
    """What an emitter added and returned for these leaves and promises."""

    leaves: tuple[Any, ...]
    promised: tuple[Promise, ...]
    record: Record
    result: Any

    def fits(self, leaves: tuple[Any, ...], promised: tuple[Promise, ...]) -> bool:
        """Returns whether an emitter would get just the same again."""
        return promised == self.promised and all(map(_are_same, leaves, self.leaves))


def _are_same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and type(a) in _EXACT and bool(a == b))


class Emissions:
    """What is kept of one graph, for one lowering at a time.

    An emitter's work depends on its arguments, on what torch promises, and on which of the ops that it asks for are
    there already. Where all that is as it was, the same nodes are added again, and the emitter is not asked.

    Attributes:
        interned: numbers of ops and names of constants, the same for every set of sizes.
        of: what each node became last.
        kin: of the graphs that it is lowered to.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.interned = Interned()
        self.of: dict[fx.Node, Emission] = {}
        self.kin: dict[Any, Any] = {}
        self._facts: dict[fx.Node, Facts] = {}
        self._layouts: dict[fx.Node, OpenLayout] = {}

    @contextlib.contextmanager
    def lowering(self) -> Generator[None]:
        """Within the block the graph may be lowered; other threads wait."""
        with self._lock:
            self._trim()
            yield

    def _trim(self) -> None:
        """Forgets what nodes became once most ops and constants are those of other sizes."""
        if len(self.interned) > max(KEPT, SPARE * len(self.of)):
            self.interned = Interned()
            self.of.clear()

    def facts(self, node: fx.Node) -> Facts:
        """Returns what a call is.

        Raises:
            UnsupportedError: it returns tensors that umd does not have.
        """
        found = self._facts.get(node)
        if found is None or not found.are_of(node):
            self.of.pop(node, None)
            found = self._facts[node] = facts_of(node)
        return found

    def layout(self, node: fx.Node, bound: Bound) -> Layout:
        """Returns how torch wants a node's tensor to lie in this call.

        Raises:
            UnsupportedError: it is no strided tensor of the CPU or of the device `umd`.
        """
        value = node.meta["val"]
        found = self._layouts.get(node)
        if found is None or found.value is not value:
            found = self._layouts[node] = OpenLayout(value)
        return found.closed(bound)
