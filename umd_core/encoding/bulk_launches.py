"""Rule 7 for many launches of one kernel record at once, over NumPy. Accepts only what certainly keeps the rules.

As in `bulk`, what is not accepted is judged one by one, by `launches`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from umd_core.encoding.bulk import Bulk
from umd_core.encoding.launches import LaunchRules, launch_rules
from umd_core.encoding.layout import LAUNCH, NUMBER_LIMIT
from umd_core.kernels import Box, safety

_Array = NDArray[Any]
_LIMIT = NUMBER_LIMIT
_CERTAIN = float(_LIMIT) * (1 - 2**-40)
"""Bounds computed in float64 are certain below this, whatever was rounded on the way."""
FEWEST_LAUNCHES = 40
"""Launches of one kernel from which on this is faster than one by one."""
_LAUNCH_WORDS = LAUNCH.size // 8


def doubtful_launches(bulk: Bulk, max_work: int) -> list[int]:
    """Returns the dispatches that were not certainly accepted, ascending. The structure has been checked before."""
    records = bulk.tables.records
    order = np.argsort(bulk.kernel, kind="stable")
    ends = np.searchsorted(bulk.kernel[order], np.arange(len(records) + 1))
    doubtful: list[_Array] = []
    for number, record in enumerate(records):
        indices = bulk.dispatches[order[ends[number] : ends[number + 1]]]
        rules = launch_rules(record)
        if len(indices) >= FEWEST_LAUNCHES and not rules.program.stop:  # programs are judged one by one
            indices = indices[_Launches(bulk, rules, indices).doubts(min(max_work, _LIMIT))]
        doubtful.append(indices)
    found: list[int] = np.sort(np.concatenate(doubtful)).tolist() if doubtful else []
    return found


class _Launches:
    """Launches of one kernel record: each number of launch block and parameters as an array, one entry a launch.

    `bad` collects the launches in doubt.
    """

    def __init__(self, bulk: Bulk, rules: LaunchRules, indices: _Array) -> None:
        self.rules, self.record, self.bulk = rules, rules.record, bulk
        data = bulk.tables.data
        at = bulk.data_offset[indices]
        block_words = np.arange(_LAUNCH_WORDS, _LAUNCH_WORDS + self.record.size // 8)[:, None]
        self.words: _Array = np.frombuffer(data, "<i8")[at + block_words]
        self.launch: _Array = np.frombuffer(data, "<u4")[2 * at + np.arange(2 * _LAUNCH_WORDS)[:, None]]
        refs = bulk.first_ref[indices] + np.arange(len(self.record.boxes))[:, None]
        self.slot, self.offset, self.length = bulk.slot[refs], bulk.offset[refs], bulk.length[refs]
        self.least: list[int] = self.words.min(axis=1).tolist()
        self.most: list[int] = self.words.max(axis=1).tolist()
        self.bad: _Array = np.zeros(len(indices), np.bool_)

    def doubts(self, max_work: int) -> _Array:
        """Returns which launches were not certainly accepted."""
        columns = self._columns()
        if not self._numbers_fit(columns, max_work):
            return np.ones(len(self.bad), np.bool_)
        self._check_launch(columns)
        alignments = np.array(self.bulk.tables.alignments, np.int64)
        masks = np.array([box.dtype.size - 1 for box in self.record.boxes])[:, None]
        self.bad |= (((self.offset | alignments[self.slot]) & masks) != 0).any(axis=0)
        for at, box in enumerate(self.record.boxes):
            self._check_touched(box, self.length[at], columns)
            if box.operand.writes and not self.record.row.atomic:
                self._check_distinct(box, columns)
        self._check_aliases(columns)
        return self.bad

    def _columns(self) -> list[_Array]:
        """Returns the fields of all blocks; those of 4 bytes, which nothing here reads, as zeros."""
        zeros = np.zeros(len(self.bad), np.int64)
        return [self.words[c.offset // 8] if c.size == 8 else zeros for c in self.rules.columns]

    def _numbers_fit(self, columns: list[_Array], max_work: int) -> bool:
        """Checks array lengths, padding and range; returns False when the range of all is in doubt.

        A u64 from 2^63 on is negative here, which is caught as well.
        """
        raw = self.words.T.copy().view(np.uint8)
        for at, count in self.record.padding:
            self.bad |= raw[:, at : at + count].any(axis=1)
        for at, size in enumerate(self.record.sizes):
            self.bad |= raw[:, 4 * at : 4 * at + 4].view("<u4")[:, 0] != size
        largest = []
        for offset, size, kind in self.rules.columns:
            if size != 8 or kind == "f":
                largest.append(0)
                continue
            low, high = self.least[offset // 8], self.most[offset // 8]
            if high >= _LIMIT or low < (0 if kind == "u" else 1 - _LIMIT):
                return False
            largest.append(max(high, -low))
        if max(self.rules.bounds(largest, lambda number: number or 1)) >= _LIMIT:
            floats = [np.abs(column.astype(np.float64)) for column in columns]
            with np.errstate(over="ignore"):
                for bound in self.rules.bounds(floats, lambda number: np.maximum(number, 1.0)):
                    self.bad |= np.logical_not(bound < _CERTAIN)
        for at in self.rules.steps:
            self.bad |= columns[at] == 0
        if safety.work(self.record, largest) > max_work:
            work: Any = safety.work(self.record, columns)  # type: ignore[arg-type]  # arrays do as well
            self.bad |= work > max_work
        return True

    def _check_launch(self, columns: list[_Array]) -> None:
        for at, expected in enumerate((*self.record.geometry(columns), 0)):
            self.bad |= self.launch[at] != expected

    def _check_touched(self, box: Box, length: _Array, columns: list[_Array]) -> None:
        if any(columns[extent].min() == 0 or columns[stride].min() < 0 for extent, stride in box.axes):
            low, high = safety.touched_arrays(box, columns)
            self.bad |= low < 0
        else:
            high = columns[box.offset] + 1
            self.bad |= high <= 0
            for extent, stride in box.axes:
                high += (columns[extent] - 1) * columns[stride]
            high *= box.dtype.size
        self.bad |= high > length

    def _check_distinct(self, box: Box, columns: list[_Array]) -> None:
        if len(box.axes) == 1:
            ((extent, stride),) = box.axes
            self.bad |= (columns[stride] == 0) & (columns[extent] > 1)
        else:
            self.bad |= ~safety.injective_arrays(box, columns)

    def _check_aliases(self, columns: list[_Array]) -> None:
        memory = np.array(self.bulk.tables.memory, np.int64)[self.slot]
        boxes = self.record.boxes
        for i, j in self.rules.pairs:
            same = memory[i] == memory[j]
            if not same.any():
                continue
            overlap = same & (self.length[i] > 0) & (self.length[j] > 0)
            overlap &= self.offset[i] < self.offset[j] + self.length[j]
            overlap &= self.offset[j] < self.offset[i] + self.length[i]
            if self.rules.declares(i, j) and overlap.any():
                overlap &= ~((self.offset[i] == self.offset[j]) & safety.same_elements(boxes[i], boxes[j], columns))
            self.bad |= overlap
