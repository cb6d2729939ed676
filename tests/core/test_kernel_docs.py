"""docs/kernels.md is what the kernel table says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from umd_core.kernels import BY_NAME

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")


def test_the_document_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/kernel_docs.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "docs/kernels.md is up to date\n"), (
        "run scripts/kernel_docs.py --write"
    )


def test_every_kernel_has_a_section_with_what_an_implementer_needs() -> None:
    sections = {part.partition("\n")[0]: part for part in TEXT.split("\n### ")[1:]}
    assert set(sections) == set(BY_NAME)
    for name, row in BY_NAME.items():
        assert row.mathematics in sections[name]
        for field, kind in row.field_types():
            assert f"| `{field}` | {kind} |" in sections[name]
        assert ("Decomposition: " in sections[name]) == (row.level > 0)
