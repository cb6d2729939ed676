"""The parts of the soak, in short: `make soak` runs them as long as they are meant to be."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "soak.py"
COUNTS = {"translates": 20_000, "submissions": 4_000, "cancelled": 1_000, "killed": 8, "sessions": 200, "fuzz": 10_000}


@pytest.fixture(scope="module")
def soak() -> ModuleType:
    spec = importlib.util.spec_from_file_location("soak", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("part", COUNTS)
def test_nothing_grows_or_is_lost(soak: ModuleType, part: str) -> None:
    facts = soak.run(part, COUNTS[part])
    assert facts["well"], facts


def test_every_part_is_here_or_measures_time(soak: ModuleType) -> None:
    assert set(soak.PARTS) - set(COUNTS) == {"flood"}
