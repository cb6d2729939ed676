"""What stands after "cuda:" or "cuda-cpu:" in a device's name: an ordinal and options, as in "0?memory=2GiB&sync=1"."""

from __future__ import annotations

import re
from dataclasses import dataclass

from umd_core.errors import AttributeValueError, UnsupportedError

_UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_KNOWN = "memory=SIZE (bytes, KiB, MiB, GiB), sync=0 or 1, replay=0 or 1, libraries=0 or 1"


@dataclass(frozen=True, slots=True)
class Options:
    """How a device is opened.

    Attributes:
        ordinal: which one.
        memory: bytes of device memory that it may use; the backend's own limit when None.
        sync: whether every launch is waited for, so that a fault names its command.
        replay: whether programs that are run again alike become CUDA graphs.
        libraries: whether matrix products go to the vendor's library where it does them.
    """

    ordinal: int = 0
    memory: int | None = None
    sync: bool = False
    replay: bool = True
    libraries: bool = True


def parse(backend: str, text: str) -> Options:
    """Returns the options that a device name's rest states.

    Raises:
        UnsupportedError: the ordinal is no number.
        AttributeValueError: an option is unknown or has a wrong value.
    """
    ordinal, _, rest = text.partition("?")
    if ordinal and not (ordinal.isascii() and ordinal.isdecimal()):
        raise UnsupportedError(f"has no device {ordinal!r}; a number would be right", device=f"{backend}:{text}")
    values: dict[str, int] = {}
    for item in filter(None, rest.split("&")):
        name, _, value = item.partition("=")
        values[name] = _number(backend, name, value)
    return Options(
        ordinal=int(ordinal or 0),
        memory=values.get("memory"),
        sync=bool(values.get("sync", 0)),
        replay=bool(values.get("replay", 1)),
        libraries=bool(values.get("libraries", 1)),
    )


def _number(backend: str, name: str, value: str) -> int:
    if name not in ("memory", "sync", "replay", "libraries"):
        raise AttributeValueError(f"device {backend}", name, "is no option", wanted=_KNOWN)
    match = re.fullmatch(r"(\d+)\s*([KMGT]iB)?", value, re.IGNORECASE | re.ASCII)
    unit = (match[2] or "").upper() if match else ""
    if match is None or (name != "memory" and value not in ("0", "1")):
        raise AttributeValueError(f"device {backend}", name, f"{value!r} does not fit", value=value, wanted=_KNOWN)
    return int(match[1]) * _UNITS[unit]
