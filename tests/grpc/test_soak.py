"""The parts of the soak, in short: `make soak` runs them as long as they are meant to be."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
COUNTS = {
    "translates": 20_000,
    "submissions": 4_000,
    "cancelled": 1_000,
    "killed": 8,
    "sessions": 200,
    "bulk": 40,
    "fuzz": 400_000,
}
"""A minute in all on an idle machine, half of it damaged frames: what they find depends on how many there are."""


@pytest.fixture(scope="module")
def soak() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield importlib.import_module("soak")


@pytest.mark.parametrize("part", COUNTS)
def test_nothing_grows_or_is_lost(soak: ModuleType, part: str) -> None:
    facts = soak.run(part, COUNTS[part])
    assert facts["well"], facts


def test_every_part_is_here_or_measures_time(soak: ModuleType) -> None:
    assert set(soak.PARTS) - set(COUNTS) == {"flood"}
