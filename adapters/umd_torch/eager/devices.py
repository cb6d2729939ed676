"""The devices that `umd:0`, `umd:1`, … stand for."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch

from umd_core.device import Binding
from umd_core.dtypes import DType
from umd_core.errors import UnsupportedError
from umd_torch.memory import Slab
from umd_torch.session import HostedDevice, Session, adopt, session_for
from umd_torch.settings import settings

NAME = "umd"
PLANS, SCALARS = 8192, 1024
_SCALAR_SIZE = 8


class EagerDevice:
    """What one ordinal of `umd` stands for.

    Attributes:
        ordinal: the number after "umd:".
        session: the open device.
        plans: programs of single calls, by op and metadata.
    """

    def __init__(self, ordinal: int, session: Session) -> None:
        self.ordinal, self.session = ordinal, session
        self.device = torch.device(NAME, ordinal)
        self.plans: dict[Any, Any] = {}
        self._scalars: OrderedDict[Any, tuple[Slab, Binding]] = OrderedDict()

    def keep(self, key: Any, plan: Any) -> None:
        """Remembers a plan; when there are too many, all are forgotten."""
        if len(self.plans) >= PLANS:
            self.plans.clear()
        self.plans[key] = plan

    def scalar(self, value: float, dtype: DType) -> Binding:
        """Returns where a number lies on the device; it is sent at its first use."""
        key = (value, dtype.code, str(value)) if value == 0 or value != value else (value, dtype.code)  # -0.0, NaN
        found = self._scalars.get(key)
        if found is None:
            if len(self._scalars) >= SCALARS:
                self._scalars.popitem(last=False)
            with np.errstate(over="ignore", invalid="ignore"):
                data = np.asarray(value).astype(dtype.numpy).tobytes()
            slab = self.session.slab(_SCALAR_SIZE)
            self.session.write(slab, 0, data)
            found = self._scalars[key] = (slab, Binding(slab.buffer, 0, dtype.size))
        else:
            self._scalars.move_to_end(key)
        return found[1]


class Options:
    """How the eager device behaves.

    Attributes:
        strict: raise where an op cannot run on the device, instead of running it on the CPU.
    """

    __slots__ = ("strict",)

    def __init__(self) -> None:
        self.strict = False


options = Options()
"""The options of this process."""
_DEVICES: list[EagerDevice] = []
_CURRENT = threading.local()


def connect(name: str = "", *, token: str = "", strict: bool | None = None) -> torch.device:
    """Returns the device `umd:N` that stands for a device of umd: the next free number, or the one that it has.

    Args:
        name: "sim:0", "grpc://host:port/sim:0", "grpcs://…"; UMD_DEVICE or the available device of highest priority
            without it.
        token: to show a server; without it what joining the server left, or UMD_TOKEN.
        strict: raise where an op cannot run on the device, for the whole process; None leaves it as it is.

    Raises:
        UmdError: there is no such device, or no server.
    """
    if strict is not None:
        options.strict = strict
    name = name or settings(None).device
    session = adopt(name, lambda: _open_with(name, token)) if token else session_for(name)
    for found in _DEVICES:
        if found.session is session:
            return found.device
        if found.session.name == session.name:  # it was closed: the name is open anew
            _DEVICES[found.ordinal] = EagerDevice(found.ordinal, session)
            return found.device
    _DEVICES.append(EagerDevice(len(_DEVICES), session))
    return _DEVICES[-1].device


def _open_with(name: str, token: str) -> HostedDevice:
    """Returns a server's device, opened with a token."""
    from dataclasses import replace  # noqa: PLC0415  # with gRPC below, for those who have a token

    from umd_grpc.client.access import read_url  # noqa: PLC0415  # gRPC loads when a device is opened
    from umd_grpc.client.remote import RemoteDevice  # noqa: PLC0415  # see above

    _, access, device = read_url(name)
    return cast("HostedDevice", RemoteDevice(replace(access, token=token), device))


def device_at(ordinal: int) -> EagerDevice:
    """Returns what an ordinal stands for; the first is opened at its first use.

    Raises:
        UnsupportedError: nothing is connected under that number.
    """
    if ordinal < len(_DEVICES):
        return _DEVICES[ordinal]
    if ordinal == 0:
        connect()
        return _DEVICES[0]
    raise UnsupportedError(f"{NAME}:{ordinal} stands for nothing; umd_torch.connect() has made {len(_DEVICES)} devices")


def device_of(device: torch.device | None) -> EagerDevice:
    """Returns what a torch device stands for; without a number it is the current one."""
    number: int | None = None if device is None else device.index  # torch declares it as int
    return device_at(current() if number is None else number)


def current() -> int:
    """Returns the number that `umd` without one means in this thread."""
    return getattr(_CURRENT, "ordinal", 0)


def set_current(ordinal: int) -> None:
    """Sets what `umd` without a number means in this thread."""
    _CURRENT.ordinal = ordinal


def number_of(device: int | str | torch.device) -> int:
    """Returns the number of a device of `umd`, 0 where it has none."""
    return device if isinstance(device, int) else torch.device(device).index or 0


class Within:
    """A context in which `umd` without a number means another device: `torch.umd.device(1)`."""

    def __init__(self, device: int | str | torch.device) -> None:
        self._number, self._before = number_of(device), 0

    def __enter__(self) -> None:
        self._before = current()
        set_current(self._number)

    def __exit__(self, *_: object) -> None:
        set_current(self._before)


def count() -> int:
    """Returns how many devices there are; one is there before it is opened."""
    return max(1, len(_DEVICES))


def each(action: Callable[[Session], None]) -> None:
    """Does something with every session that is bound to a number."""
    for found in _DEVICES:
        action(found.session)
