"""Values of a submission: written where the patches say, refused when they do not fit."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.buffer_builder import Build
from tests.core.encoding_samples import adamw_patched
from umd_core import dtypes
from umd_core.commands import READ, WRITE, CommandBuffer, Dispatch, Nop, Patch, PatchKind, Ref
from umd_core.encoding import PatchPlan, apply_patches, decode, encode
from umd_core.errors import DecodeError, InputCountError, LimitError, UnsupportedError
from umd_core.kernels import KERNELS
from umd_core.kernels.expressions import ROWS
from umd_core.kernels.row import Field

FIELDS = tuple(
    Field(name, kind, patchable=True) for name, kind in (("u", "u32"), ("w", "u64"), ("f", "f32"), ("d", "f64"))
)
ROW = dataclasses.replace(ROWS[0], name="test_patchable_kernel", fields=FIELDS)
RECORD = ROW.record([dtypes.float32], (1,))
KINDS = {"u": PatchKind.U32, "w": PatchKind.U64, "f": PatchKind.BITS32, "d": PatchKind.BITS64}


@pytest.fixture(autouse=True, scope="module")
def a_kernel_with_every_patchable_type() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(KERNELS, (ROW.name, ROW.abi), ROW)
        yield


def at(name: str) -> int:
    fields = RECORD.columns.fields
    assert fields is not None
    return 32 + int(fields[f"c{RECORD.index_of[name][0]}"][1])


def launches(count: int, patches: list[Patch]) -> CommandBuffer:
    build = Build()
    x, y = build.slot(), build.slot()
    parameters = {"extents": (4,), "x_offset": 0, "x_strides": (1,), "out_offset": 0, "out_strides": (1,)}
    block = RECORD.pack(**parameters, u=1, w=2, f=3.0, d=4.0)
    build.kernels[RECORD] = 0
    for _ in range(count):
        build.add(Dispatch(0, (1, 1, 1, 256, 1, 1, 0), block, (Ref(x, READ, 0, 16), Ref(y, WRITE, 0, 16))))
    return build.done(patches=patches)


def patch(command: int, name: str, symbol: int, addend: int = 0, kind: int | None = None) -> Patch:
    return Patch(command, at(name), KINDS[name] if kind is None else kind, symbol, addend)


def test_each_kind_is_written_into_its_field() -> None:
    patches = [patch(1, "u", 0, 5), patch(1, "w", 1, -3), patch(1, "f", 2), patch(1, "d", 3)]
    cb = decode(encode(launches(2, patches)))
    assert cb.patches == patches
    (single,) = struct.unpack("<I", struct.pack("<f", 1.25))
    (double,) = struct.unpack("<Q", struct.pack("<d", -2.5))
    blocks = PatchPlan(cb).apply([10, 2**64 - 1, single, double])
    assert list(blocks) == [1]
    values = RECORD.unpack(blocks[1])
    assert (values["u"], values["w"], values["f"], values["d"]) == (15, 2**64 - 4, 1.25, -2.5)
    assert values["extents"] == (4,)
    untouched = cb.commands[1]
    assert isinstance(untouched, Dispatch)
    assert RECORD.unpack(untouched.parameters)["u"] == 1


@pytest.mark.parametrize(
    ("name", "addend", "value", "word", "limit"),
    [
        ("u", 0, 2**32, 2**32, 2**32 - 1),
        ("u", 1, 2**32 - 1, 2**32, 2**32 - 1),
        ("u", -2, 1, -1, 2**32 - 1),
        ("w", 1, 2**64 - 1, 2**64, 2**64 - 1),
        ("w", -1, 0, -1, 2**64 - 1),
        ("f", 0, 2**32, 2**32, 2**32 - 1),
        ("d", 0, 2**64, 2**64, 2**64 - 1),
        ("d", 0, -1, -1, 2**64 - 1),
    ],
)
@pytest.mark.parametrize("fields", [1, 40])
def test_overflow_is_refused(name: str, addend: int, value: int, word: int, limit: int, fields: int) -> None:
    plan = PatchPlan(launches(fields, [patch(i, name, 0, addend) for i in range(fields)]))
    with pytest.raises(LimitError) as caught:
        plan.apply([value])
    facts = caught.value.facts()
    assert (facts["value"], facts["limit"]) == (word, limit)


def test_a_float_is_given_as_its_bits() -> None:
    with pytest.raises(LimitError, match="floats are given as their bits"):
        PatchPlan(launches(1, [patch(0, "d", 0)])).apply([0.5])  # type: ignore[list-item]  # a wrong value, on purpose


def test_the_number_of_values_is_that_of_the_patches() -> None:
    plan = PatchPlan(launches(1, [patch(0, "d", 2)]))
    assert plan.value_count == 3
    for count in (0, 2, 4):
        with pytest.raises(InputCountError) as caught:
            plan.apply([0] * count)
        assert (caught.value.got, caught.value.least, caught.value.most) == (count, 3, 3)
    assert PatchPlan(launches(1, [])).apply([]) == {}


@given(st.data())
def test_many_fields_are_written_as_one_by_one(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    values = data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=6, max_size=6))
    patches, expected = [patch(0, "d", 5)], {0: bytearray(unpatched())}
    struct.pack_into("<Q", expected[0], at("d") - 32, values[5])
    for command in range(count):
        for name in sorted(data.draw(st.sets(st.sampled_from("uwfd" if command else "uwf")))):
            symbol = data.draw(st.integers(0, 5))
            patches.append(patch(command, name, symbol))
            block = expected.setdefault(command, bytearray(unpatched()))
            struct.pack_into("<Q" if name in "wd" else "<I", block, at(name) - 32, values[symbol])
    cb = decode(encode(launches(count, patches)))
    assert apply_patches(cb, values) == {command: bytes(block) for command, block in expected.items()}


def unpatched() -> bytes:
    (command,) = launches(1, []).commands
    assert isinstance(command, Dispatch)
    return command.parameters


def test_patches_meet_fields_of_their_kind_only() -> None:
    wrong = [("u", PatchKind.U64), ("w", PatchKind.U32), ("f", PatchKind.U32), ("d", PatchKind.U64)]
    wrong += [("u", PatchKind.BITS64), ("w", PatchKind.BITS32), ("f", PatchKind.BITS64), ("d", PatchKind.BITS32)]
    for name, kind in wrong:
        with pytest.raises(DecodeError, match="patch-kind"):
            decode(encode(launches(1, [patch(0, name, 0, kind=kind)])))
    for name, kind in (("u", PatchKind.BITS32), ("w", PatchKind.BITS64)):
        assert decode(encode(launches(1, [patch(0, name, 0, kind=kind)]))).patches


def test_order_of_patches_does_not_matter() -> None:
    patches = [patch(1, "u", 0), patch(0, "d", 1), patch(0, "u", 2), patch(1, "f", 3)]
    cb = launches(2, patches)
    decoded = decode(encode(cb))
    assert decoded.patches == sorted(patches)
    assert PatchPlan(decoded).apply([1, 2, 3, 4]) == PatchPlan(cb).apply([1, 2, 3, 4])


def test_only_dispatches_are_patched() -> None:
    with pytest.raises(UnsupportedError, match="command 0 is no dispatch"):
        PatchPlan(CommandBuffer(commands=[Nop()], patches=[Patch(0, 32, PatchKind.U32, 0)]))


def test_adamw_constants() -> None:
    cb = decode(encode(adamw_patched()))
    bits = [struct.unpack("<Q", struct.pack("<d", v))[0] for v in (0.5, 0.25, 1e-3, 0.125)]
    blocks = PatchPlan(cb).apply(bits)
    record = cb.kernels[0]
    second = record.unpack(blocks[1])
    assert [second[n] for n in ("beta1", "beta2", "epsilon", "weight_decay")] == [0.5, 0.25, 1e-3, 0.125]
    first = record.unpack(blocks[0])
    assert [first[n] for n in ("beta1", "beta2", "epsilon", "weight_decay")] == [0.9, 0.999, 1e-8, 0.25]
