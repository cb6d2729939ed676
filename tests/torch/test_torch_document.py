"""The blocks of docs/pytorch.md run, in order, and its examples exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/pytorch.md").read_text()


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's, of itself, when optimizers are compiled
def test_the_blocks_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == 10
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/pytorch.md", "exec"), names)


def test_the_files_that_it_names_exist() -> None:
    for path in re.findall(r"`((?:examples|umd_torch)/\w+\.py)`", TEXT):
        assert (ROOT / path).exists() or (ROOT / "adapters" / path).exists()
