"""Programs that a server remembers, so that clients may load them by hash and they are validated once."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from umd_core.commands import CommandBuffer
from umd_core.errors import StaleHandleError

SIZE = 128 << 20
_COMMAND_SIZE = 1_000
"""About what a decoded command takes, in bytes."""


@dataclass(slots=True)
class _Known:
    raw: bytes
    decoded: dict[str, CommandBuffer] = field(default_factory=dict)
    size: int = 0


class Programs:
    """The programs that were used last, by identity and sha256; one identity never learns what another has loaded.

    What has been found valid is kept decoded, by device: limits and kernel table do not change while a server runs.
    Callable from any thread.
    """

    def __init__(self, size: int = SIZE) -> None:
        """Holds at most `size` bytes, of all identities together."""
        self._size, self._used = size, 0
        self._programs: OrderedDict[tuple[str, bytes], _Known] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, identity: str, program: bytes) -> None:
        """Remembers a program that has been found valid."""
        self._keep((identity, hashlib.sha256(program).digest()), program)

    def find(self, identity: str, sha256: bytes) -> bytes:
        """Returns a program.

        Raises:
            StaleHandleError: it is not, or no longer, known to this identity.
        """
        with self._lock:
            known = self._programs.get((identity, sha256))
            if known is None:
                raise StaleHandleError("program", sha256.hex() or "without a hash", "is not known here: send its bytes")
            self._programs.move_to_end((identity, sha256))
            return known.raw

    def validated(
        self, identity: str, device: str, raw: bytes, validate: Callable[[bytes], CommandBuffer]
    ) -> CommandBuffer:
        """Returns what a program says; `validate` is asked the first time that the identity has it on the device."""
        key = identity, hashlib.sha256(raw).digest()
        with self._lock:
            known = self._programs.get(key)
            decoded = None if known is None else known.decoded.get(device)
        if decoded is None:
            decoded = validate(raw)
            self._keep(key, raw, device, decoded)
        return decoded

    def _keep(self, key: tuple[str, bytes], raw: bytes, device: str = "", decoded: CommandBuffer | None = None) -> None:
        with self._lock:
            known = self._programs.get(key)
            if known is None:
                known = self._programs[key] = _Known(raw, size=len(raw))
                self._used += len(raw)
            if decoded is not None and device not in known.decoded:
                known.decoded[device] = decoded
                size = len(raw) + _COMMAND_SIZE * len(decoded.commands)
                known.size += size
                self._used += size
            self._programs.move_to_end(key)
            while self._used > self._size:
                _, dropped = self._programs.popitem(last=False)
                self._used -= dropped.size
