"""The short way for one op that is one launch: straight from its recipe to a command buffer.

Eager front ends translate single ops by the thousand. The bytes are those that the general way (linking, planning,
dependencies) gives; a test compares the two for every op.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from umd_core.commands import CommandBuffer, DebugInfo, Dispatch, Ref, Slot, SlotKind
from umd_core.ir import TensorDesc
from umd_core.ops import op_template
from umd_core.recipes import Recipe, Recipes
from umd_core.recorder import Launch
from umd_core.views import View, is_dense


def translate_single(
    op: str, inputs: Sequence[Any], attributes: Mapping[str, Any], recipes: Recipes
) -> CommandBuffer | None:
    """Returns the command buffer of an op that is one launch over its inputs and outputs; None if it is not.

    Raises:
        UmdError: the op refuses its inputs.
    """
    template = op_template(op)
    if template.has_static or not template.results or template.results[-1].variadic:
        return None
    descs = tuple([x if type(x) is TensorDesc else TensorDesc.of(x) for x in inputs if x is not None])
    if len(descs) != len(inputs):
        return None
    views = [View(i, d.dtype, d.shape, d.strides, d.element_offset) for i, d in enumerate(descs)]
    wanted = tuple([True for result in template.results if not result.optional]) or (True,)
    recipe = recipes.get(op, attributes, views, (), wanted)
    slots = _output_slots(recipe, len(descs), len(wanted))
    if slots is None:
        return None
    step = recipe.steps[0]
    if type(step) is not Launch:
        return None
    return _command_buffer(op, step, descs, recipe.descs[: len(wanted)], slots)


def _output_slots(recipe: Recipe, first: int, count: int) -> dict[int, int] | None:
    """Returns the slot of each new buffer when these are just the outputs, each in one of its own, row-major."""
    if len(recipe.steps) != 1 or recipe.constants or len(recipe.sizes) != count:
        return None
    slots = {}
    for slot, view in enumerate(recipe.outputs[:count], first):
        if view is None or view.offset or view.buffer not in recipe.sizes or not is_dense(view):
            return None
        if recipe.sizes[view.buffer] != view.size * view.dtype.size:
            return None
        slots[view.buffer] = slot
    return slots if len(slots) == count else None


def _command_buffer(
    op: str, step: Launch, inputs: tuple[TensorDesc, ...], outputs: tuple[TensorDesc, ...], slot_of: Mapping[int, int]
) -> CommandBuffer:
    descs = inputs + outputs
    sizes, used = [0] * len(descs), [0] * len(descs)
    refs = []
    for buffer, access, offset, length in step.refs:
        slot = slot_of.get(buffer, buffer)
        if slot < len(inputs):
            offset += inputs[slot].element_offset * inputs[slot].dtype.size
        refs.append(Ref(slot, access, offset, length))
        used[slot] |= access
        sizes[slot] = max(sizes[slot], offset + length)
    kind = SlotKind.ARGUMENT
    return CommandBuffer(
        [step.record],
        [Slot(kind, used[i], 0, d.dtype.size, sizes[i], 0, 0) for i, d in enumerate(descs)],
        [Dispatch(0, step.geometry, step.parameters, tuple(refs))],
        debug=[DebugInfo(op)],
        inputs=inputs,
        outputs=outputs,
    )
