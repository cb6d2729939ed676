"""Results that share their memory in torch share it through the device: what changes one changes the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

Function = Callable[[torch.Tensor], Any]


def _split(x: torch.Tensor) -> Any:
    first, second = (x + 1).split(2)
    return first, second, second[0]


FUNCTIONS: dict[str, Function] = {
    "whole and views": lambda x: (y := x * 2, y.view(-1), y[0]),
    "views alone": lambda x: (y := (x * 2).contiguous()[1:], y[:, ::2]),
    "transposed": lambda x: (y := x + 1, y.t()),
    "detached": lambda x: (y := x * 2, y.detach()),
    "twice": lambda x: (y := x * 2, y),
    "expanded": lambda x: (y := x.sum(1), y[:, None].expand(-1, 3)),
    "split": _split,
    "two groups": lambda x: (y := x * 2, z := x + 1, y[0], z[1]),
    "reshaped copy": lambda x: (y := x * 2, y.t().reshape(-1)),
    "in a structure": lambda x: {"a": [y := x.exp()], "b": (y[1], y.unsqueeze(0))},
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("where", ["sim:0", "plain"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_changes_are_seen(name: str, where: str, dynamic: bool, plain: str) -> None:
    function = FUNCTIONS[name]
    device = plain if where == "plain" else where
    compiled: Any = torch.compile(
        function, backend="umd", options={"device": device, "strict": True}, dynamic=dynamic or None
    )
    for rows in (4, 5) if dynamic and name != "split" else (4,):
        x = torch.randn(rows, 4)
        with torch.no_grad():
            mine, theirs = (torch.utils._pytree.tree_leaves(f(x)) for f in (compiled, function))
            for position in range(len(theirs)):
                if 0 in theirs[position].stride():
                    continue  # torch refuses changes of elements that lie twice
                for results in (mine, theirs):
                    results[position].add_(1 + position)
                for a, b in zip(mine, theirs, strict=True):
                    torch.testing.assert_close(a, b)
                    assert a.stride() == b.stride()
        assert [a is mine[0] for a in mine] == [b is theirs[0] for b in theirs]


def test_a_changed_view_is_a_new_input(plain: str) -> None:
    """What comes back after a change through another result is sent as it is now."""

    def doubled(x: torch.Tensor) -> Any:
        return (y := x * 2), y[0]

    step: Any = torch.compile(doubled, backend="umd", options={"device": plain, "strict": True})
    with torch.no_grad():
        x = torch.ones(3, 3)
        for _ in range(4):
            wanted = 2 * x
            x, row = step(x)
            torch.testing.assert_close(x, wanted)
            row.add_(1)
            torch.testing.assert_close(x[0], wanted[0] + 1)
