"""What happens when torch has compiled a function as often as it will: nothing runs on the CPU unnoticed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from umd_torch import FallbackWarning, counters, explain


@pytest.fixture(autouse=True)
def _limit() -> Iterator[None]:
    """Torch's own limit is low, and what a strict graph does to it ends with the test."""
    with torch._dynamo.config.patch(recompile_limit=3, fail_on_recompile_limit_hit=False):
        yield


def _double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _shapes(count: int) -> list[torch.Tensor]:
    return [torch.ones(rows, 2) for rows in range(2, 2 + count)]


def test_strict_raises() -> None:
    call: Any = torch.compile(_double, backend="umd", options={"device": "sim:0", "strict": True}, dynamic=False)
    *compiled, last = _shapes(4)
    for x in compiled:
        call(x)
    assert counters.submissions == 3
    with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit) as caught:
        call(last)
    assert "torch._dynamo.config.recompile_limit" in str(caught.value.__cause__)
    for x in compiled:
        assert torch.equal(call(x), 2 * x)
    assert counters.submissions == 6


def test_a_warning_says_that_it_is_the_last_time() -> None:
    call: Any = torch.compile(_double, backend="umd", options={"device": "sim:0"}, dynamic=False)
    first, second, third, fourth = _shapes(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(first), call(second)
    with pytest.warns(FallbackWarning, match=rf"{__file__}:\d+.*recompile_limit"):
        call(third)
    assert torch.equal(call(fourth), 2 * fourth)
    assert counters.submissions == 3


def test_explain_does_not_count() -> None:
    model = nn.Linear(2, 3)
    with torch.no_grad():
        for x in _shapes(8):
            found = explain(model, x, device="sim:0")
            assert (len(found.graphs), found.recompiles) == (1, 0)
        compiled: Any = torch.compile(model, backend="umd", options={"device": "sim:0", "strict": True})
        torch.testing.assert_close(compiled(x), model(x))
    assert counters.submissions == 1
