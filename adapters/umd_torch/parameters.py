"""Parameters and buffers kept on a device, by (storage, version), with a check that their bytes are still the same."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from umd_core.device import Binding
from umd_torch.counters import counters
from umd_torch.host import Bytes, byte_count, copy_from, fingerprint
from umd_torch.memory import Slab, aligned
from umd_torch.torch_private import storage_key, weak_storage

if TYPE_CHECKING:
    from umd_torch.session import Session

Key = tuple[int, int, int]
_WATCHED = 1024
"""Results that are remembered until they come back."""
_MADE_BYTES = 1 << 28
"""Bytes of results that stay on the device because they may come back."""
UNSENT, IN_DOUBT = -2, -3
"""Versions of a copy that has not been sent, and of one that may not be what the host has."""


def version_of(tensor: torch.Tensor) -> int:
    """Returns torch's count of in-place changes; inference tensors have none, their bytes alone are compared."""
    return -1 if tensor.is_inference() else tensor._version


class Entry:
    """A tensor's copy on the device; `made` says that a program made it, and that the host's is what was read of it."""

    __slots__ = ("__weakref__", "binding", "made", "mark", "offset", "size", "slab", "storage", "version")

    def __init__(self, tensor: torch.Tensor, slab: Slab, offset: int, *, made: bool = False) -> None:
        self.made = made
        self.storage = weak_storage(tensor)
        self.slab, self.offset, self.size = slab, offset, byte_count(tensor)
        self.binding = Binding(slab.buffer, offset, self.size)
        self.version, self.mark = UNSENT, b""

    def gone(self) -> bool:
        """Returns whether nobody holds the tensor's storage any more."""
        return bool(self.storage.expired())

    def has_seen(self, tensor: torch.Tensor, ahead: int) -> bool:
        """Returns whether torch has counted no change since; its count runs `ahead` changes ahead."""
        version = version_of(tensor)
        return self.version == (version - ahead if version >= 0 else version)


class Parameters:
    """The copies on one device.

    `.data` and NumPy change bytes without a new version; so the bytes are compared at every use (of tensors above 64
    KiB a sample), and a difference sends them again. What a sample misses is the risk that remains.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._entries: dict[Key, Entry] = {}
        self._made: OrderedDict[Key, Entry] = OrderedDict()
        self._watched: OrderedDict[Key, tuple[Any, set[int], int]] = OrderedDict()

    def knows(self, tensor: torch.Tensor) -> bool:
        """Returns whether the tensor has a copy: one that was sent, up to date or not, or a result that is as it was.

        A result that was changed is forgotten: its bytes may be those of another tensor too, and are not written over.
        """
        key = self._key(tensor)
        entry = self._entries.get(key)
        if entry is not None and entry.made and self._is_stale(entry, tensor, 0):
            self._forget(key)
            return False
        return entry is not None

    # results that come back

    def watch(self, tensor: torch.Tensor, returning: set[int], position: int) -> None:
        """Notes a result: if it is given to a program as an input, `position` is added to `returning`."""
        self._watched[self._key(tensor)] = (weak_storage(tensor), returning, position)
        if len(self._watched) > _WATCHED:
            self._watched.popitem(last=False)

    def note_return(self, tensor: torch.Tensor) -> None:
        """Notes that a tensor is sent; if it was a result, the next of its kind stays on the device."""
        found = self._watched.pop(self._key(tensor), None) if self._watched else None
        if found is not None and not found[0].expired():
            found[1].add(found[2])

    def keep(self, results: Iterable[tuple[torch.Tensor, Slab, int]]) -> None:
        """Keeps what programs made: each tensor's bytes are those at an offset of a slab.

        They go with the tensors' storages; of too many bytes the oldest go first.
        """
        for key in [key for key, entry in self._made.items() if entry.gone()]:
            self._forget(key)
        for tensor, slab, offset in results:
            key = self._key(tensor)
            entry = self._entries[key] = self._made[key] = Entry(tensor, slab, offset, made=True)
            entry.version, entry.mark = version_of(tensor), fingerprint(tensor)
        held = sum({id(entry.slab): entry.slab.size for entry in self._made.values()}.values())
        while held > _MADE_BYTES and self._made:
            held -= self._forget(next(iter(self._made)))

    def _forget(self, key: Key) -> int:
        """Forgets a result; returns the bytes that nobody else holds."""
        del self._entries[key]
        slab = self._made.pop(key).slab
        return 0 if any(entry.slab is slab for entry in self._made.values()) else slab.size

    # what is sent once

    def doubt(self, tensor: torch.Tensor) -> None:
        """Notes that the tensor's copy may not be what the host has, so that the next use sends it again."""
        entry = self.entry(tensor)
        if entry is not None:
            entry.version = IN_DOUBT

    def entry(self, tensor: torch.Tensor) -> Entry | None:
        """Returns the tensor's copy, up to date or not."""
        return self._entries.get(self._key(tensor))

    @staticmethod
    def note_stale(entry: Entry, tensor: torch.Tensor) -> None:
        """Notes that a tensor's bytes have changed without a count, so that the next use sends them again."""
        counters.stale += not tensor.is_inference()
        entry.version = IN_DOUBT

    def settle(self, tensor: torch.Tensor) -> None:
        """Notes that the tensor's copy is what the host has."""
        entry = self.entry(tensor)
        if entry is not None:
            entry.version, entry.mark = version_of(tensor), fingerprint(tensor)

    def bindings(self, tensors: Sequence[torch.Tensor], ahead: Sequence[int]) -> list[Binding]:
        """Returns where each tensor lies on the device, after sending what is missing or has changed.

        The tensors have no gaps between their elements. `ahead` says by how many changes torch's count runs ahead.
        """
        missing: list[tuple[Key, torch.Tensor]] = []
        changed: dict[int, tuple[Entry, torch.Tensor]] = {}
        entries: list[Entry | Key] = []
        for tensor, counted in zip(tensors, ahead, strict=True):
            key = self._key(tensor)
            entry = self._entries.get(key)
            if entry is not None and not self._is_stale(entry, tensor, counted):
                counters.returned += entry.made
            elif entry is not None and not entry.made:
                changed[id(entry)] = (entry, tensor)
            else:
                if entry is not None:
                    self._forget(key)
                    entry = None
                missing.append((key, tensor))
            entries.append(entry or key)
        if missing:
            changed |= {id(entry): (entry, tensor) for entry, tensor in self._place(missing)}
        if changed:
            self._send(list(changed.values()))
        return [(e if isinstance(e, Entry) else self._entries[e]).binding for e in entries]

    def _key(self, tensor: torch.Tensor) -> Key:
        return (storage_key(tensor), int(tensor.storage_offset()), byte_count(tensor))

    def _is_stale(self, entry: Entry, tensor: torch.Tensor, ahead: int) -> bool:
        if not entry.has_seen(tensor, ahead):
            return True
        if fingerprint(tensor) != entry.mark:
            self.note_stale(entry, tensor)
            return True
        return False

    def _place(self, missing: Sequence[tuple[Key, torch.Tensor]]) -> list[tuple[Entry, torch.Tensor]]:
        """Gives new tensors room in one slab; what belonged to storages that are gone goes first."""
        self.sweep()
        fresh = dict(missing)
        slab = self._session.slab(sum(aligned(byte_count(t)) for t in fresh.values()))
        offset, placed = 0, []
        for key, tensor in fresh.items():
            entry = Entry(tensor, slab, offset)
            self._entries[key] = entry
            placed.append((entry, tensor))
            offset += aligned(entry.size)
        return placed

    def _send(self, changed: list[tuple[Entry, torch.Tensor]]) -> None:
        """Writes tensors; neighbours in a slab go together."""
        changed.sort(key=lambda pair: (id(pair[0].slab), pair[0].offset))
        run: list[tuple[Entry, torch.Tensor]] = []
        for pair in changed:
            last = run[-1][0] if run else None
            if last is not None and (
                last.slab is not pair[0].slab or last.offset + aligned(last.size) != pair[0].offset
            ):
                self._send_run(run)
                run = []
            run.append(pair)
        self._send_run(run)

    def _send_run(self, run: Sequence[tuple[Entry, torch.Tensor]]) -> None:
        first, last = run[0][0], run[-1][0]
        data: Bytes = np.zeros(last.offset + last.size - first.offset, np.uint8)
        new = all(entry.version == UNSENT for entry, _ in run)
        for entry, tensor in run:
            copy_from(tensor, data, entry.offset - first.offset)
            entry.version, entry.mark = version_of(tensor), fingerprint(tensor)
        counters.uploads += len(run)
        self._session.write(first.slab, first.offset, data, weights=new)

    def sweep(self) -> None:
        """Forgets the copies of storages that are gone."""
        for key in [key for key, entry in self._entries.items() if entry.gone()]:
            del self._entries[key]
            self._made.pop(key, None)
