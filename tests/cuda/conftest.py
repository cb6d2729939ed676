"""Compiled kernels are kept between sessions, and shared by the workers of one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _compiled(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UMD_CUDA_CACHE", str(request.config.cache.mkdir("umd-cuda")))
        yield
