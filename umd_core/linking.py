"""From a graph to a list of steps on numbered buffers, outputs placed in their argument slots where possible."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from umd_core.commands import READ, WRITE, DebugInfo
from umd_core.dtypes import dtype as to_dtype
from umd_core.errors import InputCountError, ShapeError, UmdError, UndefinedValueError
from umd_core.ir import Array, Graph, Node, Output, TensorDesc, contiguous_strides
from umd_core.kernels import KernelRecord, safety
from umd_core.ops import OPS
from umd_core.recipes import Recipe, Recipes
from umd_core.recorder import CopyBytes, Launch, Recorder, Step
from umd_core.views import View, is_dense

BufferRef = tuple[int, int, int, int]
"""(buffer, access, byte offset, byte length)"""


class LinkedStep(NamedTuple):
    """A recorded step with its refs on program buffers; `node` is where it came from."""

    step: Step
    refs: tuple[BufferRef, ...]
    node: int


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


class Linker:
    """Links the recipes of a graph's nodes into one program."""

    def __init__(self, graph: Graph, recipes: Recipes) -> None:
        self._graph = graph
        self._recipes = recipes
        self._linked = Linked()
        self._values: dict[str, View] = {}
        self._descs: dict[str, TensorDesc] = {}
        self._known: dict[str, Array] = graph.constants
        self._constant_buffers: dict[bytes, int] = {}
        self._next = len(graph.inputs) + len(graph.outputs)
        self._adopts = False

    def link(self) -> Linked:
        """Returns the graph's steps; nodes that no output needs are left out.

        Raises:
            UmdError: an op refuses its inputs; the error carries the node.
        """
        graph, linked = self._graph, self._linked
        linked.arguments = list(range(self._next))
        for number, (name, desc) in enumerate(graph.inputs.items()):
            self._values[name] = View(number, desc.dtype, desc.shape, desc.strides, desc.element_offset)
        layouts = {o.value: o.desc for o in graph.outputs if o.desc is not None}
        for node in live_nodes(graph):
            try:
                self._link_node(node, layouts)
            except UmdError as error:
                error.at(node=node.name, source=node.source)
                raise
        self._place_outputs()
        return linked

    def _link_node(self, node: Node, layouts: dict[str, TensorDesc]) -> None:
        inputs = [self._value(node.op, name) if name else None for name in node.inputs]
        template = OPS.get(node.op)
        values: list[Array | None] = []
        if template is not None and template.has_static:
            values = [
                self._known.get(name) if template.input_spec(i).static else None for i, name in enumerate(node.inputs)
            ]
        wanted = tuple([bool(name) for name in node.outputs])
        wished = tuple([layouts.get(name) for name in node.outputs]) if layouts else ()
        recipe = self._recipes.get(node.op, node.attributes, inputs, values, wanted, wished if any(wished) else ())
        if len(node.outputs) > max(len(recipe.outputs), 1):
            raise InputCountError(node.op, len(node.outputs), 1, len(recipe.outputs), "outputs")
        number = len(self._linked.debug)
        self._linked.debug.append(DebugInfo(node.op, node.name, node.source))
        bases = self._append(recipe.steps, recipe, inputs, number)
        for name, view, desc in zip(node.outputs, recipe.outputs, recipe.descs, strict=False):
            if name and view is not None:
                buffer, base = bases[view.buffer]
                offset = view.offset + base // view.dtype.size
                self._values[name] = View(buffer, view.dtype, view.shape, view.strides, offset)
                self._descs[name] = desc

    def _append(
        self, steps: Iterable[Step], recipe: Recipe, inputs: Sequence[View | None], node: int
    ) -> dict[int, tuple[int, int]]:
        """Appends a recipe's steps; returns where each recipe buffer lies: (program buffer, byte offset)."""
        bases = {i: (v.buffer, v.offset * v.dtype.size) for i, v in enumerate(inputs) if v is not None}
        for number, size in recipe.sizes.items():
            bases[number] = (self._next, 0)
            self._linked.transients[self._next] = size
            self._next += 1
        for number, data in recipe.constants.items():
            bases[number] = (self._constant(data), 0)
        append = self._linked.steps.append
        self._adopts = self._adopts or recipe.adopts
        for step in steps:
            refs = []
            for buffer, access, offset, length in step.refs:
                program_buffer, base = bases[buffer]
                refs.append((program_buffer, access, offset + base, length))
            append(LinkedStep(step, tuple(refs), node))
        return bases

    def _value(self, user: str, name: str) -> View:
        view = self._values.get(name)
        if view is None:
            constant = self._known.get(name)
            if constant is None:
                raise UndefinedValueError(user, name)
            buffer = self._constant(constant.tobytes())
            strides = contiguous_strides(constant.shape)
            view = self._values[name] = View(buffer, to_dtype(constant.dtype), constant.shape, strides)
        return view

    def _constant(self, data: bytes) -> int:
        buffer = self._constant_buffers.get(data)
        if buffer is None:
            buffer = self._constant_buffers[data] = self._next
            self._linked.constants[buffer] = data
            self._next += 1
        return buffer

    # outputs

    def _place_outputs(self) -> None:
        """Gives each output its argument buffer: the transient itself becomes it, or a copy ends the program."""
        graph, linked = self._graph, self._linked
        names = list(graph.inputs)
        uses = Uses(linked.steps if self._adopts or any(o.alias for o in graph.outputs) else ())
        becomes: dict[int, int] = {}
        dropped: set[int] = set()
        late: list[tuple[Output, View, int]] = []
        views = [self._value("output", output.value) for output in graph.outputs]
        viewed = {view.buffer for view in views}
        for index, (output, view) in enumerate(zip(graph.outputs, views, strict=True)):
            desc = self._output_desc(output, view)
            linked.outputs.append(desc)
            slot = len(graph.inputs) + index
            source = -1
            if output.alias is not None:
                source = self._alias_source(output, desc, names)
                linked.same[slot] = source
                if view.buffer == source and view.offset == desc.element_offset and _same_layout(view, desc):
                    continue
            if view.buffer in becomes or not self._may_become(view, desc):
                late.append((output, view, slot))
            elif source < 0 or (source not in viewed and self._may_overwrite(view.buffer, source, uses, dropped)):
                becomes[view.buffer] = slot
            else:
                late.append((output, view, slot))
        if self._adopts:
            self._adopt(uses, becomes, dropped, viewed)
        if dropped or becomes:
            linked.steps = [
                LinkedStep(step, tuple([(becomes.get(b, b), access, at, size) for b, access, at, size in refs]), node)
                for i, (step, refs, node) in enumerate(linked.steps)
                if i not in dropped
            ]
            for buffer in becomes:
                linked.transients.pop(buffer, None)
        self._copy_all_out(late, becomes)

    def _output_desc(self, output: Output, view: View) -> TensorDesc:
        if output.desc is None:
            return self._descs.get(output.value) or TensorDesc(view.dtype, view.shape)
        if output.desc.shape != view.shape or output.desc.dtype is not view.dtype:
            raise ShapeError(
                f"output {output.value!r}",
                f"is {view.dtype}{list(view.shape)}, wanted as {output.desc!r}",
                shapes=[view.shape, output.desc.shape],
            )
        return output.desc

    def _alias_source(self, output: Output, desc: TensorDesc, names: Sequence[str]) -> int:
        alias = output.alias or ""
        if alias not in self._graph.inputs:
            raise UndefinedValueError(f"output {output.value!r}", alias)
        if self._graph.inputs[alias].key != desc.key:
            raise ShapeError(
                f"output {output.value!r}",
                f"cannot overwrite input {alias!r}: layouts differ ({desc!r}, {self._graph.inputs[alias]!r})",
                shapes=[desc.shape, self._graph.inputs[alias].shape],
            )
        return names.index(alias)

    def _may_become(self, view: View, desc: TensorDesc) -> bool:
        size = self._linked.transients.get(view.buffer)
        return (
            size is not None and view.offset == desc.element_offset == 0 and size == desc.byte_size
            and _same_layout(view, desc)
        )  # fmt: skip

    def _may_overwrite(self, buffer: int, source: int, uses: Uses, dropped: set[int]) -> bool:
        """Returns whether `buffer` may be the input `source` itself: nobody reads the old bytes once it is written."""
        first = uses.first_write.get(buffer)
        if first is None:
            return False
        last_read = uses.last_read.get(source, -1)
        step = self._linked.steps[first]
        if isinstance(step.step, CopyBytes) and step.step.adopt and step.refs[1][0] == source:
            whole = step.refs[1][2] == 0 and step.refs[1][3] == self._linked.transients[buffer]
            if whole and last_read <= first:
                dropped.add(first)
                return True
            return False
        return last_read < first or (last_read == first and overwrites_exactly(step, buffer, source))

    def _adopt(self, uses: Uses, becomes: dict[int, int], dropped: set[int], viewed: set[int]) -> None:
        """Lets a writable copy of a dying transient be that transient, unless an output views its bytes."""
        transients = self._linked.transients
        moved: dict[int, int] = {}
        for index, step in enumerate(self._linked.steps):
            if index in dropped or not isinstance(step.step, CopyBytes) or not step.step.adopt:
                continue
            (copy, _, _, size), (source, _, offset, _) = step.refs
            if source in viewed:
                continue
            source = moved.get(source, source)
            if source not in transients or source in becomes or transients[source] != size or offset:
                continue
            if uses.last_use.get(source) != index:
                continue
            target = becomes.get(copy)
            if target in self._linked.same:
                continue  # the input's old bytes may still be read while the source is computed
            if target is not None:
                becomes[source] = target
            else:
                moved[copy] = source
                uses.last_use[source] = uses.last_use.get(copy, index)
            dropped.add(index)
        for copy, source in moved.items():
            becomes[copy] = becomes.get(source, source)

    def _copy_all_out(self, late: list[tuple[Output, View, int]], becomes: dict[int, int]) -> None:
        """Appends the copies into argument buffers: those that overwrite an input last, its own bytes read first."""
        same = self._linked.same
        overwriting = []
        for output, view, slot in late:
            if slot not in same:
                self._copy_out(output, view, slot, becomes)
                continue
            if view.buffer in same.values():
                staged = View(self._next, view.dtype, view.shape, contiguous_strides(view.shape))
                self._linked.transients[self._next] = view.size * view.dtype.size
                self._next += 1
                self._copy(output, view, staged)
                view = staged
            overwriting.append((output, view, slot))
        for output, view, slot in overwriting:
            self._copy_out(output, view, slot, becomes)

    def _copy_out(self, output: Output, view: View, slot: int, becomes: dict[int, int]) -> None:
        """Appends the copy of a value into its argument buffer."""
        desc = self._linked.outputs[slot - len(self._graph.inputs)]
        view = View(becomes.get(view.buffer, view.buffer), view.dtype, view.shape, view.strides, view.offset)
        self._copy(output, view, View(slot, desc.dtype, desc.shape, desc.strides, desc.element_offset))

    def _copy(self, output: Output, view: View, target: View) -> None:
        """Appends a copy, of bytes where both sides are dense."""
        if 0 in view.shape:
            return
        number = len(self._linked.debug)
        self._linked.debug.append(DebugInfo("output", output.value, ""))
        if is_dense(view) and is_dense(target):
            size = view.dtype.size
            length = view.size * size
            refs = (
                (target.buffer, WRITE, target.offset * size, length),
                (view.buffer, READ, view.offset * size, length),
            )
            self._linked.steps.append(LinkedStep(CopyBytes(refs, False), refs, number))
            return
        recorder = Recorder((), supports=self._recipes.supports)
        recorder.copy(view, target)
        for step in recorder.steps:
            self._linked.steps.append(LinkedStep(step, step.refs, number))


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


def _same_layout(view: View, desc: TensorDesc) -> bool:
    return view.strides == desc.strides or all(
        extent == 1 or a == b for extent, a, b in zip(view.shape, view.strides, desc.strides, strict=True)
    )


def live_nodes(graph: Graph) -> list[Node]:
    """Returns the nodes that the outputs depend on, in program order."""
    needed = {output.value for output in graph.outputs}
    live = []
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.outputs):
            live.append(node)
            needed.update(node.inputs)
    live.reverse()
    return live
