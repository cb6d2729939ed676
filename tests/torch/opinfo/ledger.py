"""The ledger of what is expected to fail: an entry that is not in it passes, one that is in it fails as it says."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.torch.opinfo.judge import Compare, Outcome, by_number, by_shape

LEDGER = Path(__file__).parent / "ledger.toml"
OWN = ("direct", "layers", "optimizers")
"""Runs whose table is whole; others list how they differ from the first."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An expected failure.

    Attributes:
        kind: key of the reason.
        first: the first sample that fails, per direction that does.
    """

    kind: str
    first: Mapping[str, int]


@functools.cache
def _content() -> dict[str, Any]:
    return tomllib.loads(LEDGER.read_text(encoding="utf-8"))


def reasons() -> dict[str, str]:
    """Returns kind → why entries of that kind fail."""
    found: dict[str, str] = _content()["reasons"]
    return found


def shapes() -> dict[str, str]:
    """Returns entry → why its numbers are not compared, only shapes and types."""
    return {name: why for why, names in _content()["shapes"].items() for name in names}


def comparison(name: str) -> Compare:
    """Returns how an entry's results are compared."""
    return by_shape if name in shapes() else by_number


PASSES = "passes"
"""The table of a way of running that lists what fails in the first way and not in this one."""
FIRST = "direct"


def _listed(runner: str) -> dict[str, Failure]:
    kinds: dict[str, dict[str, dict[str, int]]] = _content().get(runner, {})
    return {name: Failure(kind, first) for kind, entries in kinds.items() for name, first in entries.items()}


@functools.cache
def failures(runner: str) -> dict[str, Failure]:
    """Returns entry → expected failure, for one way of running: what the first way has, unless its own table says."""
    if runner in OWN:
        return _listed(runner)
    found = {**_listed(FIRST), **_listed(runner)}
    return {name: failure for name, failure in found.items() if failure.kind != PASSES}


def expected(runner: str, name: str, samples: int) -> dict[str, int]:
    """Returns the first sample that is to fail, per direction, if `samples` are run."""
    failure = failures(runner).get(name)
    return {direction: at for direction, at in failure.first.items() if at < samples} if failure else {}


def difference(runner: str, name: str, outcome: Outcome) -> str:
    """Returns how an outcome differs from the ledger, "" if it does not."""
    wanted, found = expected(runner, name, outcome.samples), outcome.first
    if wanted == found:
        return ""
    said = f"{name}: first failing samples {found or 'none'}, the ledger says {wanted or 'none'}"
    return "\n  ".join([said, *outcome.reasons])
