"""The counts in docs/pytorch.md are those that were recorded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_counts_are_in_the_document() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/opinfo_docs.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, "run python scripts/opinfo_docs.py --write"
