"""Copies that need not be waited for, and memory that torch would pin for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import umd_torch
from umd_core.errors import UnsupportedError
from umd_torch import counters

DEVICE = umd_torch.connect("sim:0")
DATA: Any = torch.arange(6.0).view(2, 3)


def there() -> Tensor:
    found: Tensor = DATA.to("umd")
    return found


DOWN: dict[str, Callable[[], Tensor]] = {
    "to": lambda: there().to("cpu", non_blocking=True),
    "as another": lambda: there().to(DATA, non_blocking=True),
    "a copy": lambda: there().to("cpu", non_blocking=True, copy=True),
    "cpu": lambda: there().cpu(),
    "copy_": lambda: torch.zeros(2, 3).copy_(there(), non_blocking=True),
    "of a view": lambda: there().t().to("cpu", non_blocking=True).t(),
    "inference": lambda: torch.inference_mode()(lambda: there().to("cpu", non_blocking=True))(),
    "vmap": lambda: torch.func.vmap(lambda row: row.to("cpu", non_blocking=True))(there()),
    "storage": lambda: torch.empty(0).set_(there().untyped_storage().cpu()).view(2, 3),
}
UP: dict[str, Callable[[], Tensor]] = {
    "to": lambda: DATA.to("umd", non_blocking=True),
    "as another": lambda: DATA.to(there(), non_blocking=True),
    "by name": lambda: DATA.umd(non_blocking=True),
    "copy_": lambda: torch.zeros(2, 3, device="umd").copy_(DATA, non_blocking=True),
    "on the device": lambda: there().to("umd", non_blocking=True, copy=True),
    "through float64": lambda: there().to(torch.float64, non_blocking=True).to(torch.float32),
}


@pytest.mark.parametrize("way", DOWN)
def test_what_comes_down_is_there(way: str) -> None:
    found = DOWN[way]()
    assert found.device.type == "cpu"
    assert torch.equal(found, DATA)


@pytest.mark.parametrize("way", UP)
def test_what_goes_up_is_there(way: str) -> None:
    found = UP[way]()
    assert found.device == DEVICE
    assert torch.equal(found.cpu(), DATA)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int32, torch.float64], ids=str)
def test_types_and_strides_are_torch_s(dtype: torch.dtype) -> None:
    images = torch.arange(120.0).view(2, 3, 4, 5)
    for x in (images, images.transpose(1, 3), images[:, ::2], images[:1].expand(2, 3, 4, 5)):
        for options in ({}, {"memory_format": torch.channels_last}, {"memory_format": torch.contiguous_format}):
            wanted = x.to(dtype, non_blocking=True, copy=True, **options)
            up = x.to("umd")
            found = up.to("cpu", dtype, non_blocking=True, copy=True, **options)
            kept = up.to(dtype, non_blocking=True, copy=True, **options)
            assert torch.equal(found, wanted)
            assert torch.equal(kept.cpu(), wanted)
            if x.stride() == up.stride():
                assert found.stride() == kept.stride() == wanted.stride()


def test_a_read_is_one_round_trip_and_gradients_go_through_it() -> None:
    x = there().requires_grad_()
    counters.reset()
    y = x.to("cpu", non_blocking=True)
    assert counters.round_trips == 1
    (y * DATA).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad.cpu(), DATA)
    model = nn.Linear(3, 2)
    wanted = model.weight.detach().clone()
    model.to("umd", non_blocking=True)
    assert model.weight.device == DEVICE
    assert torch.equal(model.to("cpu", non_blocking=True).weight, wanted)


PINS: dict[str, Callable[[], Any]] = {
    "a tensor": lambda: DATA.pin_memory(),
    "for the device": lambda: DATA.pin_memory("umd"),
    "a loader": lambda: next(iter(DataLoader(DATA, pin_memory=True))),
    "a loader's worker": lambda: next(iter(DataLoader(DATA, pin_memory=True, num_workers=1, timeout=30))),
    "a new tensor": lambda: torch.empty(2, device="umd", pin_memory=True),
}


@pytest.mark.filterwarnings("ignore:.*pin_memory")  # torch deprecates its argument
@pytest.mark.filterwarnings("ignore:.*fork")  # a worker is forked off a process with threads
@pytest.mark.parametrize("what", PINS)
def test_nothing_is_pinned(what: str) -> None:
    with pytest.raises(UnsupportedError, match="pinned memory is not there"):
        PINS[what]()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        there().pin_memory()
    assert not DATA.is_pinned()
    assert not there().is_pinned()


def test_another_device_within_a_context() -> None:
    other = umd_torch.connect("sim:0")
    assert other == DEVICE
    with torch.umd.device("umd:0"):  # type: ignore[attr-defined]  # torch makes it for the device
        assert torch.ones(2, device="umd").device == DEVICE
    assert torch.umd.current_device() == 0  # type: ignore[attr-defined]  # see above
