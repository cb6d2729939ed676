"""What the device cannot run runs on the CPU: split off, counted, and said once."""

from __future__ import annotations

import contextlib
import copy
import operator
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from umd_core.errors import UmdError, UnsupportedError
from umd_core.ir import TensorDesc
from umd_core.passes import DEFAULT
from umd_torch.counters import counters
from umd_torch.graphs import Lowering, lower, promises, source_line
from umd_torch.lowering import creation, layout
from umd_torch.mutations import OVERWRITE
from umd_torch.runtime import Executable, Roles
from umd_torch.session import Session
from umd_torch.symbols import Bound
from umd_torch.torch_private import qualified_name

FUSED = "umd_part_"


class FallbackWarning(UserWarning):
    """A node runs on the CPU instead of the device."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """A node that runs on the CPU: its op, its name, the line of the model that it comes from, and why."""

    op: str
    node: str
    source: str
    reason: str


_warned: set[str] = set()


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Within the block nothing is said, and what would have been counts as not said."""
    before = set(_warned)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        try:
            yield
        finally:
            _warned.intersection_update(before)


def warn_once(fallback: Fallback) -> None:
    """Says that an op runs on the CPU: which, where it comes from, why, and how to forbid or silence it."""
    if fallback.op in _warned:
        return
    _warned.add(fallback.op)
    place = f" at {fallback.source}" if fallback.source else ""
    warnings.warn(
        f"{fallback.op} (node {fallback.node!r}{place}) runs on the CPU: {fallback.reason}. "
        "options={'strict': True} forbids that; "
        "warnings.simplefilter('ignore', umd_torch.FallbackWarning) silences this",
        FallbackWarning,
        stacklevel=2,
    )


class Probe(Lowering):
    """Lowers what can be lowered and notes why the rest cannot.

    Attributes:
        refused: per node, what is wrong with it.
    """

    def __init__(self, module: fx.GraphModule, bound: Bound) -> None:
        super().__init__(module, bound)
        self.refused: dict[str, UmdError] = {}

    def placeholder(self, node: fx.Node) -> None:
        """Declares an input; one that umd knows no type for is refused."""
        try:
            super().placeholder(node)
        except UmdError as error:
            self._refuse(node, error)

    def attribute(self, node: fx.Node) -> None:
        """Takes in a tensor that the graph holds."""
        try:
            super().attribute(node)
        except UmdError as error:
            self._refuse(node, error)

    def call(self, node: fx.Node) -> None:
        """Lowers a call; where that fails, its results count as given from outside."""
        if any(self._values.get(n) is None and n.name in self.refused for n in node.all_input_nodes):
            self._refuse(node, UnsupportedError("an input of it has a type that umd does not know"))
            self._values[node] = self._given(node)
            return
        try:
            super().call(node)
        except UmdError as error:
            self._refuse(node, error)
            self._values[node] = self._given(node)
            if node.target is torch.ops.aten.as_strided.default:
                self._refuse_storage(node)

    def _refuse_storage(self, node: fx.Node) -> None:
        """Refuses the views that an as_strided looks through: off the CPU they would not share its storage."""
        source = node.args[0]
        while isinstance(source, fx.Node) and source.target in layout.VIEWS:
            self.refused.setdefault(source.name, UnsupportedError("as_strided needs the storage behind it"))
            source = source.args[0]

    def output(self, node: fx.Node) -> None:
        """Does nothing: what is asked is which nodes can be lowered."""

    def _refuse(self, node: fx.Node, error: UmdError) -> None:
        self.refused[node.name] = error
        self._values[node] = None

    def _given(self, node: fx.Node) -> Any:
        """Returns values that stand for the results, None where umd has no such tensors."""
        try:
            described = promises(node, self._bound)
            if not described:
                return None
            values = [
                self._builder.input(f"{node.name}_{i}", TensorDesc(p.dtype, p.shape)) for i, p in enumerate(described)
            ]
        except UmdError:  # whoever uses them is refused in turn
            return None
        return tuple(values) if isinstance(node.meta.get("val"), (tuple, list)) else values[0]


class _Support(OperatorSupportBase):
    def __init__(self, refused: Mapping[str, UmdError]) -> None:
        self._refused = refused

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: fx.Node) -> bool:
        return node.op == "call_function" and node.name not in self._refused


_NO_WORK = [qualified_name(target) for target in (*layout.VIEWS, *creation.TABLE)]


class Part(torch.nn.Module):
    """A part of a graph that runs on the device."""

    def __init__(self, executable: Executable, single: bool) -> None:
        super().__init__()
        self.executable, self._single = executable, single

    def forward(self, *arguments: Any) -> Any:
        """Returns the part's results; one result comes alone."""
        results = self.executable(arguments)
        return results[0] if self._single else results


class Split:
    """A graph whose parts run on the device and on the CPU in turn.

    Attributes:
        fallbacks: what runs on the CPU.
        parts: what runs on the device.
    """

    def __init__(self, module: fx.GraphModule, fallbacks: Sequence[Fallback], overwritten: Sequence[int]) -> None:
        self._module, self.fallbacks, self._overwritten = module, fallbacks, overwritten
        self._on_cpu = Counter(fallback.op for fallback in fallbacks)
        self.parts = [part.executable for part in module.children() if isinstance(part, Part)]

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """Returns the graph's results; what it changes in place is changed once all parts have run."""
        counters.fallbacks.update(self._on_cpu)
        results = list(self._module(*arguments))
        with torch.no_grad():
            for position, value in zip(reversed(self._overwritten), reversed(results), strict=False):
                arguments[position].copy_(value)
        return results[: len(results) - len(self._overwritten)]


def split(
    session: Session,
    module: fx.GraphModule,
    roles: Roles,
    bound: Bound,
    error: UmdError,
    passes: Collection[str] = DEFAULT,
) -> Split:
    """Returns what runs a graph that the device cannot run whole; `error` says why."""
    module, overwritten = without_overwrites(module)
    probe = Probe(module, bound)
    probe.run()
    refused = dict(probe.refused)
    if not refused:
        _refuse_named(module, refused, error)
    while True:
        fused = _fuse(module, refused)
        try:
            return Split(*_assemble(session, fused, roles, bound, refused, passes), overwritten)
        except UmdError as again:
            _refuse_named(module, refused, again)


def without_overwrites(module: fx.GraphModule) -> tuple[fx.GraphModule, list[int]]:
    """Returns the graph with what it writes into its inputs as further results, and the inputs' positions.

    A part that wrote into an input could run before another that reads it.
    """
    if not any(node.target is OVERWRITE for node in module.graph.nodes):
        return module, []
    duplicate = copy.copy(module)
    duplicate.graph = copy.deepcopy(module.graph)
    placeholders = [n for n in duplicate.graph.nodes if n.op == "placeholder"]
    overwritten, values = [], []
    for node in [n for n in duplicate.graph.nodes if n.target is OVERWRITE]:
        target, value = node.args[:2]
        overwritten.append(placeholders.index(target))
        values.append(value)
        node.replace_all_uses_with(target)
        duplicate.graph.erase_node(node)
    output = duplicate.graph.output_node()
    output.args = ((*output.args[0], *values),)  # type: ignore[misc]  # one flat tuple
    duplicate.recompile()
    return duplicate, overwritten


def _refuse_named(module: fx.GraphModule, refused: dict[str, UmdError], error: UmdError) -> None:
    """Adds the node that an error names.

    Raises:
        UmdError: the error itself, when it names none that is not refused already.
    """
    name = str(error.facts().get("node", ""))
    if name in refused or not any(n.name == name for n in module.graph.nodes):
        raise error
    refused[name] = error


def _fuse(module: fx.GraphModule, refused: Mapping[str, UmdError]) -> fx.GraphModule:
    """Returns a copy of the graph in which every part for the device is one call."""
    duplicate = copy.copy(module)
    duplicate.graph = copy.deepcopy(module.graph)
    partitioner = CapabilityBasedPartitioner(
        duplicate, _Support(refused), allows_single_node_partition=True, non_compute_ops=_NO_WORK
    )
    partitions = partitioner.propose_partitions()
    partitioner.remove_bookend_non_compute_ops(partitions)
    return partitioner.fuse_partitions([p for p in partitions if p.nodes], prefix=FUSED)


def _assemble(
    session: Session,
    module: fx.GraphModule,
    roles: Roles,
    bound: Bound,
    refused: Mapping[str, UmdError],
    passes: Collection[str],
) -> tuple[fx.GraphModule, list[Fallback]]:
    """Returns the fused graph with its parts translated, and what runs on the CPU."""
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    static = {n for i, n in enumerate(placeholders) if i in roles.static}
    kept = _kept(module, roles)
    fallbacks: list[Fallback] = []
    for node in module.graph.nodes:
        if node.op == "call_module":
            part = getattr(module, node.target)
            own = Roles(frozenset(i for i, n in enumerate(node.all_input_nodes) if n in static), kept(node, part))
            single = not isinstance(part.graph.output_node().args[0], (tuple, list))
            setattr(module, node.target, Part(Executable(session, lower(part, bound), own, passes), single))
        elif node.op == "call_function" and node.name in refused and node.target is not operator.getitem:
            fallbacks.append(Fallback(str(node.target), node.name, source_line(node), _reason(refused[node.name])))
            warn_once(fallbacks[-1])
    module.recompile()
    return module, fallbacks


def _reason(error: UmdError) -> str:
    return str(error.facts().get("why") or error.facts().get("reason") or error)


def _kept(module: fx.GraphModule, roles: Roles) -> Callable[[fx.Node, fx.GraphModule], frozenset[int]]:
    """Returns what tells the results of a part that only other parts, or the backward graph, need."""
    returned: Any = module.graph.output_node().args[0]
    visible = {n for i, n in enumerate(returned) if i not in roles.resident}
    output = module.graph.output_node()

    def stays(node: fx.Node) -> bool:
        return node not in visible and all(user is output or user.op == "call_module" for user in node.users)

    def kept(node: fx.Node, part: fx.GraphModule) -> frozenset[int]:
        if not isinstance(part.graph.output_node().args[0], (tuple, list)):
            return frozenset({0} if stays(node) else ())
        positions: list[Any] = [user.args[1] for user in node.users if stays(user)]
        return frozenset(int(position) for position in positions)

    return kept
