"""Writes the generated tables of docs/command-buffer.md from the layout table, the rules and the kernel table.

python scripts/format_docs.py            print what would be written, exit 1 when the document differs
python scripts/format_docs.py --write    write it
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from umd_core import dtypes
from umd_core.commands import READ, WRITE
from umd_core.encoding import layout
from umd_core.encoding.rules import RULES
from umd_core.kernels import KERNELS, PRIMITIVES, KernelRow, chain

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "command-buffer.md"
_BLOCK = re.compile(r"<!-- generated: (\w+) -->.*?<!-- end -->", re.DOTALL)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in lines)


def _record(record: layout.RecordLayout) -> str:
    rows = [(record.offsets[f.name], f.type.replace("6s", "u8[6]").replace("8s", "u8[8]"), f"`{f.name}`", f.meaning)
            for f in record.fields]  # fmt: skip
    return table(("at", "type", "field", "meaning"), rows)


def _sections() -> str:
    rows = [
        (int(s.kind), s.kind.name, s.stride, s.flags, "yes" if s.grows else "no", s.meaning)
        for s in layout.SECTIONS.values()
    ]
    return table(("kind", "section", "stride", "flags", "may grow", "content"), rows)


def _opcodes() -> str:
    names = {READ: "read", WRITE: "write"}
    rows = []
    for o in layout.OPCODES.values():
        refs = "the kernel's" if o.refs is None else ", ".join(names[access] for access in o.refs) or "-"
        length = f"{o.least}" if o.least == o.most else f"{o.least} or more"
        rows.append((int(o.opcode), o.opcode.name, refs, o.arg0 or "0", length, o.data or "-", o.meaning))
    return table(("op", "name", "refs", "`arg0`", "data bytes", "data", "meaning"), rows)


def _limits() -> str:
    service = dataclasses.asdict(layout.SERVICE_LIMITS)
    rows = [(f"`{name}`", value, service[name]) for name, value in dataclasses.asdict(layout.LIBRARY_LIMITS).items()]
    return table(("limit", "library", "service"), rows)


def _features() -> str:
    return table(("bit", "feature"), layout.INCOMPAT_FEATURES.items())


def _rules() -> str:
    return table(("rule", "section", "what holds"), [(f"`{r.id}`", r.section, r.text) for r in RULES.values()])


def _types() -> str:
    return table(("number", "type", "bytes"), [(d.code, d.name, d.size) for d in dtypes.ALL])


_SETS = {"ALL": dtypes.ALL, "NUMERIC": dtypes.NUMERIC, "FLOATS": dtypes.FLOATS, "INTEGERS": dtypes.INTEGERS,
         "INDEX": dtypes.INDEX, "BOOL": dtypes.BOOL}  # fmt: skip


def _sets() -> str:
    return table(("set", "types"), [(name, ", ".join(d.name for d in types)) for name, types in _SETS.items()])


def _set_name(types: tuple[dtypes.DType, ...]) -> str:
    return next((name for name, known in _SETS.items() if known == types), ", ".join(d.name for d in types))


def _row(row: KernelRow) -> str:
    lines = [f"{row.name} {row.abi} {row.digest:#018x}"]
    lines += [f"  type {name}: {_set_name(types)}" for name, types in row.types]
    lines += [f"  size {name}: {', '.join(map(str, allowed))}" for name, allowed in row.sizes]
    lines += [f"  extent {e.name}" + (f"[{e.size}]" if e.size else "") for e in row.extents]
    lines += [f"  operand {o.name} {o.access} {o.type}: {' '.join(o.box) or '-'}" for o in row.operands]
    for field in row.fields:
        kind = field.type + (f"[{field.size}]" if field.size else "")
        lines.append(f"  field {field.name} {kind}" + (" patchable" if field.patchable else ""))
    grid = row.grid or next(o.name for o in row.operands if o.writes)
    lines.append(f"  geometry {row.geometry}" + (f" {grid}" if row.geometry == "elements" else ""))
    groups = row.work or (tuple(e.name for e in row.extents),)
    lines.append("  work " + " + ".join(" ".join(group) for group in groups))
    lines += [f"  alias {written} {read}" for written, read in row.alias]
    marks = [name for name in ("atomic", "status") if getattr(row, name)]
    marks += [] if row.deterministic else ["nondeterministic"]
    return "\n".join(lines + [f"  {mark}" for mark in marks])


def _is_plain(row: KernelRow) -> bool:
    """Returns whether a row differs from the other elementwise ones only in what the table of these shows."""
    like = dataclasses.replace(
        KERNELS[("elementwise_add_kernel", 1)], name=row.name, abi=row.abi, types=row.types, operands=row.operands,
        alias=row.alias, program=row.program, mathematics=row.mathematics, tolerance=row.tolerance, source=row.source,
    )  # fmt: skip
    same = all(getattr(row, f.name) == getattr(like, f.name) for f in dataclasses.fields(KernelRow))
    return same and all(o.box == ("extents",) for o in row.operands)


def _elementwise() -> str:
    rows = []
    for row in filter(_is_plain, KERNELS.values()):
        types = "; ".join(f"{name}: {_set_name(allowed)}" for name, allowed in row.types) or "-"
        operands = ", ".join(f"{o.name} {o.access} {o.type}" for o in row.operands)
        aliases = ", ".join(f"{written} {read}" for written, read in row.alias) or "-"
        rows.append((f"`{row.name}`", row.abi, f"`{row.digest:#018x}`", types, operands, aliases))
    return table(("kernel", "abi", "digest", "types", "operands", "aliases"), rows)


def _kernels() -> str:
    return "```text\n" + "\n".join(_row(row) for row in KERNELS.values() if not _is_plain(row)) + "\n```"


def _primitives() -> str:
    rows = [
        (code, f"`{name}`", PRIMITIVES[name], "truth" if name in chain.TRUTHS else "number")
        for name, code in chain.CODES.items()
    ]
    return table(("token", "primitive", "arguments", "result"), rows)


GENERATORS: dict[str, Callable[[], str]] = {
    **{
        record.name: lambda record=record: _record(record)  # type: ignore[misc]  # bound now, not later
        for record in (
            layout.HEADER, layout.SECTION, layout.KERNEL, layout.SLOT, layout.COMMAND, layout.REF, layout.DEP,
            layout.EVENT, layout.LAUNCH, layout.PATCH, layout.DEBUG,
        )
    },
    "sections": _sections,
    "opcodes": _opcodes,
    "limits": _limits,
    "features": _features,
    "rules": _rules,
    "types": _types,
    "sets": _sets,
    "elementwise": _elementwise,
    "kernels": _kernels,
    "primitives": _primitives,
}  # fmt: skip


def generated(text: str) -> str:
    """Returns the document with every generated part made anew."""
    return _BLOCK.sub(lambda match: f"<!-- generated: {match[1]} -->\n\n{GENERATORS[match[1]]()}\n\n<!-- end -->", text)


def main(arguments: Sequence[str]) -> int:
    """Prints or writes the document; returns the exit code."""
    old = DOCUMENT.read_text(encoding="utf-8")
    new = generated(old)
    if "--write" in arguments:
        DOCUMENT.write_text(new, encoding="utf-8")
        return 0
    for name, make in GENERATORS.items():
        print(f"<!-- generated: {name} -->\n{make()}\n<!-- end -->\n")
    return int(old != new)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
