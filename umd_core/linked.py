"""A graph as steps on numbered buffers: what linking makes of it, and what it leaves to graphs that are alike."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from umd_core.commands import READ, WRITE, DebugInfo
from umd_core.ir import Array, Node, TensorDesc
from umd_core.kernels import KernelRecord, safety
from umd_core.recipes import freeze
from umd_core.recorder import Launch, Step
from umd_core.views import View

BufferRef = tuple[int, int, int, int]
"""(buffer, access, byte offset, byte length)"""


class LinkedStep(NamedTuple):
    """A recorded step with its refs on program buffers; `node` is where it came from."""

    step: Step
    refs: tuple[BufferRef, ...]
    node: int


class Link(NamedTuple):
    """What one node became, and what that depended on beside its recipe.

    Attributes:
        node: as it was then.
        info: says that this was made of it.
        inputs: views of what it reads.
        values: of static inputs.
        wished: layouts of its outputs.
        first: number of the next buffer before it; buffers are numbered as they come.
        steps, transients: what it added.
        outputs: name, view and description of each.
        adopts: whether a step copies into a buffer that may become its source.
    """

    node: Node
    info: DebugInfo
    inputs: tuple[View | None, ...]
    values: tuple[Array | None, ...]
    wished: tuple[TensorDesc | None, ...]
    first: int
    steps: list[LinkedStep]
    transients: dict[int, int]
    outputs: list[tuple[str, View, TensorDesc]]
    adopts: bool

    def fits(
        self,
        node: Node,
        inputs: Sequence[View | None],
        values: Sequence[Array | None],
        wished: tuple[TensorDesc | None, ...],
        first: int,
    ) -> bool:
        """Returns whether a node becomes just this again."""
        return (
            first == self.first
            and _is_same(node, self.node)
            and wished == self.wished
            and all(map(operator.is_, inputs, self.inputs))
            and all(map(operator.is_, values, self.values))
        )


def _is_same(a: Node, b: Node) -> bool:
    if a is b:
        return True
    are_alike = (a.op, a.inputs, a.outputs, a.name, a.source) == (b.op, b.inputs, b.outputs, b.name, b.source)
    return are_alike and freeze(a.attributes) == freeze(b.attributes)


@dataclass(slots=True)
class Kept:
    """What linking one graph leaves to the next of its kin.

    Attributes:
        links: by number of the node; None where a node cannot be linked so again.
        views: of all values, by name. Where one is as it was in the graph before, it is the same object.
    """

    links: list[Link | None] = field(default_factory=list)
    views: dict[str, View] = field(default_factory=dict)


@dataclass(slots=True)
class Linked:
    """A graph as steps on numbered buffers.

    Attributes:
        steps: in program order.
        transients: size in bytes of each transient buffer.
        constants: bytes of each constant buffer.
        arguments: buffer numbers of inputs, then outputs.
        same: buffer numbers that stand for another one (an output that overwrites an input).
        outputs: descriptions of the outputs.
        debug: per node.
    """

    steps: list[LinkedStep] = field(default_factory=list)
    transients: dict[int, int] = field(default_factory=dict)
    constants: dict[int, bytes] = field(default_factory=dict)
    arguments: list[int] = field(default_factory=list)
    same: dict[int, int] = field(default_factory=dict)
    outputs: list[TensorDesc] = field(default_factory=list)
    debug: list[DebugInfo] = field(default_factory=list)


class Uses:
    """When each buffer is first written, last read and last used."""

    def __init__(self, steps: Sequence[LinkedStep]) -> None:
        self.first_write: dict[int, int] = {}
        self.last_read: dict[int, int] = {}
        self.last_use: dict[int, int] = {}
        self.first_use: dict[int, int] = {}
        for index, linked in enumerate(steps):
            for buffer, access, _, _ in linked.refs:
                if access & READ:
                    self.last_read[buffer] = index
                if access & WRITE and buffer not in self.first_write:
                    self.first_write[buffer] = index
                if buffer not in self.first_use:
                    self.first_use[buffer] = index
                self.last_use[buffer] = index


def overwrites_exactly(linked: LinkedStep, written: int, read: int) -> bool:
    """Returns whether the step may write `written` over `read` in place: a declared, exact alias at offset 0."""
    step, refs = linked.step, linked.refs
    if not isinstance(step, Launch):
        return False
    pairs = _exact_pairs(step.record, step.parameters)
    found = False
    for index, ref in enumerate(refs):
        if ref[0] != read:
            continue
        if ref[2] or not any(r == index and refs[w][0] == written and refs[w][2:] == ref[2:] for w, r in pairs):
            return False
        found = True
    return found


@functools.lru_cache(maxsize=4096)
def _exact_pairs(record: KernelRecord, parameters: bytes) -> tuple[tuple[int, int], ...]:
    """Returns the declared (written, read) operand indices that address the same elements with these parameters."""
    flat = record.struct.unpack(parameters)
    index = {box.operand.name: i for i, box in enumerate(record.boxes)}
    pairs = [(index[written], index[read]) for written, read in record.row.alias]
    return tuple((w, r) for w, r in pairs if safety.same_elements(record.boxes[w], record.boxes[r], flat))
