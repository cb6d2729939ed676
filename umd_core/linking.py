"""From a graph to a list of steps on numbered buffers, outputs placed in their argument slots where possible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from umd_core.commands import READ, WRITE, DebugInfo
from umd_core.dtypes import dtype as to_dtype
from umd_core.errors import InputCountError, ShapeError, UmdError, UndefinedValueError
from umd_core.ir import Array, Graph, Node, Output, TensorDesc, contiguous_strides, row_major
from umd_core.linked import Kept, Link, Linked, LinkedStep, Uses, overwrites_exactly
from umd_core.ops import CHECKS, OPS
from umd_core.recipes import Recipe, Recipes
from umd_core.recorder import CopyBytes, Recorder, Step
from umd_core.views import View, is_dense


class Linker:
    """Links the recipes of a graph's nodes into one program. `before` is what one of its kin left."""

    def __init__(self, graph: Graph, recipes: Recipes, before: Kept | None = None) -> None:
        self._graph = graph
        self._recipes = recipes
        self._before = before or Kept()
        self.kept: Kept = Kept()
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
            view = View(number, desc.dtype, desc.shape, desc.strides, desc.element_offset)
            self._values[name] = self._kept_view(name, view)
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
        known = self._values
        inputs = tuple([None if not n else known[n] if n in known else self._value(node.op, n) for n in node.inputs])
        template = OPS.get(node.op)
        values: tuple[Array | None, ...] = ()
        if template is not None and template.has_static:
            statics = template.statics(len(inputs))
            values = tuple([self._known.get(n) if s else None for n, s in zip(node.inputs, statics, strict=True)])
        is_wished = not layouts.keys().isdisjoint(node.outputs)
        wished = tuple([layouts.get(name) for name in node.outputs]) if is_wished else ()
        links, number = self._before.links, len(self._linked.debug)
        before = links[number] if number < len(links) else None
        if before is not None and before.fits(node, inputs, values, wished, self._next):
            self._link_again(before)
        else:
            self._link_anew(node, inputs, values, wished)

    def _link_anew(
        self,
        node: Node,
        inputs: tuple[View | None, ...],
        values: tuple[Array | None, ...],
        wished: tuple[TensorDesc | None, ...],
    ) -> None:
        linked, number, first = self._linked, len(self._linked.debug), self._next
        wanted = tuple([bool(name) for name in node.outputs])
        recipe = self._recipes.get(node.op, node.attributes, inputs, values, wanted, wished)
        if len(node.outputs) > max(len(recipe.outputs), 1):
            raise InputCountError(node.op, len(node.outputs), 1, len(recipe.outputs), "outputs")
        linked.debug.append(DebugInfo(node.op, node.name, node.source))
        at = len(linked.steps)
        bases = self._append(recipe.steps, recipe, inputs, number)
        outputs: list[tuple[str, View, TensorDesc]] = []
        for name, view, desc in zip(node.outputs, recipe.outputs, recipe.descs, strict=False):
            if name and view is not None:
                buffer, base = bases[view.buffer]
                offset = view.offset + base // view.dtype.size
                made = self._kept_view(name, View(buffer, view.dtype, view.shape, view.strides, offset))
                self._values[name], self._descs[name] = made, desc
                outputs.append((name, made, desc))
        if self._graph.kin is None:
            return
        added = {bases[own][0]: size for own, size in recipe.sizes.items()}
        link = Link(
            node, linked.debug[number], inputs, values, wished, first, linked.steps[at:], added, outputs, recipe.adopts
        )
        self.kept.links.append(None if recipe.constants else link)  # equal constants of others share their buffers

    def _link_again(self, link: Link) -> None:
        linked = self._linked
        linked.debug.append(link.info)
        linked.steps += link.steps
        linked.transients.update(link.transients)
        self._next += len(link.transients)
        self._adopts = self._adopts or link.adopts
        for name, view, desc in link.outputs:
            self._values[name] = self.kept.views[name] = view
            self._descs[name] = desc
        self.kept.links.append(link)

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
            refs = [(bases[b][0], access, bases[b][1] + offset, length) for b, access, offset, length in step.refs]
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
            view = self._kept_view(name, View(buffer, to_dtype(constant.dtype), constant.shape, strides))
            self._values[name] = view
        return view

    def _kept_view(self, name: str, view: View) -> View:
        """Returns the view of a value; that of the graph before, where it was the same."""
        if self._graph.kin is None:
            return view
        found = self._before.views.get(name)
        if found is None or not found.is_same(view):
            found = view
        self.kept.views[name] = found
        return found

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
            linked.steps = [_moved(step, becomes) for i, step in enumerate(linked.steps) if i not in dropped]
            for buffer in becomes:
                linked.transients.pop(buffer, None)
        self._copy_all_out(late, becomes)

    def _output_desc(self, output: Output, view: View) -> TensorDesc:
        if output.desc is None:
            return self._descs.get(output.value) or row_major(view.dtype, view.shape)
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


def _moved(linked: LinkedStep, becomes: Mapping[int, int]) -> LinkedStep:
    """Returns a step with the buffers that these become; itself where it has none of them."""
    step, refs, node = linked
    for ref in refs:
        if ref[0] in becomes:
            moved = tuple([(becomes.get(b, b), access, at, size) for b, access, at, size in refs])
            return LinkedStep(step, moved, node)
    return linked


def _same_layout(view: View, desc: TensorDesc) -> bool:
    return view.strides == desc.strides or all(
        extent == 1 or a == b for extent, a, b in zip(view.shape, view.strides, desc.strides, strict=True)
    )


def live_nodes(graph: Graph) -> list[Node]:
    """Returns the nodes that the outputs depend on, and those that check something, in program order."""
    needed = {output.value for output in graph.outputs}
    live = []
    for node in reversed(graph.nodes):
        if node.op in CHECKS or not needed.isdisjoint(node.outputs):
            live.append(node)
            needed.update(node.inputs)
    live.reverse()
    return live


__all__ = ["Kept", "Link", "Linked", "LinkedStep", "Linker", "Uses", "live_nodes", "overwrites_exactly"]
