"""Writes the counts of torch's op_db into docs/pytorch.md, from what tests/torch/opinfo/record.py found.

python scripts/opinfo_docs.py            exit 1 when the document differs
python scripts/opinfo_docs.py --write    write it
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "pytorch.md"
HARNESS = ROOT / "tests" / "torch" / "opinfo"
BEGIN, END = "<!-- counts of op_db: scripts/opinfo_docs.py -->\n", "<!-- end of counts -->\n"
_WAYS = {
    "direct": "traced and lowered alone",
    "compiled": "through `torch.compile`",
    "eager": "on the eager device",
    "layers": "`module_db`, traced and lowered alone",
    "optimizers": "`optim_db`, three compiled steps",
}


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in lines)


def counts(record: dict[str, Any], reasons: dict[str, str]) -> str:
    """Returns the generated part of the document."""
    runs = [(way, record[way]) for way in _WAYS if way in record]
    rows = [
        (_WAYS[way], f["entries"], f["samples"], f["forward"], f"{f['backward']} of {f['differentiable']}")
        for way, f in runs
    ]
    parts = [table(("run", "entries", "samples", "forward as torch", "backward as torch"), rows)]
    by_shape = record["direct"]["by_shape"]
    parts.append(
        f"torch {record['direct']['torch']}, float32. Of {by_shape} entries shapes and types alone are compared: their "
        "numbers are drawn, or not defined. Why the others fail in the first run:"
    )
    kinds = sorted(record["direct"]["kinds"].items(), key=lambda pair: (-pair[1], pair[0]))
    parts.append(table(("entries", "reason"), [(count, reasons[kind]) for kind, count in kinds]))
    return "\n\n".join(parts) + "\n"


def document() -> str:
    """Returns the whole document with the generated part replaced."""
    text = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    record = json.loads((HARNESS / "record.json").read_text(encoding="utf-8"))
    reasons = tomllib.loads((HARNESS / "ledger.toml").read_text(encoding="utf-8"))["reasons"]
    return f"{before}{BEGIN}\n{counts(record, reasons)}\n{END}{after}"


def main() -> int:
    """Writes or compares the document."""
    text = document()
    if "--write" in sys.argv[1:]:
        DOCUMENT.write_text(text, encoding="utf-8")
        return 0
    same = DOCUMENT.read_text(encoding="utf-8") == text
    print("docs/pytorch.md is up to date" if same else "docs/pytorch.md differs: run with --write")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
