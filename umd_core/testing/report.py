"""Runs the kit against a device outside of any test suite, for `umd conformance NAME`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import pytest

from umd_core.registry import open_device

_NO = [part for name in ("cacheprovider", "terminal", "asyncio", "timeout") for part in ("-p", f"no:{name}")]
PLUGIN, SUITE = "umd_core.testing.plugin", "umd_core.testing.suite"


@dataclass(frozen=True, slots=True)
class Result:
    """One test: its name, "passed", "failed", "skipped" (unsupported, and why) or "xfailed", seconds and reason."""

    name: str
    outcome: str
    seconds: float
    detail: str = ""


@dataclass(slots=True)
class Report:
    """What the kit found out about a device."""

    device: str
    results: list[Result] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether something ran and nothing failed."""
        return bool(self.results) and not self.count("failed")

    def count(self, outcome: str) -> int:
        """Returns how many tests ended so."""
        return sum(result.outcome == outcome for result in self.results)

    def as_dict(self) -> dict[str, Any]:
        """Returns the report as data, fit for JSON."""
        outcomes = sorted({result.outcome for result in self.results})
        return {
            "device": self.device,
            "ok": self.ok,
            "counts": {outcome: self.count(outcome) for outcome in outcomes},
            "results": [
                {"name": r.name, "outcome": r.outcome, "seconds": round(r.seconds, 4), "detail": r.detail}
                for r in self.results
            ],
        }


class _Collector:
    """A pytest plugin that keeps what happened."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes the outcome of a test, or of a fixture that failed."""
        if report.when != "call" and not (report.failed or report.skipped):
            return
        outcome: str = report.outcome
        detail = report.longreprtext if report.failed else ""
        if report.skipped:
            expected = hasattr(report, "wasxfail")
            outcome = "xfailed" if expected else "skipped"
            detail = str(getattr(report, "wasxfail", "")) if expected else _reason(report)
        name = report.nodeid.rpartition("::")[2]
        self._report.results.append(Result(name, outcome, report.duration, detail))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Notes that the suite could not even be read."""
        if report.failed:
            self._report.results.append(Result(report.nodeid, "failed", 0.0, report.longreprtext))


def _reason(report: pytest.TestReport) -> str:
    where = report.longrepr
    return str(where[2]).removeprefix("Skipped: ") if isinstance(where, tuple) else ""


def run(name: str, *, select: str = "") -> Report:
    """Returns the report of the kit on the device `name`, printing nothing.

    Args:
        name: what `open_device` gets.
        select: pytest's -k expression, to run a part of it.

    Raises:
        UmdError: the device cannot be opened.
    """
    open_device(name).close()
    report = Report(name)
    arguments = ["--pyargs", SUITE, "--umd-device", name, *_NO]
    arguments += ["--config-file", os.devnull, "--import-mode=importlib", *(["-k", select] if select else [])]
    if not any(point.value == PLUGIN for point in metadata.entry_points(group="pytest11")):
        arguments += ["-p", PLUGIN]
    code = pytest.main(arguments, plugins=[_Collector(report)])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        report.results.append(Result("pytest", "failed", 0.0, f"pytest ended with {code!s}"))
    return report
