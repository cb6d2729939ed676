"""The part of torch's entries that the tests run: another one every day, so that all have their turn."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

SHARD = int(os.environ["UMD_OPINFO_PART"])
"""Number of the part: days since 1970 (tests/conftest.py), or what the environment said before, to run it again."""


def shares(names: Sequence[str], one_in: int, shard: int) -> set[str]:
    """Returns the names whose turn it is: one in so many; `one_in` shards that follow each other have all of them."""
    return set(names[shard % one_in :: one_in])


def parameters(run: str, names: Sequence[str], one_in: int) -> list[Any]:
    """Returns the parameters (run, name) of a test, those whose turn it is marked so."""
    today = shares(names, one_in, SHARD)
    return [pytest.param(run, name, marks=pytest.mark.part(name in today)) for name in names]


def by_name(arguments: Iterable[str]) -> set[str]:
    """Returns the ids of single tests among pytest's arguments, from the file's name on."""
    return {argument.rpartition("/")[2] for argument in arguments if argument.endswith("]")}


def is_chosen(item: pytest.Item, named: set[str]) -> bool:
    """Returns whether a test runs: it belongs to no part, to today's, or was named."""
    mark = item.get_closest_marker("part")
    return mark is None or mark.args[0] or item.nodeid.rpartition("/")[2] in named
