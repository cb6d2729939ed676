"""What `torch.compile(..., options={...})` may say, and the devices that a process has open."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from umd_core.errors import AttributeValueError
from umd_core.passes import DEFAULT, PASSES


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of the backend.

    Attributes:
        device: "sim:0", "grpc://host:port/sim:0"; empty for the available device of highest priority.
        strict: raise where a node cannot run on the device, instead of running it on the CPU.
        passes: names of the clean-ups (`umd_core.passes`) that graphs go through before they are translated.
    """

    device: str = ""
    strict: bool = False
    passes: Collection[str] = DEFAULT


_KINDS: dict[str, type] = {"device": str, "strict": bool, "passes": Collection}


def settings(options: Mapping[str, Any] | None) -> Settings:
    """Returns the settings that `options` and the environment give.

    Without a device in the options, UMD_DEVICE names it.

    Raises:
        AttributeValueError: an option is unknown or of another type.
    """
    given = dict(options or {})
    for name, value in given.items():
        kind = _KINDS.get(name)
        if kind is None:
            wanted = "one of: " + ", ".join(_KINDS)
            raise AttributeValueError("backend umd", name, "unknown option", value=value, wanted=wanted)
        if not isinstance(value, kind):
            wanted = f"a {kind.__name__.lower()}"
            raise AttributeValueError("backend umd", name, f"{value!r} is none", value=value, wanted=wanted)
    check_passes(given.get("passes", ()))
    given.setdefault("device", os.environ.get("UMD_DEVICE", ""))
    return Settings(**given)


def check_passes(passes: Collection[str]) -> None:
    """Checks names of clean-ups.

    Raises:
        AttributeValueError: there is none of that name.
    """
    unknown = [passes] if isinstance(passes, str) else [name for name in passes if name not in PASSES]
    if unknown:
        wanted = f"a list of some of: {', '.join(PASSES)}"
        raise AttributeValueError("backend umd", "passes", "no such pass", value=unknown[0], wanted=wanted)
