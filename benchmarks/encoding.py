"""The encoded form: encode, validate, decode, patch per command at three sizes; hostile shapes per byte."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import pickle
from collections.abc import Callable
from typing import Any

from measure import interleaved, report

from umd_core.commands import (
    READ,
    WRITE,
    Barrier,
    Command,
    CommandBuffer,
    Copy,
    Dispatch,
    Nop,
    Patch,
    PatchKind,
    Ref,
    Slot,
    SlotKind,
)
from umd_core.dtypes import float32
from umd_core.encoding import LIBRARY_LIMITS, decode, encode, validate
from umd_core.encoding.bulk import FEWEST, Bulk
from umd_core.encoding.decode import check_tables
from umd_core.encoding.patch import PatchPlan
from umd_core.encoding.structure import check_structure
from umd_core.encoding.tables import resolve_kernels
from umd_core.errors import DecodeError
from umd_core.kernels import BY_NAME, KernelRecord

ELEMENTS, BYTES = 1024, 4096
NAMES = ("add", "sub", "mul", "div", "max", "min", "pow", "mod")
GOALS = {"encode": 3.0, "structure": 1.5, "all rules": 6.0}
GOALS_LARGE = {"encode": 3.0, "structure": 0.15, "all rules": 1.5}


def chain(count: int, kinds: int, *, distinct: bool = False) -> CommandBuffer:
    """Returns `count` dispatches of `kinds` kernels, three refs and a dependency each.

    Dispatches of one kernel have the same parameters or, when `distinct`, up to 256 different ones.
    """
    records = [BY_NAME[f"elementwise_{name}_kernel"].record([float32], (1,)) for name in NAMES[:kinds]]
    offsets = dict.fromkeys(("a_offset", "b_offset", "out_offset"), 0)
    strides = dict.fromkeys(("a_strides", "b_strides", "out_strides"), (1,))
    sizes = [ELEMENTS - i for i in range(ELEMENTS // 4)] if distinct else [ELEMENTS]
    parameters = [[r.pack(extents=(size,), **offsets, **strides) for size in sizes] for r in records]
    launch = (ELEMENTS // 256, 1, 1, 256, 1, 1, 0)
    slots = [
        Slot(SlotKind.ARGUMENT, READ, 0, 4, BYTES, 0, 0),
        Slot(SlotKind.ARENA, READ | WRITE, 0, 256, 3 * BYTES, 0, 3 * BYTES),
    ]
    commands: list[Command] = []
    for i in range(count):
        refs = (
            Ref(0, READ, 0, BYTES),
            Ref(1, READ, i % 3 * BYTES, BYTES),
            Ref(1, WRITE, (i + 1) % 3 * BYTES, BYTES),
        )
        block = parameters[i % kinds][i // kinds % len(sizes)]
        commands.append(Dispatch(i % kinds, launch, block, refs, (i - 1,) if i else ()))
    return CommandBuffer(kernels=records, slots=slots, commands=commands)


def check_only_structure(raw: bytes) -> None:
    """Checks everything but rule 7."""
    tables = check_tables(raw, LIBRARY_LIMITS)
    if tables.frame.command_count < FEWEST:
        check_structure(tables)
    else:
        first = Bulk(tables).first_dispatches()
        assert first is not None
        resolve_kernels(tables, first)


def per_command() -> list[list[object]]:
    """Returns the rows per command, in microseconds."""
    rows: list[list[object]] = []
    for count, kinds in ((32, 4), (100, 4), (1000, 1), (1000, 8), (10_000, 1), (10_000, 8)):
        cb = chain(count, kinds)
        raw = encode(cb)
        other = encode(chain(count, kinds, distinct=True))
        pickled = pickle.dumps(cb.commands, protocol=5)
        works: dict[str, Callable[[], object]] = {
            "encode": lambda cb=cb: encode(cb),  # type: ignore[misc]  # the default binds the loop's value
            "structure": lambda raw=raw: check_only_structure(raw),  # type: ignore[misc]  # the default binds the loop's value
            "all rules": lambda raw=raw: validate(raw),  # type: ignore[misc]  # the default binds the loop's value
            "all rules, parameters differ": lambda raw=other: validate(raw),  # type: ignore[misc]  # the default binds the loop's value
            "decode": lambda raw=raw: decode(raw),  # type: ignore[misc]  # the default binds the loop's value
            "pickle.dumps": lambda cb=cb: pickle.dumps(cb.commands, protocol=5),  # type: ignore[misc]  # the default binds the loop's value
            "pickle.loads": lambda p=pickled: pickle.loads(p),  # type: ignore[misc]  # the default binds the loop's value
        }
        if importlib.util.find_spec("msgspec"):
            msgpack = importlib.import_module("msgspec.msgpack")
            works["msgspec"] = lambda cb=cb, m=msgpack: m.encode(cb.commands)  # type: ignore[misc]  # the default binds the loop's value
        times = interleaved(works, number=max(5, 20_000 // count), repeat=7)
        goals = GOALS if count < 1000 else GOALS_LARGE
        for name, seconds in times.items():
            rows.append([f"{count} commands, {kinds} kernels: {name}", seconds / count * 1e6, goals.get(name, "")])
        if "msgspec" not in works:
            rows.append([f"{count} commands, {kinds} kernels: msgspec", "not installed", ""])
    return rows


def patches() -> list[list[object]]:
    """Returns the rows per patched field, in microseconds."""
    rows: list[list[object]] = []
    for count in (10, 100, 1000):
        cb = updates(count)
        plan = PatchPlan(cb)
        values = list(range(plan.value_count))
        times = interleaved({"patch": lambda p=plan, v=values: p.apply(v)}, number=2000 // count, repeat=9)  # type: ignore[misc]  # the default binds the loop's value
        fields = len(cb.patches)
        rows.append([f"{fields} patched fields of {count} commands", times["patch"] / fields * 1e6, 0.06])
    return rows


def updates(count: int) -> CommandBuffer:
    """Returns `count` AdamW updates whose four constants are values of the submission."""
    record: KernelRecord = BY_NAME["adamw_kernel"].record([float32], (1,))
    flat: dict[str, Any] = {"extents": (ELEMENTS,), "decoupled": 1}
    for operand in record.row.operands:
        flat[f"{operand.name}_offset"] = 0
        flat[f"{operand.name}_strides"] = (1,)
    flat |= dict.fromkeys(("beta1", "beta2", "epsilon", "weight_decay"), 0.0)
    parameters = record.pack(**flat)
    offsets = sorted(at for at in record.patchable if at % 8 == 0)
    slots = [Slot(SlotKind.ARGUMENT, 3, 0, 4, BYTES if i < 4 else 4, 0, 0) for i in range(6)]
    refs = tuple(Ref(i, 3 if i in (0, 2, 3) else 1, 0, BYTES if i < 4 else 4) for i in range(6))
    command = Dispatch(0, (ELEMENTS // 256, 1, 1, 256, 1, 1, 0), parameters, refs)
    values = [Patch(c, 32 + at, PatchKind.BITS64, symbol) for c in range(count) for symbol, at in enumerate(offsets)]
    return CommandBuffer(kernels=[record], slots=slots, commands=[command] * count, patches=values)


def hostile() -> list[list[object]]:
    """Returns the rows for shapes that try to cost more than their bytes, in nanoseconds a byte."""
    slots = [Slot(SlotKind.ARENA, 3, 0, 256, 16, 0, 16)]
    copy = Copy(Ref(0, WRITE, 0, 8), Ref(0, READ, 8, 8))
    shapes: dict[str, CommandBuffer] = {
        "NOPs": CommandBuffer(commands=[Nop()] * 120_000),
        "copies": CommandBuffer(slots=slots, commands=[copy] * 50_000),
        "barriers of 32 deps": CommandBuffer(commands=[*[Nop()] * 32, *[Barrier(tuple(range(32)))] * 25_000]),
        "valid dispatches": chain(16_000, 8),
    }
    rows: list[list[object]] = []
    for name, cb in shapes.items():
        raw = encode(cb)
        rows.append([f"{name}, {len(raw) / 1e6:.1f} MB: decode", _per_byte(raw), ""])
    late = bytearray(encode(chain(16_000, 8)))
    rows.append(["dispatches, the last one wrong", _per_byte(spoil_last(bytes(late))), ""])
    return rows


def spoil_last(raw: bytes) -> bytes:
    """Returns the buffer with a wrong launch block in its last dispatch and valid checksums."""
    cb = decode(raw)
    last = cb.commands[-1]
    assert isinstance(last, Dispatch)
    cb.commands[-1] = last._replace(launch=(9, 1, 1, 256, 1, 1, 0))
    return encode(cb)


def _per_byte(raw: bytes) -> float:
    def work() -> None:
        with contextlib.suppress(DecodeError):  # refusing is what is measured
            decode(raw)

    return interleaved({"decode": work}, repeat=3)["decode"] / len(raw) * 1e9


if __name__ == "__main__":
    report("encoding", "Encoded form, µs a command", ("work", "µs", "goal"), per_command())
    report("encoding-patches", "Values at submission, µs a field", ("work", "µs", "goal"), patches())
    report("encoding-hostile", "Hostile shapes, ns a byte", ("shape", "ns", ""), hostile())
