"""The public Hypothesis strategies give what they promise."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from tests.core.device_samples import bound, contents, example_device
from umd_core import dtypes
from umd_core.commands import CommandBuffer, Copy, Dispatch, Mark, SlotKind
from umd_core.device.tensor import strided
from umd_core.encoding import decode
from umd_core.errors import DecodeError, IndexRangeError
from umd_core.ir import TensorDesc
from umd_core.kernels import BY_NAME
from umd_core.ops import OPS
from umd_core.testing import strategies as us
from umd_core.testing.harness import check_launch, fails_with_index_error
from umd_core.testing.requests import requestable

DEVICE = example_device()


@given(us.tensor_descs())
def test_descriptions_lie_inside_their_bytes(desc: TensorDesc) -> None:
    low, high = desc.span()
    assert 0 <= low <= high == desc.byte_size
    flat = np.zeros(desc.byte_size, np.uint8)
    if desc.element_count:
        strided(flat, desc)[...] = 1
        size = desc.dtype.size
        assert np.count_nonzero(flat.reshape(-1, size).any(axis=1)) == desc.element_count


@given(us.tensor_descs().flatmap(lambda desc: st.tuples(st.just(desc), us.arrays(desc))))
def test_arrays_are_as_described(pair: tuple[TensorDesc, np.ndarray]) -> None:
    desc, array = pair
    assert (array.shape, array.dtype) == (desc.shape, desc.dtype.numpy)
    if array.size:
        seen = TensorDesc.of(array)
        moved = [i for i, extent in enumerate(desc.shape) if extent > 1]
        assert [seen.strides[i] for i in moved] == [desc.strides[i] for i in moved]


@given(us.launches(supports=DEVICE.caps().supports))
def test_launches_run(launch: us.Launch) -> None:
    assert not fails_with_index_error(launch)
    check_launch(DEVICE, launch)


@given(us.command_buffers())
def test_command_buffers_encode_and_decode(command_buffer: CommandBuffer) -> None:
    raw = bytes(command_buffer)
    again = decode(raw)
    assert again.commands == command_buffer.commands
    assert again.slots == command_buffer.slots


@given(us.command_buffers(rows=[row for row in BY_NAME.values() if row.level == 0 and not row.status]))
def test_command_buffers_run_inside_red_zones(command_buffer: CommandBuffer) -> None:
    sizes = [slot.min_size for slot in command_buffer.slots if slot.kind == SlotKind.ARGUMENT]
    fence = DEVICE.fence()
    zones = [np.full(size + 64, 0xA5, np.uint8) for size in sizes]
    bindings = [b._replace(offset=32, size=b.size - 64) for b in bound(DEVICE, *zones)]
    signals = [(fence, number + 1) for number in range(len(command_buffer.events))]
    program = DEVICE.load(bytes(command_buffer))
    DEVICE.submit(program, bindings, signals=signals).wait()
    for binding in bindings:
        whole = contents(DEVICE, binding._replace(offset=0, size=binding.size + 64))
        assert whole[:32] + whole[-32:] == b"\xa5" * 64
        DEVICE.free(binding.buffer)


@pytest.mark.parametrize(
    "wanted",
    [
        lambda cb: any(isinstance(c, Dispatch) for c in cb.commands) and any(isinstance(c, Copy) for c in cb.commands),
        lambda cb: any(isinstance(c, Mark) and c.label for c in cb.commands),
        lambda cb: cb.events and cb.constants,
        lambda cb: any(c.deps for c in cb.commands),
        lambda cb: cb.arena_size > 0,
        lambda cb: cb.flags,
    ],
    ids=["dispatch and copy", "label", "events and constants", "dependencies", "arena", "flags"],
)
def test_command_buffers_are_varied(wanted: object) -> None:
    find(us.command_buffers(), wanted, settings=settings(max_examples=500, suppress_health_check=list(HealthCheck)))  # type: ignore[arg-type]  # HealthCheck is iterable


@given(us.mutated())
def test_mutations_keep_the_checksums(raw: bytes) -> None:
    """What refuses a mutation is never a checksum, and what accepts it gives the same bytes back."""
    try:
        decoded = decode(raw)
    except DecodeError as error:
        assert "crc" not in error.rule
    else:
        assert bytes(CommandBuffer.__bytes__(decoded)) == raw


@given(us.mutated(max_changes=1))
@settings(max_examples=150)
def test_mutations_that_decode_touch_nothing_outside(raw: bytes) -> None:
    try:
        program = DEVICE.load(raw)
    except Exception as error:  # noqa: BLE001  # the type is what is checked
        assert type(error).__module__ == "umd_core.errors"
        return
    slots = [slot for slot in program.command_buffer.slots if slot.kind == SlotKind.ARGUMENT]
    if program.handles or sum(slot.min_size for slot in slots) > 1 << 20:
        return
    offset = max([64, *(slot.alignment for slot in slots)])
    bindings = bound(DEVICE, *[np.full(slot.min_size + 2 * offset, 0xA5, np.uint8) for slot in slots])
    inner = [b._replace(offset=offset, size=b.size - 2 * offset) for b in bindings]
    fence = DEVICE.fence()
    signals = [(fence, number + 1) for number in range(program.signal_count)]
    with contextlib.suppress(IndexRangeError):  # drawn indices may be out of range
        DEVICE.submit(program, inner, signals=signals).wait()
    for binding in bindings:
        memory = bytes(binding.buffer.memory)
        assert memory[:offset] + memory[-offset:] == b"\xa5" * (2 * offset)
        DEVICE.free(binding.buffer)


def test_mutations_find_rules() -> None:
    rules = set()
    raw = st.just(bytes(find(us.command_buffers(), lambda cb: any(isinstance(c, Dispatch) for c in cb.commands))))

    def note(mutation: bytes) -> bool:
        try:
            decode(mutation)
        except DecodeError as error:
            rules.add(error.rule)
        return False

    with pytest.raises(NoSuchExample):
        find(us.mutated(raw), note, settings=settings(max_examples=400, database=None, derandomize=True))
    assert len(rules) > 12


@given(us.op_requests())
@settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
def test_op_requests_translate(request: us.OpRequest) -> None:
    command_buffer = request.translate()
    assert len(command_buffer.inputs) <= len(request.inputs)
    assert command_buffer.outputs


def test_most_ops_can_be_requested() -> None:
    assert {"Add", "Relu", "Where", "Conv", "Softmax", "umd.ReluGrad"} <= set(requestable())
    assert len(requestable()) > len(OPS) / 2


@given(st.data(), us.shapes(max_rank=3), us.dtypes(dtypes.FLOATS))
def test_strides_give_distinct_elements(data: st.DataObject, shape: tuple[int, ...], dtype: dtypes.DType) -> None:
    steps = data.draw(us.strides(shape))
    places = {sum(i * s for i, s in zip(e, steps, strict=True)) for e in np.ndindex(shape)}
    assert len(places) == int(np.prod(shape))
    assert dtype.is_float
