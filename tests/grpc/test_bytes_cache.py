"""The cache of answers, and the figures of the server's report."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umd_grpc.server.cache import BytesCache
from umd_grpc.server.report import Report

KEYS = st.integers(0, 30).map(lambda number: number.to_bytes(1 + number % 7, "little"))


@given(st.integers(2, 20), st.integers(2, 400), st.lists(st.tuples(st.booleans(), KEYS, st.binary(max_size=30))))
def test_it_holds_what_was_kept_last_and_no_more_than_it_may(
    entries: int, size: int, steps: list[tuple[bool, bytes, bytes]]
) -> None:
    cache, kept = BytesCache(entries, size), dict[bytes, bytes]()
    for keep, key, value in steps:
        if keep:
            cache.keep(key, value)
            if len(key) + len(value) <= size // 2:
                kept[key] = value
                assert cache.find(key) == value
        else:
            found = cache.find(key)
            assert found is None or found == kept[key]
        assert len(cache) <= entries
        generations = (cache._young, cache._old)
        assert sum(len(k) + len(v) for generation in generations for k, v in generation.items()) <= size


def test_what_is_used_stays() -> None:
    cache = BytesCache(20, 1 << 20)
    cache.keep(b"used", b"value")
    for number in range(1000):
        cache.keep(number.to_bytes(4, "little"), b"x")
        assert cache.find(b"used") == b"value"
    assert cache.hits == 1000


def test_a_report_line_is_about_the_time_since_the_last() -> None:
    report = Report(lambda: 3)
    assert report.line() is None
    report.translated(98e-6, 98, 2)
    report.translated(2e-3, 2, 0)
    report.sessions = 4
    line = report.line()
    assert line is not None
    assert line["translate_mean_us"] == pytest.approx(20.98, abs=0.1)
    assert line["translate_p99_us"] == 1000
    assert (line["failures"], line["sessions"], line["queue_depth"]) == (2, 4, 3)
    assert line["ops_per_second"] > 0
    assert report.line() is None
    report.frames += 5
    line = report.line()
    assert line is not None
    assert (line["frames"], line["ops_per_second"], line["translate_p99_us"]) == (5, 0, 0)
