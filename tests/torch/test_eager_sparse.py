"""Tensors of layouts that the device does not have are refused where they would come to it, and named."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import umd_torch
from umd_core.errors import DTypeError, UmdError, UnsupportedError

umd_torch.connect("sim:0")
pytestmark = pytest.mark.filterwarnings("ignore")  # torch's, that these layouts are unfinished
EYE = torch.eye(4)
KINDS: dict[str, tuple[Callable[[], Tensor], str]] = {
    "COO": (lambda: EYE.to_sparse(), "sparse"),
    "CSR": (lambda: EYE.to_sparse_csr(), "compressed sparse"),
    "CSC": (lambda: EYE.to_sparse_csc(), "compressed sparse"),
    "BSR": (lambda: EYE.to_sparse_bsr((2, 2)), "compressed sparse"),
    "BSC": (lambda: EYE.to_sparse_bsc((2, 2)), "compressed sparse"),
    "quantised": (lambda: torch.quantize_per_tensor(EYE, 0.1, 0, torch.qint8), "quantised"),
    "by channel": (
        lambda: torch.quantize_per_channel(EYE, torch.ones(4), torch.zeros(4), 0, torch.quint8),
        "quantised",
    ),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_they_do_not_come_to_the_device(kind: str) -> None:
    make, word = KINDS[kind]
    held = nn.Module()
    held.register_buffer("held", make())
    moves: list[Callable[[], Any]] = [
        lambda: make().to("umd"),
        lambda: make().to("umd", non_blocking=True),
        lambda: make().to("umd", torch.float64 if kind not in ("quantised", "by channel") else None),
        lambda: make().umd(),  # type: ignore[attr-defined]  # torch makes it for the device
        lambda: held.to("umd"),
        lambda: torch.zeros(4, 4, device="umd").copy_(make()),
    ]
    for move in moves:
        with pytest.raises(UnsupportedError, match=f"{word} tensors are not there on the device"):
            move()


@pytest.mark.parametrize("kind", ["COO", "CSR", "CSC", "BSR", "BSC", "quantised", "by channel"])
def test_they_are_not_loaded_onto_it(kind: str) -> None:
    make, word = KINDS[kind]
    buffer = io.BytesIO()
    torch.save(make(), buffer)
    buffer.seek(0)
    with pytest.raises(UnsupportedError, match=f"{word} tensors are not there"):
        torch.load(buffer, map_location="umd", weights_only=False)


ONE, TWO, VALUE = torch.tensor([0]), torch.tensor([0, 1]), torch.tensor([1.0])
MADE: dict[str, Callable[[], Any]] = {
    "CSR of the CPU's": lambda: torch.sparse_csr_tensor(TWO, ONE, VALUE, (1, 1), device="umd"),
    "CSR": lambda: torch.sparse_csr_tensor(TWO.to("umd"), ONE.to("umd"), VALUE.to("umd"), (1, 1)),
    "CSR of any size": lambda: torch.sparse_csr_tensor(TWO.to("umd"), ONE.to("umd"), VALUE.to("umd")),
    "CSC": lambda: torch.sparse_csc_tensor(TWO, ONE, VALUE, (1, 1), device="umd"),
    "BSR": lambda: torch.sparse_bsr_tensor(TWO, ONE, VALUE.view(1, 1, 1), (1, 1), device="umd"),
    "COO": lambda: torch.sparse_coo_tensor(ONE[None], VALUE, (3,), device="umd"),
    "zeros": lambda: torch.zeros(2, 2, layout=torch.sparse_csr, device="umd"),
    "empty": lambda: torch.empty(2, 2, layout=torch.sparse_csr, device="umd"),
    "empty COO": lambda: torch.empty(2, 2, layout=torch.sparse_coo, device="umd"),
    "to_sparse": lambda: EYE.to("umd").to_sparse(),
    "to_sparse_csr": lambda: EYE.to("umd").to_sparse_csr(),
    "to_sparse_bsc": lambda: EYE.to("umd").to_sparse_bsc((2, 2)),
    "to_mkldnn": lambda: EYE.to("umd").to_mkldnn(),
    "quantised": lambda: torch.quantize_per_tensor(EYE.to("umd"), 0.1, 0, torch.qint8),
    "empty quantised": lambda: torch._empty_affine_quantized(
        (2,), scale=1.0, zero_point=0, dtype=torch.qint8, device="umd"
    ),
    "nested": lambda: torch.nested.nested_tensor([VALUE.to("umd"), VALUE.to("umd")]),
    "nested of the CPU's": lambda: torch.nested.nested_tensor([VALUE, VALUE], device="umd").sin(),
    "a product": lambda: EYE.to_sparse_csr() @ EYE.to("umd"),
    "sparse gradients": lambda: nn.Embedding(4, 2, sparse=True).to("umd")(ONE.to("umd")).sum().backward(),
}


@pytest.mark.parametrize("what", MADE)
def test_they_are_not_made_there(what: str) -> None:
    with pytest.raises(UmdError, match=r"are not there|qint8") as caught:
        MADE[what]()
    assert isinstance(caught.value, (UnsupportedError, DTypeError))
    assert (EYE.to("umd") * 2).sum().item() == 8


def test_mkldnn_tensors_do_not_come_to_it_either() -> None:
    there: Any = EYE.to_mkldnn()
    for move in (lambda: there.to("umd"), lambda: torch.zeros(4, 4, device="umd").copy_(there)):
        with pytest.raises((NotImplementedError, RuntimeError), match="mkldnn layout"):
            move()


def test_on_the_cpu_all_is_as_ever() -> None:
    assert EYE.to_sparse_csr().to(torch.float64).to_dense().dtype is torch.float64
    assert torch.equal((EYE.to_sparse_csr() @ EYE), EYE)
    assert torch.equal(EYE.to_sparse().to("cpu", copy=True).to_dense(), EYE)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert nested.to(torch.float64)[1].tolist() == [1, 1, 1]


def test_jagged_tensors_are_plain_ones_inside() -> None:
    parts = [torch.randn(2, 4), torch.randn(3, 4)]
    layer = nn.Linear(4, 2)
    wanted = layer(torch.nested.nested_tensor(parts, layout=torch.jagged)).sin().values().detach()
    found = layer.to("umd")(torch.nested.nested_tensor(parts, layout=torch.jagged).to("umd")).sin().values()
    torch.testing.assert_close(found.detach().cpu(), wanted)
