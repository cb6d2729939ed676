"""What the server counts, and the line about it that appears in the log each second under load."""

from __future__ import annotations

import bisect
import json
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

LOGGER = logging.getLogger("umd_grpc")
SAMPLES = 8192
BOUNDS = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 1e-1, 1.0)
"""Seconds of a translation by which the histogram is divided."""


def log(event: str, **facts: Any) -> None:
    """Writes one structured line: a JSON object with the event's name first."""
    LOGGER.info(json.dumps({"event": event, **facts}, default=str))


class Report:
    """Counters since the start, and the latencies since the last line.

    Attributes:
        ops, failures: translations answered, and those answered with an error.
        submissions, frames: submissions and session frames carried out.
        bytes_in, bytes_out: payload of messages and transfers.
        sessions: sessions open now.
    """

    def __init__(self, queue_depth: Callable[[], int] = lambda: 0) -> None:
        """`queue_depth` returns the jobs that wait for a device thread."""
        self.ops = self.failures = self.submissions = self.frames = self.bytes_in = self.bytes_out = self.sessions = 0
        self._queue_depth = queue_depth
        self._latencies: list[tuple[float, int]] = []
        self._histogram, self._seconds = [0] * (len(BOUNDS) + 1), 0.0
        self._mean = self._p99 = 0.0
        self._last: dict[str, int] = self.counters
        self._since = time.monotonic()

    @property
    def counters(self) -> dict[str, int]:
        """What was counted since the start, by name."""
        return {
            "ops": self.ops,
            "failures": self.failures,
            "submissions": self.submissions,
            "frames": self.frames,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
        }

    def translated(self, seconds: float, count: int, failures: int) -> None:
        """Notes `count` translations that took `seconds` together."""
        self.ops += count
        self.failures += failures
        self._seconds += seconds
        self._histogram[bisect.bisect_left(BOUNDS, seconds / count)] += count
        if len(self._latencies) < SAMPLES:
            self._latencies.append((seconds / count, count))

    @property
    def histogram(self) -> tuple[tuple[int, ...], float]:
        """Translations since the start by their time (a count for each bound, one for the rest), and their seconds."""
        return tuple(self._histogram), self._seconds

    @property
    def recent(self) -> tuple[float, float]:
        """Mean and p99 of a translation in seconds, as the last line has them."""
        return self._mean, self._p99

    def line(self) -> dict[str, Any] | None:
        """Returns what happened since the last line, None when nothing did."""
        now, counters = time.monotonic(), self.counters
        seconds, before = now - self._since, self._last
        latencies, self._latencies = self._latencies, []
        self._since, self._last = now, counters
        if counters == before:
            return None
        moved = {name: value - before[name] for name, value in counters.items()}
        mean, high = self._mean, self._p99 = _mean_and_p99(latencies)
        return {
            "ops_per_second": round(moved["ops"] / seconds, 1),
            "translate_mean_us": round(mean * 1e6, 1),
            "translate_p99_us": round(high * 1e6, 1),
            "sessions": self.sessions,
            "queue_depth": self._queue_depth(),
            **{name: moved[name] for name in ("failures", "submissions", "frames", "bytes_in", "bytes_out")},
        }


def _mean_and_p99(latencies: Iterable[tuple[float, int]]) -> tuple[float, float]:
    """Returns both over (seconds, weight) samples; 0 when there are none."""
    samples = sorted(latencies)
    total = sum(count for _, count in samples)
    if not total:
        return 0.0, 0.0
    mean = sum(seconds * count for seconds, count in samples) / total
    rank, seen = 0.99 * total, 0
    for seconds, count in samples:
        seen += count
        if seen >= rank:
            return mean, seconds
    return mean, samples[-1][0]
