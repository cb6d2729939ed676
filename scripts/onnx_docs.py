"""Writes the table of docs/onnx.md from tests/onnx/suite.json, which says what became of each of the standard's cases.

python scripts/onnx_docs.py             exit 1 when the table differs
python scripts/onnx_docs.py --write     write the table
python scripts/onnx_docs.py --record    run the suite on sim:0, write suite.json and the table
"""

from __future__ import annotations

import datetime
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from umd_core.registry import open_device
from umd_onnx.suite import KINDS, cases, outcome

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT, RECORD = ROOT / "docs" / "onnx.md", ROOT / "tests" / "onnx" / "suite.json"
START, END = "<!-- suite: written by scripts/onnx_docs.py -->", "<!-- end of suite -->"
HEADINGS = {
    "device": "on the device",
    "host": "settled while importing",
    "reference": "by ONNX's reference",
    "refused": "refused",
    "wrong": "differs",
}


def record() -> None:
    """Runs the suite and writes what became of each case; those that ran on the device are only counted."""
    families: dict[str, Counter[str]] = {}
    ordinary: Counter[str] = Counter()
    others: dict[str, str] = {}
    with_device = open_device("sim:0")
    for case in (case for kind in KINDS for case in cases(kind)):
        found = str(outcome(case, with_device).result)
        families.setdefault(case.family, Counter())[found] += 1
        if case.kind == "node" and case.is_ordinary:
            ordinary[found] += 1
        if found != "device":
            others[case.name] = found
    with_device.close()
    content = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {name: version(name) for name in ("onnx", "numpy")},
        "ordinary": ordinary,
        "families": dict(sorted(families.items(), key=lambda item: item[0].lower())),
        "not on the device": dict(sorted(others.items())),
    }
    RECORD.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in lines)


def _row(name: str, counts: dict[str, int]) -> list[object]:
    return [name, sum(counts.values()), *(counts.get(key) or "" for key in HEADINGS)]


def _sum(rows: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for row in rows:
        total.update(row)
    return dict(total)


def section(found: dict[str, Any]) -> str:
    """Returns what stands between the marks."""
    families: dict[str, dict[str, int]] = found["families"]
    sets = ("simple", "pytorch-converted", "pytorch-operator")
    node = {name: counts for name, counts in families.items() if name not in sets}
    total, ordinary = _sum(node.values()), found["ordinary"]
    ours = total.get("device", 0) + total.get("host", 0)
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    plain = ordinary.get("device", 0) + ordinary.get("host", 0)
    lead = (
        f"Of the {sum(total.values()):,} node tests {ours:,} pass by umd alone, and {total.get('reference', 0)} more "
        "with ONNX's reference for ops that umd lacks, which do not count. "
        f"Of the {sum(ordinary.values()):,} of ONNX's own domain whose inputs and outputs are float32, int32, int64 "
        f"and bool tensors {plain:,} pass by umd alone. Measured on sim:0, {found['date']}, {versions}."
    )
    header = ("set", "cases", *HEADINGS.values())
    summary = [_row("node, float32, int32, int64, bool", ordinary), _row("node", total)]
    summary += [_row(name, families[name]) for name in sets]
    rest = {name: counts for name, counts in node.items() if set(counts) - {"device"}}
    whole = [name for name in node if name not in rest]
    return "\n\n".join(
        (
            START,
            lead,
            table(header, summary),
            "By op, those that are not on the device in every case (node tests; one row a first op):",
            table(("op", "cases", *HEADINGS.values()), [_row(name, counts) for name, counts in rest.items()]),
            f"Every case on the device: {', '.join(whole)}.",
            END,
        )
    )


def document() -> str:
    """Returns the document with the section as it should be."""
    text = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    return before + section(json.loads(RECORD.read_text(encoding="utf-8"))) + rest.partition(END)[2]


def main() -> int:
    """Writes or compares the document."""
    if "--record" in sys.argv[1:]:
        record()
    text = document()
    if {"--write", "--record"} & set(sys.argv[1:]):
        DOCUMENT.write_text(text, encoding="utf-8")
        return 0
    same = DOCUMENT.read_text(encoding="utf-8") == text
    print("docs/onnx.md is up to date" if same else "docs/onnx.md differs: run with --write")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
