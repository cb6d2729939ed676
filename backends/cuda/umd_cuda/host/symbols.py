"""Code addresses of a checked module → lines of the kernel's source."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from umd_cuda.host.module import HostModule

_PLACE = re.compile(r"^(.*):(\d+)")


@cache
def _command() -> tuple[str, ...]:
    for name in ("addr2line", "llvm-addr2line"):
        found = shutil.which(name)
        if found:
            return (found,)
    return ()


def source_lines(module: HostModule, addresses: Sequence[int]) -> dict[int, int]:
    """Returns the line of the user's source for each address; without addr2line, or for code of ours alone, none."""
    if not addresses or not _command():
        return {}
    asked = [hex(address) for address in addresses]
    command = [*_command(), "-a", "-i", "-e", str(module.library), *asked]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    lines: dict[int, int] = {}
    address = 0
    for text in answer.stdout.splitlines():
        place = _PLACE.match(text)
        if place is None:
            address = int(text, 16) if text.startswith("0x") else address
        elif address not in lines and PurePath(place.group(1)).name == PurePath(module.source_name).name:
            lines[address] = int(place.group(2))  # the innermost frame that stands in the user's file
    return lines
