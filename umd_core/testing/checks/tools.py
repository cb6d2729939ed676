"""Small helpers of the checks."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from umd_core.device import Binding, Buffer, Device
from umd_core.errors import UmdError
from umd_core.ir import Array
from umd_core.testing.recording import Recording

Check = Callable[[Device], None]
Error = TypeVar("Error", bound=UmdError)


class Raised:
    """The error that `raises` caught."""

    error: Any = None


@contextmanager
def raises(*classes: type[Error]) -> Generator[Raised, None, None]:
    """Checks that the block raises one of the classes, and holds the error."""
    held = Raised()
    try:
        yield held
    except classes as error:
        held.error = error
        return
    names = " or ".join(cls.__name__ for cls in classes)
    raise AssertionError(f"expected {names}, but nothing was raised")


def same(got: Any, wanted: Any, what: str) -> None:
    """Checks that two byte arrays, or two values, are equal."""
    if isinstance(wanted, np.ndarray):
        differ = np.flatnonzero(np.asarray(got) != wanted)
        if differ.size:
            at = int(differ[0])
            raise AssertionError(f"{what}: byte {at} is {got[at]}, expected {wanted[at]} ({differ.size} differ)")
    elif got != wanted:
        raise AssertionError(f"{what}: {got!r}, expected {wanted!r}")


def bytes_in(device: Device, buffer: Buffer) -> Array:
    """Returns a copy of all bytes of a buffer."""
    return np.frombuffer(device.read(buffer, 0, buffer.size), np.uint8).copy()


def filled(device: Device, *contents: bytes | Array) -> list[Binding]:
    """Returns a new buffer for each content, bound whole."""
    result = []
    for content in contents:
        data = np.frombuffer(content, np.uint8) if isinstance(content, bytes) else content
        buffer = device.allocate(data.nbytes)
        device.write(buffer, 0, data)
        result.append(Binding(buffer, 0, data.nbytes))
    return result


def free(device: Device, bindings: list[Binding]) -> None:
    """Frees the buffers of bindings."""
    for buffer in {id(b.buffer): b.buffer for b in bindings}.values():
        device.free(buffer)


def copying(size: int = 16) -> Recording:
    """Returns a recording of one copy from argument 0 to argument 1."""
    recording = Recording()
    source, target = recording.argument(), recording.argument()
    recording.copy((target, 0, size), (source, 0, size))
    return recording
