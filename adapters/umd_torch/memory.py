"""Device bytes as the adapter hands them out: slabs, and regions in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from umd_core.device import Binding, Buffer

if TYPE_CHECKING:
    from umd_torch.session import Session

K = TypeVar("K")
ALIGNMENT = 64


def aligned(size: int) -> int:
    """Returns the size rounded up to where the next region may begin."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class Slab:
    """Device bytes that several tensors share. They go back to the session with the last reference.

    `failures` is how many the session had seen when they were taken.
    """

    __slots__ = ("__weakref__", "buffer", "failures", "session", "size")

    def __init__(self, session: Session, buffer: Buffer, size: int) -> None:
        self.session, self.buffer, self.size, self.failures = session, buffer, size, session.failures

    def __del__(self) -> None:
        self.session.give_back(self.buffer, self.size, self.failures)


class Region:
    """Where a tensor lies in a slab, in bytes."""

    __slots__ = ("offset", "size")

    def __init__(self, offset: int, size: int) -> None:
        self.offset, self.size = offset, size

    def of(self, slab: Slab) -> Binding:
        """Returns the region as a binding."""
        return Binding(slab.buffer, self.offset, self.size)


def regions(sizes: Mapping[K, int]) -> tuple[dict[K, Region], int]:
    """Returns a region per key, one after the other, and the bytes up to the end of the last."""
    result: dict[K, Region] = {}
    end = 0
    for key, size in sizes.items():
        region = result[key] = Region(aligned(end), size)
        end = region.offset + size
    return result, end
