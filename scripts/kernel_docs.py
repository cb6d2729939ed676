"""Writes docs/kernels.md, one section a kernel, from the kernel table and the decompositions.

python scripts/kernel_docs.py            exit 1 when the document differs
python scripts/kernel_docs.py --write    write it
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from umd_core import dtypes
from umd_core.decompositions import DECOMPOSITIONS
from umd_core.dtypes import DType
from umd_core.kernels import BY_NAME, PRIMITIVES, Extent, KernelRow, Operand, chain
from umd_core.kernels.expressions import infix

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "kernels.md"
LEAD = """# Kernels

Generated from the kernel table by `python scripts/kernel_docs.py --write`; do not edit. `umd kernels NAME` shows a
section of it on the command line.

A kernel runs over named **extents**. Each **operand** is a strided box over some of them: with index e in the box, its
element lies `{name}_offset` + the sum of e · `{name}_strides` elements into the operand's range. Extents that a launch
does not need are 1, with stride 0. A launch touches, of each operand, the bytes from the lowest to the highest of these
elements, and nothing else; they must lie inside the range that the command names. Elements of a written operand are
distinct, unless the kernel is **atomic**.

The parameter block holds the fields in the order given, each at its natural alignment, little-endian, padded with zeros
to a multiple of 8 bytes. The leading u32 fields are array lengths. **Patchable** fields may be given anew with each
submission.

Kernels of level 0 suffice for every op. A kernel of level 1 has a decomposition, which the translator uses where a
device lacks it. **Tolerance** is how far a result may be from a float64 computation, in epsilons of its type, relative
to the larger of the result and the numbers that it is formed of.

float16 and bfloat16 are computed in float32 and rounded once. Integers wrap. Any non-zero bool byte is true. Where an
index can be out of range the kernel has a **status** word: the command fails with the index, and nothing is read or
written there.
"""
EDGES = """At the edges:

- integer `div` truncates; x/0 is 0, and the least integer / -1 is itself; `mod` takes the divisor's sign, `fmod` the
  dividend's, and x mod 0 is 0 for integers
- `max` and `min` give NaN when an argument is NaN
- `pow` of integers wraps; a negative exponent gives 0 unless the base is 1 or -1
- `round` rounds half to even
- `cast` from float to integer truncates toward zero and saturates, NaN becomes 0; between integers it wraps; to bool it
  is `!= 0`
- `select` takes condition, a, b"""
_SETS = {
    dtypes.ALL: "every type", dtypes.NUMERIC: "every number type", dtypes.FLOATS: "every float",
    dtypes.INTEGERS: "every integer",
}  # fmt: skip
_ACCESS = {"r": "read", "w": "written", "rw": "read and written"}


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in lines)


def _types(allowed: tuple[DType, ...]) -> str:
    return _SETS.get(allowed) or ", ".join(d.name for d in allowed)


def _span(row: KernelRow, operand: Operand) -> str:
    """Returns the formula of an operand's touched bytes."""
    if not operand.box:
        return f"1 element at {operand.name}_offset"
    return f"from min to max of {operand.name}_offset + Σ e · {operand.name}_strides, e in {' × '.join(operand.box)}"


def _extent(extent: Extent) -> str:
    return f"`{extent.name}[{extent.size}]`" if extent.size else f"`{extent.name}`"


def section(row: KernelRow) -> str:
    """Returns the section of one kernel."""
    patchable = {item.name for item in row.fields if item.patchable}
    facts = [f"family {row.family}", f"geometry {row.geometry}", f"tolerance {row.tolerance:g}"]
    facts += [word for word, holds in (("atomic", row.atomic), ("status word", row.status)) if holds]
    facts += [] if row.deterministic else ["not deterministic"]
    parts = [f"### {row.name}", f"{row.mathematics}.", f"abi {row.abi}; {'; '.join(facts)}."]
    if row.family == "expression":
        parts.append(f"Program: `{row.program}`, that is {infix(row.program)}.")
    if row.family == "chain":
        parts.append((inspect.getdoc(chain) or "").partition("\n\n")[2])
    types = ", ".join(f"{name}: {_types(allowed)}" for name, allowed in row.types)
    sizes = ", ".join(f"{name} in {list(allowed)}" for name, allowed in row.sizes)
    parts.append(f"Types: {types}." + (f" Sizes: {sizes}." if sizes else ""))
    if row.extents:
        parts.append(f"Extents: {', '.join(_extent(extent) for extent in row.extents)}.")
    rows = [(f"`{o.name}`", _ACCESS[o.access], o.type, _span(row, o)) for o in row.operands]
    parts.append(table(("operand", "access", "type", "elements touched"), rows))
    fields = [(f"`{name}`", kind, "patchable" if name in patchable else "") for name, kind in row.field_types()]
    parts.append(table(("parameter", "type", ""), fields))
    if row.alias:
        pairs = ", ".join(f"`{written}` with `{read}`" for written, read in row.alias)
        parts.append(f"May be exactly the same elements: {pairs}.")
    if row.name in DECOMPOSITIONS:
        doc = (inspect.getdoc(DECOMPOSITIONS[row.name]) or "").splitlines()[0]
        parts.append(f"Decomposition: {doc.removeprefix('Records ')}")
    return "\n\n".join(parts)


def document() -> str:
    """Returns the whole document."""
    rows = sorted(BY_NAME.values(), key=lambda row: (row.level, row.family != "expression", row.family))
    parts = [LEAD.rstrip()]
    for level in (0, 1):
        parts.append(f"## Level {level}")
        own = [row for row in rows if row.level == level]
        parts.append(table(("kernel", "what it computes"), [(f"[{r.name}](#{r.name})", r.mathematics) for r in own]))
        parts += [section(row) for row in own]
    primitives = ", ".join(f"`{name}` ({count})" for name, count in PRIMITIVES.items())
    parts.append(f"## Scalar primitives\n\nWith their argument counts: {primitives}.\n\n{EDGES}")
    return "\n\n".join(parts) + "\n"


def main() -> int:
    """Writes or compares the document."""
    text = document()
    if "--write" in sys.argv[1:]:
        DOCUMENT.write_text(text, encoding="utf-8")
        return 0
    same = DOCUMENT.exists() and DOCUMENT.read_text(encoding="utf-8") == text
    print("docs/kernels.md is up to date" if same else "docs/kernels.md differs: run with --write")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
