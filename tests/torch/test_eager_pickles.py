"""Tensors of the device pickled, in old files, sent to other processes, handed on as DLPack, seen as storages."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]  # it is documented

import umd_torch
from umd_core.errors import UnsupportedError
from umd_torch.eager import tensors

DEVICE = umd_torch.connect("sim:0")
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def in_old_file(value: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=False)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def in_file(value: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def sent(value: Any) -> Any:
    return pickle.loads(ForkingPickler.dumps(value))


def through_a_capsule(value: Tensor) -> Tensor:
    found: Tensor = from_dlpack(to_dlpack(value))
    return found


COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": pickled,
    "old file": in_old_file,
    "file": in_file,
    "sent": sent,
    "deepcopy": copy.deepcopy,
}
"""Ways to another tensor of the same elements, which has bytes of its own."""


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copies_have_the_same_elements(way: str, dtype: torch.dtype) -> None:
    for count in (0, 1, 4, 5000):
        x = torch.arange(count).to(dtype)
        there = x.to("umd")
        found = COPIES[way](there)
        assert found.device == DEVICE
        assert found.dtype is dtype
        assert torch.equal(found.cpu(), x)
        if count:
            there.zero_()
            assert torch.equal(found.cpu(), x)


@pytest.mark.parametrize("way", COPIES)
def test_copies_of_views_parameters_and_modules(way: str) -> None:
    twice = COPIES[way]
    x = torch.arange(24.0).view(4, 6)
    view = x.to("umd")[1:, ::2].t()
    found = twice(view)
    assert found.stride() == view.stride()
    assert torch.equal(found.cpu(), x[1:, ::2].t())
    parameter = twice(nn.Parameter(x.to("umd")))
    assert isinstance(parameter, nn.Parameter)
    assert torch.equal(parameter.detach().cpu(), x)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)).to("umd")
    other = twice(model)
    for (name, ours), theirs in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(ours.cpu(), theirs.cpu()), name
    assert torch.equal(model(x.to("umd")).cpu(), other(x.to("umd")).cpu())


@pytest.mark.parametrize("way", ["old file", "file", "sent", "deepcopy"])
def test_copies_that_share_a_storage_share_it_still(way: str) -> None:
    """`pickle` alone parts them, on the CPU too."""
    x = torch.arange(4.0, device="umd")
    first, second = COPIES[way]([x, x[1:]])
    first.add_(1)
    assert second.tolist() == [2, 3, 4]
    assert x.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("way", ["pickle", "old file"])
def test_an_optimizer_s_state_is_kept(way: str) -> None:
    parameter = nn.Parameter(torch.arange(4.0, device="umd"))
    adam = torch.optim.Adam([parameter])
    parameter.square().sum().backward()
    adam.step()
    state = COPIES[way](adam.state_dict())["state"][0]
    torch.testing.assert_close(state["exp_avg"].cpu(), torch.arange(4.0) * 2 * 0.1)
    torch.testing.assert_close(state["exp_avg_sq"].cpu(), (torch.arange(4.0) * 2) ** 2 * 0.001)


def test_a_capsule_is_the_same_memory() -> None:
    x = torch.arange(6.0, device="umd").view(2, 3)
    same = through_a_capsule(x.t())
    assert same.tolist() == [[0, 3], [1, 4], [2, 5]]
    same.add_(1)
    assert x.tolist() == [[1, 2, 3], [4, 5, 6]]
    x[0].copy_(same[:, 1])  # the same bytes behind another storage: read before they are written
    same[1:, 0].copy_(x[0, :2])
    assert x.tolist() == [[4, 4, 5], [4, 5, 6]]
    del x
    assert (same * 1).tolist() == [[4, 4], [4, 5], [5, 6]]


@pytest.mark.parametrize("start", [1, 1024, 4096])
def test_parts_that_torch_makes_of_a_storage_are_refused(start: int) -> None:
    """Their addresses are those of no storage, however many lie around."""
    others = [torch.full((1024,), 7.0, device="umd") for _ in range(8)]
    x = torch.zeros(8192, device="umd")
    with pytest.raises(UnsupportedError, match="a part of another one"):
        through_a_capsule(x[start:]).cpu()
    with pytest.raises(UnsupportedError, match="a part of another one"):
        x.untyped_storage()[4 * start : 4 * start + 4].tolist()
    assert x.untyped_storage()[0:8].tolist() == [0] * 8
    assert all(other.sum().item() == 7 * 1024 for other in others)


def test_what_numpy_and_dlpack_s_other_users_get() -> None:
    x = torch.arange(4.0, device="umd")
    for refused in (x.numpy, x.__array__, lambda: np.asarray(x)):
        with pytest.raises(TypeError, match="can't convert umd:0"):
            refused()
    assert x.numpy(force=True).tolist() == [0, 1, 2, 3]
    for asks in (from_dlpack, Tensor.__dlpack_device__):
        with pytest.raises(ValueError, match="umd"):
            asks(x)
    with pytest.raises((RuntimeError, BufferError), match="device"):
        np.from_dlpack(x)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_storages() -> None:
    x = torch.arange(3, dtype=torch.int16, device="umd")
    storage: Any = x.untyped_storage()  # torch declares half of it
    bytes_there = [0, 0, 1, 0, 2, 0]
    assert storage.tolist() == list(storage) == storage.cpu().tolist() == storage.clone().tolist() == bytes_there
    assert storage.to(device=torch.device("cpu"), non_blocking=False).tolist() == bytes_there
    assert copy.copy(storage).tolist() == copy.deepcopy(storage).cpu().tolist() == bytes_there
    assert in_file(storage).tolist() == in_old_file(x.storage()).untyped().tolist() == bytes_there
    assert pickled(x.storage()).tolist() == x.storage().tolist() == x.storage().cpu().tolist() == [0, 1, 2]
    assert x.storage().float().tolist() == [0, 1, 2]
    assert torch.zeros(3, dtype=torch.int16).untyped_storage().copy_(storage).tolist() == bytes_there
    up = storage.cpu().to(device=torch.device("umd"))
    assert (up.device, up.tolist()) == (DEVICE, bytes_there)
    assert torch.UntypedStorage([3, 4], device="umd").tolist() == [3, 4]
    assert (storage.new().nbytes(), storage.new().device) == (0, DEVICE)
    storage[2] = 9
    assert (storage[2], x.tolist()) == (9, [0, 9, 2])
    storage.fill_(1)
    assert x.tolist() == [257, 257, 257]
    storage.copy_(up)
    assert x.tolist() == [0, 1, 2]
    assert not x.is_shared()
    assert not storage.is_shared()


REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "share a tensor": lambda x: x.share_memory_(),
    "share a storage": lambda x: x.untyped_storage().share_memory_(),
    "share a module": lambda _: nn.Linear(2, 2).to("umd").share_memory(),
    "resize a storage": lambda x: x.untyped_storage().resize_(100),
    "swap its bytes": lambda x: x.untyped_storage().byteswap(torch.int16),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_storages_refuse(what: str) -> None:
    x = torch.arange(4.0, device="umd")
    with pytest.raises(UnsupportedError, match=r"the device|the CPU"):
        REFUSED[what](x)
    assert x.tolist() == [0, 1, 2, 3]


class Rows(Dataset[Tensor]):
    """Rows on the device, made in each worker."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        umd_torch.connect("sim:0")
        return torch.full((3,), float(index), device="umd")


@pytest.mark.timeout(120)
def test_workers_that_were_spawned_send_what_they_made() -> None:
    """Each has a device of its own, whose bytes come here."""
    loader = DataLoader(Rows(), batch_size=2, num_workers=1, multiprocessing_context="spawn", timeout=60)
    assert [batch.tolist() for batch in loader] == [[[0.0] * 3, [1.0] * 3], [[2.0] * 3, [3.0] * 3]]
    assert next(iter(loader)).device == DEVICE


def test_addresses_of_storages_that_are_gone_are_forgotten() -> None:
    places = tensors._PLACES
    for _ in range(20_000):
        torch.empty(1, device="umd")
    assert len(places.slabs) < 10_000
    x = torch.arange(4.0, device="umd")
    assert pickled(x).tolist() == [0, 1, 2, 3]
    storages = [torch.UntypedStorage(size, device="umd") for size in [1, 4096, 4097, 1 << 20] * 3]
    spans = [(s.data_ptr(), s.data_ptr() + s.nbytes()) for s in storages]
    for (_, end), (begin, _) in zip(sorted(spans), sorted(spans)[1:], strict=False):
        assert end <= begin
