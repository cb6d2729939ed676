"""What `torch.compile(..., options={...})` may say, and the devices that a process has open."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from umd_core.errors import AttributeValueError


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of the backend.

    Attributes:
        device: "sim:0", "grpc://host:port/sim:0"; empty for the available device of highest priority.
        strict: raise where a node cannot run on the device, instead of running it on the CPU.
    """

    device: str = ""
    strict: bool = False


_KINDS: dict[str, type] = {"device": str, "strict": bool}


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
            wanted = f"a {kind.__name__}"
            raise AttributeValueError("backend umd", name, f"{value!r} is none", value=value, wanted=wanted)
    given.setdefault("device", os.environ.get("UMD_DEVICE", ""))
    return Settings(**given)
