"""What stands after "sim:" in a device's name: an ordinal and options, as in "0?strict=1&seed=3&memory=2GiB"."""

from __future__ import annotations

import re
from dataclasses import dataclass

from umd_core.errors import AttributeValueError, UnsupportedError

DEVICES = 8
"""Ordinals that can be opened; every one is a device of its own over the same processor."""
_UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_KNOWN = "strict=0 or 1, seed=NUMBER, memory=SIZE (bytes, KiB, MiB, GiB), threads=NUMBER, profile=NAME or FILE.toml"


@dataclass(frozen=True, slots=True)
class Options:
    """How a simulator is opened.

    Attributes:
        ordinal: which one.
        strict: whether driver bugs are looked for.
        seed: of the orders that strict mode picks.
        memory: bytes of device memory; when None those of the profile, or half of the machine's without one.
        threads: threads of NumPy's BLAS, in the whole process.
        profile: the device that times are estimated for, by a name or file of `read_profile`.
    """

    ordinal: int = 0
    strict: bool = False
    seed: int = 0
    memory: int | None = None
    threads: int = 1
    profile: str = ""


def parse(text: str) -> Options:
    """Returns the options that a device name's rest states.

    Raises:
        UnsupportedError: no such ordinal.
        AttributeValueError: an option is unknown or has a wrong value.
    """
    ordinal, _, rest = text.partition("?")
    if ordinal and not (ordinal.isascii() and ordinal.isdecimal() and int(ordinal) < DEVICES):
        raise UnsupportedError(f"has no device {ordinal!r}; 0 to {DEVICES - 1} would be right", device=f"sim:{text}")
    values: dict[str, int] = {}
    profile = ""
    for item in filter(None, rest.split("&")):
        name, _, value = item.partition("=")
        if name == "profile":
            profile = value
        else:
            values[name] = _number(name, value)
    return Options(
        ordinal=int(ordinal or 0),
        strict=bool(values.get("strict", 0)),
        seed=values.get("seed", 0),
        memory=values.get("memory"),
        threads=values.get("threads", 1),
        profile=profile,
    )


def _number(name: str, value: str) -> int:
    if name not in ("strict", "seed", "memory", "threads"):
        raise AttributeValueError("device sim", name, "is no option", wanted=_KNOWN)
    match = re.fullmatch(r"(\d+)\s*([KMGT]iB)?", value, re.IGNORECASE | re.ASCII)
    unit = (match[2] or "").upper() if match else ""
    if match is None or (unit and name != "memory") or (name == "strict" and value not in ("0", "1")):
        raise AttributeValueError("device sim", name, f"{value!r} does not fit", value=value, wanted=_KNOWN)
    return int(match[1]) * _UNITS[unit]
