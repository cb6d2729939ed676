"""What the eager device refuses, and what runs on the CPU: each says so."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import umd_torch
from umd_core.errors import DTypeError, IndexRangeError, UmdError, UnsupportedError
from umd_torch import FallbackWarning, counters
from umd_torch.eager import fallback, options

DEVICE = umd_torch.connect("sim:0")
DATA: Any = torch.ones(2)


@pytest.fixture(autouse=True)
def _lenient() -> Iterator[None]:
    """Lets ops run on the CPU within a test, and every warning be given."""
    before, options.strict = options.strict, False
    fallback.forget()
    yield
    options.strict = before


def x() -> torch.Tensor:
    return torch.tensor([3.0, 1.0, 2.0], device="umd")


REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: x().to(torch.complex64), DTypeError, "complex64"),
    (lambda: torch.zeros(2, dtype=torch.complex64, device="umd"), DTypeError, "complex64"),
    (lambda: torch.ones(2, dtype=torch.complex64).to("umd"), DTypeError, "complex64"),
    (lambda: torch.complex(x(), x()), DTypeError, "complex64"),
    (lambda: torch.view_as_complex(torch.ones(2, 2, device="umd")), DTypeError, "complex64"),
    (lambda: torch.fft.fft(x()), DTypeError, "complex64"),
    (lambda: torch.quantize_per_tensor(x(), 0.1, 0, torch.qint8), DTypeError, "qint8"),
    (lambda: x().to_sparse(), UnsupportedError, "sparse_coo"),
    (lambda: torch.ones(2, 2, device="umd").to_sparse_csr(), UnsupportedError, "sparse_csr"),
    (lambda: torch.sparse_coo_tensor(torch.tensor([[0]]), [1.0], (3,), device="umd"), UnsupportedError, "sparse"),
    (lambda: torch.ones(2).to_sparse().to("umd"), UnsupportedError, "sparse tensors are not there"),
    (lambda: torch.empty(2, device="umd", pin_memory=True), UnsupportedError, "pinned memory"),
    (lambda: x().pin_memory(), RuntimeError, "cannot pin"),
    (lambda: next(iter(torch.utils.data.DataLoader(DATA, pin_memory=True))), UnsupportedError, "pinned"),
    (lambda: torch.Generator(device="umd"), NotImplementedError, "getNewGenerator"),
    (lambda: x() + torch.ones(3), RuntimeError, "same device, but found at least two devices, umd:0 and cpu"),
    (lambda: torch.ones(3) + x(), RuntimeError, "same device"),
    (lambda: torch.mm(x()[None], torch.ones(3, 1)), RuntimeError, "same device"),
    (lambda: torch.mm(x()[None], x()[None]), RuntimeError, "reduction dim"),
    (lambda: x().view(2), RuntimeError, "invalid for input of size 3"),
    (lambda: x()[torch.tensor([7], device="umd")], IndexRangeError, "index 7 is outside"),
    (lambda: torch.ones(3, 1, device="umd").atan2_(x()), RuntimeError, "match the broadcast shape"),
    (lambda: torch.ones(3, 1, device="umd").add_(x()), RuntimeError, "match the broadcast shape"),
    (lambda: x().long().add_(1.5), RuntimeError, "not possible|can't be cast"),
    (lambda: x().long().requires_grad_(), RuntimeError, "floating point"),
    (lambda: torch.ones(1, device="umd").expand(3).add_(1), RuntimeError, "refers to a single memory location"),
    (lambda: torch.as_strided(x(), (2, 2), (1, 1)).mul_(2), RuntimeError, "refers to a single memory location"),
    (lambda: torch.zeros(2, device="umd:9"), UnsupportedError, "umd:9 stands for nothing"),
    (lambda: x().numpy(), TypeError, "can't convert umd:0"),
    (lambda: umd_torch.connect("grpc://127.0.0.1:1/sim:0", token="t"), UmdError, "127.0.0.1:1"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("what", "kind", "words"), REFUSED, ids=[str(number) for number in range(len(REFUSED))])
def test_refusals(what: Callable[[], Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        what()
    assert (x() * 2).tolist() == [6, 2, 4]


def test_what_is_not_lowered_runs_on_the_cpu_and_says_so() -> None:
    op = "aten._linalg_eigh.default"
    with pytest.warns(FallbackWarning, match=op + r" at .*test_eager_refusals.py:\d+ runs on the CPU: "):
        values, vectors = torch.linalg.eigh(x().diag())
    assert values.tolist() == [1, 2, 3]
    assert values.device == vectors.device == DEVICE
    torch.linalg.eigh(x().diag())  # said once
    assert counters.fallbacks == {op: 2}


@pytest.mark.filterwarnings("ignore::umd_torch.FallbackWarning")
def test_gradients_go_through_what_runs_on_the_cpu() -> None:
    y = x().requires_grad_()
    torch.linalg.eigvalsh((y * y).diag()).sum().backward()
    assert y.grad is not None
    assert y.grad.tolist() == [6, 2, 4]
    out = torch.empty(3, device="umd")
    torch.linalg.inv(torch.eye(3, device="umd") * 2, out=out)
    assert torch.equal(out.cpu(), torch.eye(3) / 2)


def test_strict_forbids_it() -> None:
    options.strict = True
    with pytest.raises(UnsupportedError, match="linalg_eigh"):
        torch.linalg.eigh(x().diag())
    options.strict = False
    with pytest.warns(FallbackWarning):
        torch.linalg.eigh(x().diag())
    options.strict = True  # what was seen before is forbidden, too
    with pytest.raises(UnsupportedError, match="linalg_eigh"):
        torch.linalg.eigh(x().diag())


def test_nothing_is_registered_before_it_is_asked_for() -> None:
    script = """
        import torch, umd_torch
        assert torch._C._get_privateuse1_backend_name() == "privateuseone"
        assert not hasattr(torch, "umd")
        device = umd_torch.connect()
        assert (torch.ones(2, device=device) + 1).tolist() == [2, 2]
        assert torch.umd.device_count() == 1
    """
    environment = {"UMD_DEVICE": "sim:0", "PATH": ""}
    subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)], check=True, env=environment)
