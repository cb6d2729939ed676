"""Replay: a program that runs twice with the same bindings and values is captured, and runs as a whole from then on.

What was captured holds addresses and parameters as they were, so it belongs to exactly these bindings and values: any
other submission runs launch by launch.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

from umd_core.commands import Update
from umd_core.device import Program
from umd_core.errors import IndexRangeError
from umd_cuda.driver import Call, Driver, DriverError
from umd_cuda.status import CheckedCall

RUNS = 2
"""Good runs before a program is captured."""


@dataclass(slots=True)
class _Entry:
    bound: tuple[object, ...]
    words: tuple[int, ...] | None
    runs: int = 0
    replay: Call | None = None
    checks: list[tuple[int, CheckedCall]] = field(default_factory=list)


class Replays:
    """The captured programs of one driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._entries: weakref.WeakKeyDictionary[Program, _Entry] = weakref.WeakKeyDictionary()

    def run(self, program: Program, bindings: tuple[object, ...], words: tuple[int, ...]) -> bool:
        """Runs a captured program; returns whether it was captured with these bindings and values."""
        entry = self._entries.get(program)
        if entry is None or entry.replay is None or not _fits(entry, program, bindings, words):
            return False
        entry.replay()
        return True

    def failures(self, program: Program) -> list[tuple[int, IndexRangeError]]:
        """Returns, once a replay is done, which steps (by position) found an index out of range."""
        found = []
        for position, call in self._entries[program].checks:
            try:
                call.check()
            except IndexRangeError as error:
                found.append((position, error))
        return found

    def ran(self, program: Program) -> None:
        """Notes a good run, launch by launch; the second in a row with the same bindings and values is captured."""
        if program.one_shot or program.events or any(isinstance(step.source, Update) for step in program.steps):
            return
        entry = self._entries.get(program)
        if entry is None or not _fits(entry, program, program.bound, program.words or ()):
            entry = self._entries[program] = _Entry(program.bound, program.words)
        entry.runs += 1
        if entry.runs == RUNS:
            entry.replay = self._capture(program, entry)

    def _capture(self, program: Program, entry: _Entry) -> Call | None:
        calls = program.calls
        entry.checks = [(i, call) for i, call in enumerate(calls) if isinstance(call, CheckedCall)]
        for _, check in entry.checks:
            check.deferred = True
        try:
            self._driver.begin_capture()
            for call in calls:
                call()
        except DriverError as fault:
            self._driver.end_capture()
            if fault.fatal:
                raise
            return None
        finally:
            for _, check in entry.checks:
                check.deferred = False
        return self._driver.end_capture()

    def forget(self) -> None:
        """Drops everything that was captured."""
        self._entries.clear()


def _fits(entry: _Entry, program: Program, bindings: tuple[object, ...], words: tuple[int, ...]) -> bool:
    """Returns whether what an entry holds is what the program is bound to, and what is asked for."""
    return entry.bound == bindings == program.bound and entry.words == words == program.words
