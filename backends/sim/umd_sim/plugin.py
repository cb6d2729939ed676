"""The simulator as a plugin: importing it loads nothing but the hook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from umd_core.device import Available, BackendInfo, Unavailable
from umd_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from umd_core.device import Device


def probe() -> Available | Unavailable:
    """Returns the one device that is always there."""
    return Available(("NumPy on this machine's processor",))


def open_device(rest: str) -> Device:
    """Returns the simulator that "sim:" + rest names: an ordinal, then options as in "0?strict=1&profile=t4".

    Raises:
        UnsupportedError, AttributeValueError: the ordinal or an option is wrong.
        ConfigError: the profile is.
    """
    from umd_sim.device import SimDevice  # noqa: PLC0415  # importing a plugin costs nothing
    from umd_sim.options import parse  # noqa: PLC0415  # likewise
    from umd_sim.strict import StrictDevice  # noqa: PLC0415  # likewise

    options = parse(rest)
    return StrictDevice(options) if options.strict else SimDevice(options)


@hookimpl
def umd_register_backends() -> list[BackendInfo]:
    """Returns the simulator backend."""
    return [BackendInfo("sim", probe=probe, open=open_device)]
