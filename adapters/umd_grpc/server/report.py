"""What the server counts, and the line about it that appears in the log each second under load."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

LOGGER = logging.getLogger("umd_grpc")
SAMPLES = 8192


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
        self._last: dict[str, int] = self._counters()
        self._since = time.monotonic()

    def _counters(self) -> dict[str, int]:
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
        if len(self._latencies) < SAMPLES:
            self._latencies.append((seconds / count, count))

    def line(self) -> dict[str, Any] | None:
        """Returns what happened since the last line, None when nothing did."""
        now, counters = time.monotonic(), self._counters()
        seconds, before = now - self._since, self._last
        latencies, self._latencies = self._latencies, []
        self._since, self._last = now, counters
        if counters == before:
            return None
        moved = {name: value - before[name] for name, value in counters.items()}
        mean, high = _mean_and_p99(latencies)
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
