"""Finds the wrong commands of one submission: one by one, or by halves where whole stretches agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from umd_core.capture.judge import Launch, Verdict, holds_nonfinite, nonfinite, tolerance_of, ulps
from umd_core.capture.report import ComparisonReport, Difference, Number
from umd_core.capture.stage import Stage, written_refs
from umd_core.commands import WRITE, Dispatch, Mark, Ref, refs_of
from umd_core.ir import Array
from umd_core.kernels import OperandView

LOOKED_AT = 1 << 20
"""Bytes of a buffer up to which it is looked at as a whole after each command, for stray writes."""


class Steps:
    """The commands of a submission on two devices.

    Each command starts from the same bytes on both: what the first device computed. So a rounding error of one command
    is not counted against the next, and the command that is named is the one that is wrong.

    Args:
        stage: the submission.
        number: of the submission.
        report: gets counts.
        any_nonfinite: whether NaN and infinities are numbers as any other, which the two devices have to agree on.
    """

    def __init__(self, stage: Stage, number: int, report: ComparisonReport, *, any_nonfinite: bool) -> None:
        self._stage, self._number, self._report = stage, number, report
        self._any_nonfinite = any_nonfinite
        self._marks = _marks(stage)

    def one_by_one(self, first: int, last: int) -> Iterator[Difference]:
        """Yields what is wrong with commands [first, last)."""
        for index in range(first, last):
            if self._stage.does_something(index):
                yield from self._command(index)

    def by_halves(self, first: int, last: int) -> Iterator[Difference]:
        """Yields what is wrong with commands [first, last), without looking into stretches that agree bit by bit.

        NaN and infinities that later commands of an agreeing stretch overwrite are not seen.
        """
        if last - first <= 1:
            yield from self.one_by_one(first, last)
        elif not self._agree(first, last):
            middle = (first + last) // 2
            yield from self.by_halves(first, middle)
            yield from self.by_halves(middle, last)

    def _agree(self, first: int, last: int) -> bool:
        """Runs a stretch; returns whether the results are the same, else takes everything back."""
        stage, refs = self._stage, self._stage.written(first, last)
        busy = sum(map(stage.does_something, range(first, last)))
        if not busy:
            return True
        if not any(stage.run(first, last)):
            results = [(ref, stage.read(0, ref), stage.read(1, ref)) for ref in refs]
            if all(np.array_equal(a, b) for _, a, b in results) and self._finite(first, last, results):
                for ref, a, b in results:
                    stage.settle(ref, a, b)
                self._report.commands += busy
                self._report.equal += busy
                return True
        stage.undo(refs)
        return False

    def _finite(self, first: int, last: int, results: list[tuple[Ref, Array, Array]]) -> bool:
        """Returns whether no written operand holds NaN or an infinity in the end."""
        if self._any_nonfinite:
            return True
        for index in range(first, last):
            command = self._stage.cb.commands[index]
            if not isinstance(command, Dispatch) or not self._stage.does_something(index):
                continue
            for ref, view in zip(command.refs, self._views(index), strict=True):
                data = _within(ref, results) if ref.access & WRITE else None
                if data is not None and holds_nonfinite(box(view, data)):
                    return False
        return True

    def _views(self, index: int) -> list[OperandView]:
        command = self._stage.cb.commands[index]
        if not isinstance(command, Dispatch):
            return []
        return self._stage.cb.kernels[command.kernel].views(self._stage.parameters(index))

    def _command(self, index: int) -> Iterator[Difference]:
        stage, command = self._stage, self._stage.cb.commands[index]
        refs = written_refs(command)
        self._report.commands += 1
        errors = stage.run(index, index + 1)
        if any(errors):
            stage.undo(refs)
            statuses = [error and error.status for error in errors]
            if statuses[0] == statuses[1]:
                self._report.failed += 1
            else:
                texts = tuple(str(error) if error else "" for error in errors)
                wrong = [name for name, error in zip(self._report.devices, errors, strict=True) if error]
                yield self._found(index, "failed", errors=texts, at_fault=tuple(wrong))
            return
        results = [(ref, stage.read(0, ref), stage.read(1, ref)) for ref in refs]
        yield from self._judged(index, results)
        for ref, a, b in results:
            stage.settle(ref, a, b)
        yield from self._strays(index, {ref.slot for ref in refs}, LOOKED_AT)

    def _judged(self, index: int, results: list[tuple[Ref, Array, Array]]) -> Iterator[Difference]:
        """Yields what is wrong with the results of a command, whose inputs the stage still holds."""
        equal = all(np.array_equal(a, b) for _, a, b in results)
        command = self._stage.cb.commands[index]
        found = None
        if isinstance(command, Dispatch):
            found = self._dispatch(index, command, results, equal=equal)
        elif not equal:
            _, a, b = next(result for result in results if not np.array_equal(*result[1:]))
            found = self._element(index, "value", "destination", Verdict(a != b, None, None), a, b)
        if found is not None:
            yield found
        elif equal:
            self._report.equal += 1
        else:
            self._report.close += 1

    def _dispatch(
        self, index: int, command: Dispatch, results: list[tuple[Ref, Array, Array]], *, equal: bool
    ) -> Difference | None:
        """Returns the first thing that is wrong with a launch."""
        record, views = self._stage.cb.kernels[command.kernel], self._views(index)
        before: Mapping[str, Array] = {
            view.name: box(view, self._stage.held(ref)) for ref, view in zip(command.refs, views, strict=True)
        }
        launch = Launch(record, self._stage.parameters(index), before)
        for at, view in enumerate(views):
            result = next((r for r in results if r[0] is command.refs[at]), None)
            if result is None:
                continue
            a, b = (box(view, data) for data in result[1:])
            tolerance = tolerance_of(record.row, view.dtype)
            bad = nonfinite(a) | nonfinite(b)
            if bad.any() and not self._any_nonfinite and not launch.had_nonfinite():
                cause = launch.verdict(view.name, view.dtype, a, b) or Verdict(bad, None, None)
                return self._element(index, "nonfinite", view.name, cause._replace(wrong=bad), a, b, tolerance)
            verdict = None if equal else launch.verdict(view.name, view.dtype, a, b)
            if verdict is not None:
                return self._element(index, "value", view.name, verdict, a, b, tolerance)
        return None

    def _element(
        self, index: int, kind: str, operand: str, verdict: Verdict, a: Array, b: Array, tolerance: float = 0.0
    ) -> Difference:
        """Returns the difference at the first wrong element."""
        at = tuple(int(i) for i in np.argwhere(verdict.wrong)[0])
        values = (number(a[at]), number(b[at]))
        expected = None if verdict.expected is None else number(verdict.expected[at])
        names = self._report.devices
        at_fault = [n for n, fault in zip(names, verdict.at_fault or (), strict=False) if fault]
        absolute = abs(float(values[0]) - float(values[1]))
        size = max(abs(float(values[0])), abs(float(values[1])))
        known = bool(np.isfinite(absolute))
        return self._found(
            index,
            kind,
            operand=operand,
            element=at,
            values=values,
            expected=expected,
            at_fault=tuple(at_fault),
            absolute=absolute if known else None,
            relative=(absolute / size if size else 0.0) if known else None,
            ulps=ulps(a[at], b[at]) if known else None,
            wrong=int(verdict.wrong.sum()),
            tolerance=tolerance,
            count=a.size,
        )

    def strays(self) -> Iterator[Difference]:
        """Yields stray writes of the whole submission into buffers that are too large to be looked at each time."""
        last = max((i for i in range(len(self._stage.cb.commands)) if self._stage.does_something(i)), default=-1)
        if last >= 0:
            slots = {ref.slot for command in self._stage.cb.commands for ref in refs_of(command)}
            yield from self._strays(last, slots, 1 << 62, " by this or an earlier command")

    def _strays(self, index: int, slots: set[int], most: int, who: str = "") -> Iterator[Difference]:
        found = self._stage.strays(sorted(slots), most)
        if found is None:
            return
        which, slot, byte = found
        name = self._report.devices[which]
        texts = ("changed" + who if which == 0 else "", "changed" + who if which == 1 else "")
        self._stage.accept(slots)
        yield self._found(index, "stray", operand=str(slot), element=(byte,), at_fault=(name,), errors=texts)

    def _found(self, index: int, kind: str, **facts: Any) -> Difference:
        cb, command = self._stage.cb, self._stage.cb.commands[index]
        if cb.debug:
            facts |= cb.debug[index]._asdict()
        if isinstance(command, Dispatch):
            record = cb.kernels[command.kernel]
            facts |= {"name": record.row.name, "types": tuple(t.name for t in record.types)}
        else:
            facts["name"] = type(command).__name__.lower()
        where = (self._number, self._stage.digest, index, self._report.devices)
        return Difference(kind, *where, mark=self._marks[index], **facts)


def _within(ref: Ref, results: list[tuple[Ref, Array, Array]]) -> Array | None:
    """Returns what a range holds in the end, of the disjoint ranges that were read."""
    for whole, data, _ in results:
        start = ref.offset - whole.offset
        if whole.slot == ref.slot and start >= 0 and start + ref.length <= whole.length:
            return data[start : start + ref.length]
    return None


def box(view: OperandView, data: Array) -> Array:
    """Returns a copy of the elements of an operand, out of the bytes of its range."""
    return np.ndarray(view.shape, view.dtype.numpy, data.tobytes(), view.offset, view.strides).copy()


def number(value: Any) -> Number:
    """Returns a number of NumPy as Python's."""
    plain: Any = value.item() if hasattr(value, "item") else value
    return plain if isinstance(plain, (bool, int, float)) else float(plain)


def _marks(stage: Stage) -> list[str]:
    """Returns for each command the last label before it."""
    marks, last = [], ""
    for command in stage.cb.commands:
        last = command.label if isinstance(command, Mark) else last
        marks.append(last)
    return marks
