"""How often one peer may fail to say who it is."""

from __future__ import annotations

import functools
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import unquote

from umd_core.errors import NotAuthorisedError

Key = TypeVar("Key")
Value = TypeVar("Value")
BURST, PER_SECOND = 20, 1.0
PEERS, ACCEPTED = 4_096, 16_384


@functools.lru_cache(PEERS)
def peer_name(peer: str) -> str:
    """Returns what a peer is counted as: an IPv4 address, the /64 of an IPv6 address, or "unix"."""
    kind, _, rest = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return kind
    host = rest.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return kind
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped or ipaddress.IPv6Network((address, 64), strict=False))
    return str(address)


class Throttle:
    """Counts failures by peer; a peer with too many is not listened to for a while.

    What a peer was accepted with before stays good meanwhile, so that nobody is locked out by a neighbour behind the
    same address. Memory is bounded: the peers that have been quiet longest are forgotten.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._accepted: OrderedDict[tuple[str, str], None] = OrderedDict()

    def _level(self, peer: str) -> float:
        """Returns the failures of a peer that still count."""
        level, since = self._failures.get(peer, (0.0, 0.0))
        return max(0.0, level - (self._clock() - since) * PER_SECOND)

    def wait_seconds(self, peer: str, key: str) -> float:
        """Returns how long a peer must wait before it is listened to, 0 when it need not."""
        if peer not in self._failures or (peer, key) in self._accepted:
            return 0.0
        return max(0.0, self._level(peer) + 1 - BURST) / PER_SECOND

    def check(self, peer: str, key: str) -> None:
        """Checks that a peer is to be listened to; see `wait_seconds`.

        Raises:
            NotAuthorisedError: not now.
        """
        wait = self.wait_seconds(peer, key)
        if wait:
            raise NotAuthorisedError(f"too many failed attempts from this address; wait {wait:.0f} s")

    def failed(self, peer: str) -> bool:
        """Counts a failure; returns whether it is worth a line in the log."""
        level = self._level(peer) + 1
        self._failures[peer] = level, self._clock()
        _shorten(self._failures, peer, PEERS)
        return level <= BURST

    def accepted(self, peer: str, key: str) -> None:
        """Remembers what a peer was accepted with."""
        self._accepted[peer, key] = None
        _shorten(self._accepted, (peer, key), ACCEPTED)


def _shorten(kept: OrderedDict[Key, Value], latest: Key, most: int) -> None:
    """Notes the latest key, and forgets the oldest one when there are too many."""
    kept.move_to_end(latest)
    if len(kept) > most:
        kept.popitem(last=False)
