"""docs/command-buffer.md agrees with the code, and says enough: digests and layouts computed from its text alone."""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest

from tests.core.encoding_samples import add
from umd_core.commands import Dispatch
from umd_core.encoding.layout import SECTIONS, SectionKind
from umd_core.encoding.rules import RULES
from umd_core.kernels import KERNELS

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "command-buffer.md").read_text(encoding="utf-8")


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


format_docs = load(ROOT / "scripts" / "format_docs.py")


def part(name: str) -> str:
    found = re.search(rf"<!-- generated: {name} -->\n(.*?)<!-- end -->", TEXT, re.DOTALL)
    assert found, name
    return found[1].strip()


def rows_of(name: str) -> list[list[str]]:
    lines = part(name).splitlines()[2:]
    return [[cell.strip().strip("`") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


@pytest.mark.parametrize("name", format_docs.GENERATORS)
def test_generated_parts_are_up_to_date(name: str) -> None:
    assert part(name) == format_docs.GENERATORS[name](), "run python scripts/format_docs.py --write"


def test_nothing_else_is_marked_as_generated() -> None:
    assert set(re.findall(r"<!-- generated: (\w+) -->", TEXT)) == set(format_docs.GENERATORS)
    assert format_docs.generated(TEXT) == TEXT


def test_rules_that_the_text_names_exist() -> None:
    prose = re.sub(r"<!-- generated.*?<!-- end -->", "", TEXT, flags=re.DOTALL)
    named = {name for name in re.findall(r"`([a-z]+(?:-[a-z]+)+)`", prose) if name != "like-this"}
    assert named
    assert named <= set(RULES)


def test_every_section_has_its_chapter() -> None:
    headings = " ".join(re.findall(r"^## (.*)$", TEXT, flags=re.MULTILINE))
    for kind in SECTIONS:
        assert SectionKind(kind).name in headings


# what a reader of the page alone would compute


@dataclass
class Row:
    """A kernel row as the page states it."""

    digest: int
    types: list[str] = field(default_factory=list)
    sizes: dict[str, list[int]] = field(default_factory=dict)
    extents: dict[str, str] = field(default_factory=dict)
    operands: list[tuple[str, str, list[str]]] = field(default_factory=list)
    fields: list[tuple[str, str, str, bool]] = field(default_factory=list)

    def field_types(self) -> list[tuple[str, str, list[str]]]:
        """Returns (name, element type, array length as a list of sizes and numbers; [] for a single one)."""
        found: list[tuple[str, str, list[str]]] = [(name, "u32", []) for name in self.sizes]
        found += [(name, "u64", [size] if size else []) for name, size in self.extents.items()]
        for name, _, box in self.operands:
            found.append((f"{name}_offset", "i64", []))
            if box:
                sizes = [self.extents[extent] for extent in box if self.extents[extent]]
                singles = len(box) - len(sizes)
                found.append((f"{name}_strides", "i64", sizes + ([str(singles)] if singles else [])))
        return found + [(name, kind, [size] if size else []) for name, kind, size, _ in self.fields]

    def layout(self, sizes: dict[str, int]) -> tuple[int, dict[str, int]]:
        """Returns the size of the parameter block and the offset of each field."""
        at, offsets = 0, {}
        for name, kind, length in self.field_types():
            width = int(kind[1:]) // 8
            count = sum(sizes[part] if part in sizes else int(part) for part in length) if length else 1
            at += -at % width
            offsets[name] = at
            at += width * count
        return at + -at % 8, offsets


def stated_rows() -> dict[tuple[str, int], Row]:
    found: dict[tuple[str, int], Row] = {}
    for name, abi, digest, types, operands, _ in rows_of("elementwise"):
        row = found[(name, int(abi))] = Row(int(digest, 16), sizes={"rank": [1, 4, 8]}, extents={"extents": "rank"})
        row.types = re.findall(r"(\w+):", types)
        row.operands = [(*o.split()[:2], ["extents"]) for o in operands.split(", ")]  # type: ignore[misc]  # a stand-in row
    for line in part("kernels").splitlines()[1:-1]:
        if not line.startswith(" "):
            name, abi, digest = line.split()
            row = found[(name, int(abi))] = Row(int(digest, 16))
            continue
        word, rest = line.split(maxsplit=1) if " " in line.strip() else (line.strip(), "")
        if word == "type":
            row.types.append(rest.partition(":")[0])
        elif word == "size":
            size, _, allowed = rest.partition(": ")
            row.sizes[size] = [int(number) for number in allowed.split(", ")]
        elif word == "extent":
            extent, _, size = rest.partition("[")
            row.extents[extent] = size.rstrip("]")
        elif word == "operand":
            head, _, box = rest.partition(": ")
            operand, access, _ = head.split()
            row.operands.append((operand, access, [] if box == "-" else box.split()))
        elif word == "field":
            kind, *patchable = rest.split()[1:]
            base, _, size = kind.partition("[")
            row.fields.append((rest.split()[0], base, size.rstrip("]"), bool(patchable)))
    return found


STATED = stated_rows()


def test_the_page_has_every_row() -> None:
    assert STATED.keys() == KERNELS.keys()


@pytest.mark.parametrize("key", KERNELS, ids=lambda key: key[0])
def test_digest_from_the_page_alone(key: tuple[str, int]) -> None:
    row = STATED[key]
    lines = [f"{key[0]} {key[1]}", *(f"type {name}" for name in row.types)]
    lines += [f"binding {name} {access}" for name, access, _ in row.operands]
    for name, kind, length in row.field_types():
        lines.append(f"field {name} {kind}" + (f"[{'+'.join(length)}]" if length else ""))
    digest = hashlib.sha256("".join(line + "\n" for line in lines).encode()).digest()
    assert int.from_bytes(digest[:8], "little") == row.digest == KERNELS[key].digest


@pytest.mark.parametrize("key", KERNELS, ids=lambda key: key[0])
def test_parameter_layout_from_the_page_alone(key: tuple[str, int]) -> None:
    row = STATED[key]
    for lengths in itertools.product(*row.sizes.values()):
        record = KERNELS[key].record([allowed[0] for _, allowed in KERNELS[key].types], lengths)
        size, offsets = row.layout(dict(zip(row.sizes, lengths, strict=True)))
        fields = record.columns.fields
        assert fields is not None
        assert size == record.size
        assert offsets == {name: fields[f"c{index}"][1] for name, (index, _) in record.index_of.items()}
        stated = {
            offsets[name] + byte
            for name, kind, length, patchable in row.fields
            if patchable and not length
            for byte in range(int(kind[1:]) // 8)
        }
        assert stated == record.patchable


def test_the_example_of_a_parameter_block_is_what_is_encoded() -> None:
    block = re.search(r"rank 1 over 300 floats in a row:\n\n(.*?)\n\n#", TEXT, re.DOTALL)
    assert block
    expected = bytearray(64)
    for line in block[1].splitlines()[1:]:
        at, kind, *_, value = line.split()
        if kind != "(padding)":
            struct.pack_into({"u32": "<I", "u64[1]": "<Q"}.get(kind, "<q"), expected, int(at), int(value))
    (command,) = add().commands
    assert isinstance(command, Dispatch)
    assert command.parameters == bytes(expected)
