"""What every test relies on: one BLAS thread a worker, and Hypothesis without deadlines."""

from __future__ import annotations

import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy and torch load their BLAS

from hypothesis import HealthCheck, settings

OPINFO_PART = "UMD_OPINFO_PART"
os.environ.setdefault(OPINFO_PART, str(int(time.time() // 86400)))  # days since 1970; here, so that workers agree


def pytest_report_header() -> str:
    """Says which part of torch's op tests runs, for running it again."""
    return f"torch's op tests: {OPINFO_PART}={os.environ[OPINFO_PART]} (another part every day)"


settings.register_profile(
    "umd",
    deadline=None,  # the machines are shared: no test asserts a time
    max_examples=50,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("ci", settings.get_profile("umd"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "umd")
