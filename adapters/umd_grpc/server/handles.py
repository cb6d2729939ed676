"""Handles that a client made: id | generation << 32."""

from __future__ import annotations

from typing import Generic, TypeVar

from umd_core.errors import DecodeError, LimitError, PoisonedError, StaleHandleError

Thing = TypeVar("Thing")
NULL = 0
_ID = 0xFFFF_FFFF


class Handles(Generic[Thing]):
    """The things of one kind in one session, by handle. A handle whose making failed keeps the reason.

    Attributes:
        things: those that are there.
    """

    def __init__(self, what: str, most: int) -> None:
        """`what` names the kind in errors; there are at most `most` ids."""
        self._what, self._most = what, most
        self.things: dict[int, Thing] = {}
        self._failed: dict[int, Exception] = {}
        self._generations: dict[int, int] = {}

    def check_new(self, handle: int) -> None:
        """Checks a handle that is about to be made.

        Raises:
            DecodeError: its id or generation is null, or the generation does not rise.
            LimitError: there are too many ids.
        """
        number, generation = handle & _ID, handle >> 32
        last = self._generations.get(number, 0)
        if number == NULL or generation <= last:
            detail = f"{self._what} handle {number}, generation {generation}: the last generation was {last}"
            raise DecodeError("handle-generation", detail, section="SESSION")
        if number not in self._generations and len(self._generations) >= self._most:
            raise LimitError(f"{self._what} handles", self._most + 1, self._most)

    def make(self, handle: int, thing: Thing) -> None:
        """Adds a thing under a handle that `check_new` passed."""
        self._generations[handle & _ID] = handle >> 32
        self.things[handle] = thing

    def fail(self, handle: int, error: Exception) -> None:
        """Notes why there is nothing under a handle that `check_new` passed."""
        self._generations[handle & _ID] = handle >> 32
        self._failed[handle] = error

    def get(self, handle: int) -> Thing:
        """Returns a thing.

        Raises:
            StaleHandleError: there is none by that handle.
            PoisonedError: its making failed.
        """
        thing = self.things.get(handle)
        if thing is not None:
            return thing
        failed = self._failed.get(handle)
        if failed is None:
            raise self._stale(handle)
        raise PoisonedError(f"{self._what} {handle & _ID}", failed)

    def remove(self, handle: int) -> Thing | None:
        """Forgets a handle and returns its thing, None when its making had failed.

        Raises:
            StaleHandleError: there is none by that handle.
        """
        thing = self.things.pop(handle, None)
        if thing is None and self._failed.pop(handle, None) is None:
            raise self._stale(handle)
        return thing

    def clear(self) -> list[Thing]:
        """Forgets everything and returns the things."""
        things = list(self.things.values())
        self.things.clear()
        self._failed.clear()
        return things

    def _stale(self, handle: int) -> StaleHandleError:
        return StaleHandleError(self._what, f"{handle & _ID}, generation {handle >> 32},")
