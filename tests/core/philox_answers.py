"""Known answers of Philox4x32-10, as its authors publish them with Random123 (tests/kat_vectors)."""

from __future__ import annotations

from typing import NamedTuple


class Known(NamedTuple):
    """A counter, a key and the words that they give, all of 32 bits."""

    counter: tuple[int, int, int, int]
    key: tuple[int, int]
    words: tuple[int, int, int, int]


KNOWN = (
    Known((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    Known((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    Known(
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)
