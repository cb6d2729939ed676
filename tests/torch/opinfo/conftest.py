"""Which part of torch's entries runs today."""

from __future__ import annotations

import pytest

from tests.torch.opinfo.part import by_name, is_chosen


def pytest_configure(config: pytest.Config) -> None:
    """Declares the mark that `part.parameters` sets."""
    config.addinivalue_line("markers", "part(is_todays): one of many entries, of which some run every day")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the entries of other days, but none that the command line names."""
    named = by_name(config.args)
    left_out = [item for item in items if not is_chosen(item, named)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_chosen(item, named)]
