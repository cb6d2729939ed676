"""Sessions of a worker that want to be looked at later."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Wakes:
    """A thread that calls what is due. Callable from any thread."""

    def __init__(self) -> None:
        self._due: dict[int, tuple[float, Callable[[], None]]] = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="umd-wakes", daemon=True).start()

    def set(self, number: int, seconds: float, call: Callable[[], None]) -> None:
        """Has something called after a time; of one number the last call counts."""
        with self._changed:
            self._due[number] = time.monotonic() + seconds, call
            self._changed.notify()

    def drop(self, number: int) -> None:
        """Forgets what was to be called."""
        with self._changed:
            self._due.pop(number, None)

    def _run(self) -> None:
        while True:
            for call in self._next():
                call()

    def _next(self) -> list[Callable[[], None]]:
        """Waits until something is due, or has changed; returns what is."""
        with self._changed:
            first = min((when for when, _ in self._due.values()), default=None)
            self._changed.wait(None if first is None else max(0.0, first - time.monotonic()))
            now = time.monotonic()
            over = [number for number, (when, _) in self._due.items() if when <= now]
            return [self._due.pop(number)[1] for number in over]
