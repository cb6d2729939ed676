"""Writes into tensors some of whose elements share memory: refused op by op and in compiled graphs, elsewhere right."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

import umd_torch
from umd_torch.overlaps import lies_twice

DEVICE = umd_torch.connect("sim:0")
WORDS = "more than one element of the written-to tensor refers to a single memory location"

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "windows": lambda x: x.as_strided((4, 3), (1, 1)),
    "unfolded": lambda x: x.unfold(0, 3, 1),
    "steps of two": lambda x: x.as_strided((2, 3), (2, 1)),
    "expanded": lambda x: x[:3, None].expand(3, 3),
}
"""Views some of whose elements share memory."""
APART: dict[str, Callable[[Tensor], Tensor]] = {
    "crossing": lambda x: x.as_strided((2, 3), (3, 2)),
    "interleaved": lambda x: x.as_strided((2, 2), (1, 3)),
    "transposed": lambda x: x[:6].view(2, 3).t(),
    "part": lambda x: x[:6].view(2, 3)[:, ::2],
    "one by one": lambda x: x[:1].expand(1, 1),
}
"""Views whose elements do not."""
WRITES: dict[str, Callable[[Tensor], Any]] = {
    "add_": lambda v: v.add_(1),
    "add_ a tensor": lambda v: v.add_(torch.ones(v.shape, device=v.device)),
    "copy_": lambda v: v.copy_(torch.ones(v.shape, device=v.device)),
    "copy_ from the CPU": lambda v: v.copy_(torch.ones(v.shape)),
    "relu_": lambda v: v.relu_(),
    "clamp_": lambda v: v.clamp_(1, 2),
    "all of it": lambda v: v.__setitem__(slice(None), 7.0),
    "+=": lambda v: v.__iadd__(1),
    "index_fill_": lambda v: v.index_fill_(0, torch.tensor([0], device=v.device), 5.0),
    "masked_fill_": lambda v: v.masked_fill_(torch.ones(v.shape, dtype=torch.bool, device=v.device), 5.0),
    "foreach": lambda v: torch._foreach_mul_([v], 2.0),
    "inplace=True": lambda v: functional.relu(v, inplace=True),
    "in place by position": lambda v: functional.leaky_relu(v, 0.5, True),
    "an overload": lambda v: torch.ops.aten.mul_.Tensor(v, 3),
    "uniform_": lambda v: v.uniform_(),
}


def start() -> Tensor:
    return torch.arange(8.0) - 2


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("view", VIEWS)
def test_ops_refuse_them(view: str, write: str) -> None:
    x = start().to("umd")
    with pytest.raises(RuntimeError, match=WORDS):
        WRITES[write](VIEWS[view](x))
    assert torch.equal(x.cpu(), start())


def test_an_out_tensor_is_refused() -> None:
    x = start().to("umd")
    view = VIEWS["windows"](x)
    with pytest.raises(RuntimeError, match=WORDS):
        torch.mul(torch.ones(4, 3, device="umd"), 2, out=view)
    assert torch.equal(x.cpu(), start())


@pytest.mark.filterwarnings("ignore::umd_torch.FallbackWarning")  # of some the core cannot see that they lie apart
@pytest.mark.parametrize("write", [name for name in WRITES if name != "uniform_"])
@pytest.mark.parametrize("view", APART)
def test_ops_write_others_as_torch_does(view: str, write: str) -> None:
    wanted, found = start(), start().to("umd")
    WRITES[write](APART[view](wanted))
    WRITES[write](APART[view](found))
    assert torch.equal(found.cpu(), wanted)


def test_a_part_whose_elements_lie_apart_is_written() -> None:
    wanted, found = start(), start().to("umd")
    for x in (wanted, found):
        VIEWS["windows"](x)[1].add_(1)
        VIEWS["windows"](x)[2] = 9.0
        VIEWS["expanded"](x)[:, 0].mul_(2)
    assert torch.equal(found.cpu(), wanted)


def compiled(write: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        write(x)
        return x * 1

    found: Callable[[Tensor], Tensor] = torch.compile(function, backend="umd")
    return found


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("view", ["windows", "expanded"])
def test_compiled_graphs_refuse_them(view: str, write: str) -> None:
    for x in (start().to("umd"), start()):
        torch._dynamo.reset()
        with pytest.raises(Exception, match=WORDS):
            compiled(lambda v: WRITES[write](VIEWS[view](v)))(x)
        assert torch.equal(x.cpu(), start())


PARTS: dict[str, Callable[[Tensor], Any]] = {
    "a row": lambda x: VIEWS["windows"](x)[1].add_(1),
    "a row by index": lambda x: VIEWS["windows"](x).__setitem__(2, 9.0),
    "one of many": lambda x: VIEWS["windows"](x).unbind(0)[1].mul_(2),
    "of what was expanded": lambda x: VIEWS["expanded"](x)[:, 0].mul_(2),
}


@pytest.mark.parametrize("part", PARTS)
def test_compiled_graphs_refuse_parts_of_them(part: str) -> None:
    """Torch writes them; without in-place ops the rest of the view would be put back, too, over what was written."""
    x = start().to("umd")
    with pytest.raises(Exception, match=rf"{WORDS}.*test_eager_overlaps.py:\d+"):
        compiled(PARTS[part])(x)
    assert torch.equal(x.cpu(), start())


def test_sizes_that_vary_are_those_of_the_call() -> None:
    def function(x: Tensor) -> Tensor:
        x.as_strided((x.shape[0] - 2, 3), (1, 1)).add_(1)
        return x * 1

    with pytest.raises(Exception, match=WORDS):
        torch.compile(function, backend="umd", dynamic=True)(start().to("umd"))


@pytest.mark.filterwarnings("ignore::umd_torch.FallbackWarning")  # as above
@pytest.mark.parametrize("write", [name for name in WRITES if name not in ("uniform_", "masked_fill_")])
@pytest.mark.parametrize("view", ["interleaved", "transposed", "part", "one by one"])
def test_compiled_graphs_write_others_as_torch_does(view: str, write: str) -> None:
    wanted, found = start(), start().to("umd")
    WRITES[write](APART[view](wanted))
    compiled(lambda v: WRITES[write](APART[view](v)))(found)
    assert torch.equal(found.cpu(), wanted)


def test_what_is_only_read_may_share_memory() -> None:
    def function(x: Tensor) -> Tensor:
        windows = VIEWS["windows"](x).sum(1)
        x.add_(1)
        copied = VIEWS["expanded"](x).clone().mul_(2)
        return windows + copied.sum()

    wanted, found = start(), start().to("umd")
    results = function(wanted), torch.compile(function, backend="umd")(found)
    torch.testing.assert_close(results[1].cpu(), results[0])
    assert torch.equal(found.cpu(), wanted)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=4))
def test_whether_elements_share_memory(axes: list[tuple[int, int]]) -> None:
    places = [
        sum(i * stride for i, (_, stride) in zip(index, axes, strict=True))
        for index in itertools.product(*(range(size) for size, _ in axes))
    ]
    found = lies_twice(tuple(size for size, _ in axes), tuple(stride for _, stride in axes))
    assert found == (len(set(places)) < len(places))
