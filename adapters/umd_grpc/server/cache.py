"""A bounded cache of bytes by bytes."""

from __future__ import annotations


class BytesCache:
    """The entries used most recently, bounded by count and by size.

    Two generations: entries are found in both and renewed in the young one; when that is full the old one is dropped.
    A hit costs one look-up, and nothing is ever sorted.

    Attributes:
        hits, misses: look-ups so far.
    """

    def __init__(self, entries: int, size: int) -> None:
        """Holds at most `entries` entries of at most `size` bytes, keys included."""
        self._entries, self._size = entries // 2, size // 2
        self._young: dict[bytes, bytes] = {}
        self._old: dict[bytes, bytes] = {}
        self._used = 0
        self.hits = self.misses = 0

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())

    def find(self, key: bytes) -> bytes | None:
        """Returns the value of a key, None when it is not there."""
        value = self._young.get(key)
        if value is None:
            value = self._old.get(key)
            if value is None:
                self.misses += 1
                return None
            self.keep(key, value)
        self.hits += 1
        return value

    def keep(self, key: bytes, value: bytes) -> None:
        """Adds an entry, unless it is larger than a generation."""
        size = len(key) + len(value)
        if size > self._size:
            return
        if len(self._young) >= self._entries or self._used + size > self._size:
            self._old, self._young, self._used = self._young, {}, 0
        self._young[key] = value
        self._used += size
