"""Graph or single op → CommandBuffer, with the caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from umd_core.commands import (
    ARENA_ALIGNMENT,
    READ,
    WRITE,
    Barrier,
    Command,
    CommandBuffer,
    Copy,
    DebugInfo,
    Dispatch,
    Fill,
    Ref,
    Slot,
    SlotKind,
)
from umd_core.dependencies import Hazards
from umd_core.dtypes import DType, int64
from umd_core.errors import AttributeValueError, InputCountError
from umd_core.fusion import fuse
from umd_core.ir import Graph, TensorDesc
from umd_core.kernels import KernelRecord
from umd_core.linking import Linked, LinkedStep, Linker, Uses, overwrites_exactly
from umd_core.memory import Transient, plan
from umd_core.ops import op_template
from umd_core.recipes import CAPACITY, Recipes, freeze
from umd_core.recorder import CopyBytes, Launch
from umd_core.scheduling import schedule
from umd_core.single import translate_single
from umd_core.template import OpTemplate

MAX_DEPS = 32
_CONSTANT_ALIGNMENT = 8


class KernelSet(Protocol):
    """What translation needs to know of a device (`Caps` has it)."""

    def supports(self, name: str, types: tuple[DType, ...]) -> bool:
        """Returns whether the device runs this kernel with these type arguments."""
        ...


class Translator:
    """Translates for one set of kernels; keeps the caches.

    Attributes:
        recipes: launches of ops seen before.
    """

    def __init__(self, caps: KernelSet | None = None) -> None:
        self.caps = caps
        self.recipes: Recipes = Recipes(None if caps is None else caps.supports)
        self._single: dict[Any, CommandBuffer] = {}

    def op(self, name: str, inputs: Sequence[Any], attributes: Mapping[str, Any] | None = None) -> CommandBuffer:
        """Returns the command buffer of one op; a signature seen before costs a dictionary look-up."""
        try:
            key = (name, *[x.key for x in inputs]) if not attributes else None
        except AttributeError:
            key = None
        if key is None:
            template = op_template(name)
            keys = [_input_key(x, static=template.input_spec(i).static) for i, x in enumerate(inputs)]
            key = (name, freeze(attributes), *keys) if attributes else (name, *keys)
        found = self._single.get(key)
        if found is None:
            found = self._translate_op(name, inputs, attributes or {})
            if len(self._single) >= CAPACITY:
                self._single.clear()
            self._single[key] = found
        return found

    def _translate_op(self, name: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> CommandBuffer:
        return translate_single(name, inputs, attributes, self.recipes) or self.graph(
            op_graph(name, inputs, attributes)
        )

    def graph(self, graph: Graph) -> CommandBuffer:
        """Returns the command buffer of a graph.

        Raises:
            UmdError: what an op refuses.
        """
        kin = graph.kin
        linker = Linker(graph, self.recipes, None if kin is None else kin.get(self))
        linked = linker.link()
        if kin is not None:
            kin[self] = linker.kept
        if graph.fuses:
            fuse(linked, self.recipes.supports)
        schedule(linked)
        return _Assembler(graph, linked).assemble()


def _input_key(value: Any, *, static: bool) -> Any:
    if value is None:
        return None
    if static and not isinstance(value, TensorDesc):
        array = np.asarray(value)
        return (array.dtype.str, array.shape, array.tobytes())
    return TensorDesc.of(value).key


def op_graph(name: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Graph:
    """Returns the graph of one op. Static inputs are arrays among `inputs`, or attributes of that name.

    Raises:
        AttributeValueError: a static input is given without its value.
    """
    template = op_template(name)
    graph = Graph(name)
    rest = dict(attributes)
    names: list[str] = []
    least, most = template.input_counts
    if len(inputs) > most:
        raise InputCountError(name, len(inputs), least, most)
    for index, value in enumerate(inputs):
        spec = template.input_spec(index)
        if value is None:
            names.append("")
        elif spec.static:
            if isinstance(value, TensorDesc):
                raise AttributeValueError(
                    name, spec.name, "must be known at translation", wanted="an array, or an attribute"
                )
            names.append(graph.constant(value, spec.name))
        else:
            label = f"{spec.name}_{index}" if spec.variadic else spec.name
            names.append(graph.input(label, TensorDesc.of(value)))
    if template.has_static and rest:
        _static_attributes(template, rest, names, graph)
    outputs = _result_names(template, rest, names, graph)
    graph.add(name, names, rest, outputs=outputs)
    for output in outputs:
        graph.output(output)
    return graph


def _static_attributes(template: OpTemplate, rest: dict[str, Any], names: list[str], graph: Graph) -> None:
    """Moves static inputs that were given as attributes into the graph's constants."""
    schema = {a.name for a in template.attributes}
    for index, spec in enumerate(template.inputs):
        if spec.static and spec.name in rest and spec.name not in schema:
            names += [""] * (index + 1 - len(names))
            integer = spec.type == "int64" or int64 in template.types.get(spec.type, ())
            value = np.asarray(rest.pop(spec.name), np.int64 if integer else None)
            names[index] = graph.constant(value, spec.name)


def _result_names(
    template: OpTemplate, attributes: Mapping[str, Any], names: Sequence[str], graph: Graph
) -> tuple[str, ...]:
    """Returns a name for each result of a single op: all that are not optional; a variadic one as the shapes say."""
    results = template.results
    if not results[-1].variadic:
        return tuple([r.name for r in results if not r.optional]) or (results[0].name,)
    descs = [TensorDesc.of(graph.constants[n]) if n in graph.constants else graph.inputs.get(n) for n in names]
    values = [graph.constants.get(n) for n in names]
    count = len(template.call(descs, attributes, values).outputs)
    return tuple(f"{results[-1].name}_{i}" for i in range(count))


_TRANSLATORS: dict[int, Translator] = {}
_DEFAULT = Translator()


def translator(caps: KernelSet | None = None) -> Translator:
    """Returns the translator that keeps the caches for these caps."""
    if caps is None:
        return _DEFAULT
    found = _TRANSLATORS.get(id(caps))
    if found is None:
        if len(_TRANSLATORS) >= 64:
            _TRANSLATORS.clear()
        found = _TRANSLATORS[id(caps)] = Translator(caps)
    return found


def translate(
    what: Graph | str, inputs: Sequence[Any] = (), *, caps: KernelSet | None = None, **attributes: Any
) -> CommandBuffer:
    """Returns the command buffer of a graph, or of one op by name.

    Args:
        what: a Graph, or an op's name such as "Add".
        inputs: of the op: TensorDescs, NumPy arrays, anything with dtype and shape, or None for one left out.
        caps: the device's; kernels that it lacks are replaced by lower ones. Without it the whole table is assumed.
        attributes: of the op. A static input (Reshape's `shape`) may be given here by name.

    Raises:
        UmdError: unknown op, wrong inputs or attributes, or something the device cannot do.
    """
    found = _DEFAULT if caps is None else translator(caps)
    return found.op(what, inputs, attributes) if isinstance(what, str) else found.graph(what)


class _Assembler:
    """Turns linked steps into a CommandBuffer: slots, arena offsets, dependencies."""

    def __init__(self, graph: Graph, linked: Linked) -> None:
        self._graph = graph
        self._linked = linked
        self._place: dict[int, tuple[int, int]] = {}  # buffer -> (slot, byte offset in it)
        self._memory: dict[int, int] = {}  # writable slot -> memory object for hazards
        self._constants: list[bytes] = []
        self._sizes: list[int] = []  # of each slot, the bytes that the commands reach
        self._used: list[int] = []  # of each slot, the accesses
        self._arena_size = 0

    def assemble(self) -> CommandBuffer:
        linked = self._linked
        self._lay_out()
        buffer = CommandBuffer(
            inputs=tuple(self._graph.inputs.values()),
            outputs=tuple(linked.outputs),
            aliases=tuple((slot - len(self._graph.inputs), source) for slot, source in linked.same.items()),
            constants=self._constants,
        )
        self._commands(buffer)
        self._slots(buffer)
        return buffer

    def _lay_out(self) -> None:
        """Gives every buffer its slot and offset: arguments, the arena, constants."""
        linked = self._linked
        place = self._place
        for slot in linked.arguments:
            place[slot] = (slot, 0)
        uses = Uses(linked.steps if linked.transients or linked.constants else ())
        numbers = [b for b in linked.transients if b in uses.first_use]
        slot = len(linked.arguments)
        if numbers:
            index_of = {b: i for i, b in enumerate(numbers)}
            inherits = self._inheritance(index_of, uses)
            transients = [
                Transient(linked.transients[b], uses.first_use[b], uses.last_use[b], inherits.get(b, -1))
                for b in numbers
            ]
            offsets, self._arena_size = plan(transients)
            for number, offset in zip(numbers, offsets, strict=True):
                place[number] = (slot, offset)
            slot += 1
        self._memory = {s: linked.same.get(s, s) for s in range(slot)}
        for number, data in linked.constants.items():
            if number in uses.first_use:
                place[number] = (slot, 0)
                self._constants.append(data)
                slot += 1
        self._sizes, self._used = [0] * slot, [0] * slot

    def _inheritance(self, index_of: Mapping[int, int], uses: Uses) -> dict[int, int]:
        """Returns, for transients that may be computed in place, the index of the transient whose bytes they take."""
        transients = self._linked.transients
        inherits: dict[int, int] = {}
        taken: set[int] = set()
        for index, linked in enumerate(self._linked.steps):
            if not isinstance(linked.step, Launch) or not linked.step.record.row.alias:
                continue
            for written, access, _, _ in linked.refs:
                if not access & WRITE or written not in index_of or uses.first_use[written] != index:
                    continue
                for read, read_access, _, _ in linked.refs:
                    if (
                        read_access & READ
                        and read in index_of
                        and read not in taken
                        and read != written
                        and uses.last_use[read] == index
                        and transients[read] == transients[written]
                        and overwrites_exactly(linked, written, read)
                    ):
                        inherits[written] = index_of[read]
                        taken.add(read)
                        break
        return inherits

    def _commands(self, buffer: CommandBuffer) -> None:
        hazards = Hazards()
        place, memory = self._place, self._memory
        kernels: dict[KernelRecord, int] = {}
        commands: list[Command] = buffer.commands
        debug = buffer.debug
        sizes, used = self._sizes, self._used
        steps = self._linked.steps
        written = {memory[place[ref[0]][0]] for step in steps for ref in step.refs if ref[1] & WRITE}
        for linked in steps:
            refs = []
            for number, access, offset, length in linked.refs:
                slot, base = place[number]
                refs.append(Ref(slot, access, offset + base, length))
                used[slot] |= access
                if offset + base + length > sizes[slot]:
                    sizes[slot] = offset + base + length
            # who reads what nobody writes waits for nobody
            accesses = [(memory[r[0]], r[1], r[2], r[3]) for r in refs if memory.get(r[0]) in written]
            deps = hazards.depend(len(commands), accesses)
            if len(deps) > MAX_DEPS:
                hazards.barrier = len(commands)
                commands.append(Barrier())
                debug.append(DebugInfo())
                deps = hazards.depend(len(commands), accesses)
            commands.append(_command(linked, tuple(refs), tuple(deps), kernels))
            debug.append(self._linked.debug[linked.node])
        buffer.kernels = list(kernels)

    def _slots(self, buffer: CommandBuffer) -> None:
        linked = self._linked
        descs = [*buffer.inputs, *buffer.outputs]
        groups = {source: number + 1 for number, source in enumerate(sorted(set(linked.same.values())))}
        at = 0
        constants = iter(buffer.constants)
        for slot, size in enumerate(self._sizes):
            if slot < len(descs):
                group = groups.get(linked.same.get(slot, slot), 0)
                kind, alignment, value, length = SlotKind.ARGUMENT, descs[slot].dtype.size, 0, 0
            elif slot == len(descs) and self._arena_size:
                kind, group, alignment, value, length = SlotKind.ARENA, 0, ARENA_ALIGNMENT, 0, self._arena_size
            else:
                data = next(constants)
                kind, group, alignment, value, length = SlotKind.CONSTANT, 0, _CONSTANT_ALIGNMENT, at, len(data)
                at += -(-length // 8) * 8
            buffer.slots.append(Slot(kind, self._used[slot], group, alignment, size, value, length))


def _command(
    linked: LinkedStep, refs: tuple[Ref, ...], deps: tuple[int, ...], kernels: dict[KernelRecord, int]
) -> Command:
    step = linked.step
    if isinstance(step, Launch):
        return Dispatch(kernels.setdefault(step.record, len(kernels)), step.geometry, step.parameters, refs, deps)
    if isinstance(step, CopyBytes):
        return Copy(refs[0], refs[1], deps)
    return Fill(refs[0], step.pattern, deps)
