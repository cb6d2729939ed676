"""What stands after "cuda:" or "cuda-cpu:" in a device's name: an ordinal and options, as in "0?memory=2GiB&sync=1"."""

from __future__ import annotations

import re
from dataclasses import dataclass

from umd_core.errors import AttributeValueError, UnsupportedError

_UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_KNOWN = (
    "memory=SIZE (bytes, KiB, MiB, GiB), queues=1 to 32, sync=0 or 1, replay=0 or 1, libraries=0 or 1, "
    "atomics=0 or 1; "
    "on cuda-cpu checked=0 or 1, and with it orders=0 to 99"
)
QUEUES = 8
_RANGES = {
    "memory": (0, 1 << 63), "queues": (1, 32), "sync": (0, 1), "replay": (0, 1), "libraries": (0, 1),
    "checked": (0, 1), "orders": (0, 99), "atomics": (0, 1),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Options:
    """How a device is opened.

    Attributes:
        ordinal: which one.
        memory: bytes of device memory that it may use; the backend's own limit when None.
        queues: how many queues of a GPU the device's own queues share.
        sync: whether every launch is waited for, so that a fault names its command.
        replay: whether programs that are run again alike become CUDA graphs.
        libraries: whether matrix products go to the vendor's library where it does them.
        atomics: whether scatters add and multiply floats by atomics: faster, the last bits differ from run to run.
        checked: whether every launch runs in the checked build; on the processor only.
        orders: random orders of threads in which a checked launch runs, beside the launch order.
    """

    ordinal: int = 0
    memory: int | None = None
    sync: bool = False
    replay: bool = True
    libraries: bool = True
    checked: bool = False
    orders: int = 0
    queues: int = QUEUES
    atomics: bool = False


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
    if values.get("checked") and backend != "cuda-cpu":
        detail = "runs on cuda-cpu only; on a GPU compute-sanitizer does that"
        raise AttributeValueError(f"device {backend}", "checked", detail, wanted=_KNOWN)
    if values.get("orders") and not values.get("checked"):
        raise AttributeValueError(f"device {backend}", "orders", "needs checked=1", wanted=_KNOWN)
    return Options(
        ordinal=int(ordinal or 0),
        memory=values.get("memory"),
        sync=bool(values.get("sync", 0)),
        replay=bool(values.get("replay", 1)),
        libraries=bool(values.get("libraries", 1)),
        checked=bool(values.get("checked", 0)),
        orders=values.get("orders", 0),
        queues=values.get("queues", QUEUES),
        atomics=bool(values.get("atomics", 0)),
    )


def _number(backend: str, name: str, value: str) -> int:
    if name not in _RANGES:
        raise AttributeValueError(f"device {backend}", name, "is no option", wanted=_KNOWN)
    match = re.fullmatch(r"(\d+)\s*([KMGT]iB)?", value, re.IGNORECASE | re.ASCII)
    unit = (match[2] or "").upper() if match else ""
    least, most = _RANGES[name]
    number = int(match[1]) * _UNITS[unit] if match else -1
    if not least <= number <= most or (unit and name != "memory"):
        raise AttributeValueError(f"device {backend}", name, f"{value!r} does not fit", value=value, wanted=_KNOWN)
    return number
