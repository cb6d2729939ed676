"""pytest plugin (entry point `umd`): the option --umd-device, and a fixture that opens it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from umd_core.device import Device


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --umd-device."""
    group = parser.getgroup("umd", "umd devices")
    group.addoption("--umd-device", default="", metavar="NAME", help="device for umd's conformance kit: sim:0, mine, …")


@pytest.fixture
def umd_device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """Returns the device that --umd-device names; the test is skipped without the option."""
    name = str(request.config.getoption("--umd-device"))
    if not name:
        pytest.skip("needs --umd-device NAME")
    from umd_core.registry import open_device  # noqa: PLC0415  # pytest loads this plugin in every project

    device = open_device(name)
    yield device
    device.close()
