"""What a server does about memory that its C library has freed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from umd_grpc.server.allocator import KEPT, LARGEST, Allocator

MEASURED = """
import asyncio, os, sys
from umd_grpc.server.allocator import Allocator

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

allocator = Allocator()
allocator.keep()
before = resident()
pieces = [bytes([1]) * (1 << 20) for _ in range(48)]
pieces.clear()
kept = resident() - before
asyncio.run(allocator.look(1))
asyncio.run(allocator.look(1))
print(kept, resident() - before)
"""


class Library:
    """Stands for the C library, and writes down what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int]] = []

    def mallopt(self, parameter: int, value: int) -> int:
        self.asked.append(("mallopt", parameter, value))
        return 1

    def malloc_trim(self, pad: int) -> int:
        self.asked.append(("malloc_trim", pad, 0))
        return 1


def test_freed_memory_is_given_back_once_when_nothing_passes() -> None:
    library: Any = Library()
    allocator = Allocator(library)

    async def look(*passed: int) -> int:
        before = len(library.asked)
        for each in passed:
            await allocator.look(each)
        return len(library.asked) - before

    assert asyncio.run(look(0, 0, 0)) == 0
    assert asyncio.run(look(5, 9, 14)) == 0
    assert asyncio.run(look(14)) == 1
    assert asyncio.run(look(14, 14)) == 0
    assert asyncio.run(look(15, 15, 15)) == 1


def test_what_is_set() -> None:
    library: Any = Library()
    Allocator(library).keep()
    assert library.asked == [("mallopt", -3, LARGEST), ("mallopt", -1, KEPT)]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_kept_and_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True)
    kept, left = map(int, done.stdout.split())
    assert kept > 40 << 20
    assert left < 8 << 20
