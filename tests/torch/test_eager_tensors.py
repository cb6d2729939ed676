"""The eager device's tensors beside torch's own: factories, views, in-place changes, element types, files."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

import umd_torch
from umd_torch import counters
from umd_torch.eager import options
from umd_torch.session import session_for

DEVICE = umd_torch.connect("sim:0")
DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    """Forbids the CPU."""
    options.strict = True
    yield
    options.strict = False


def same(function: Callable[..., Any], *inputs: Tensor) -> None:
    """Asserts that a function gives on the device what it gives on the CPU: elements, types, shapes and strides."""
    wanted = tree_leaves(function(*[x.clone() for x in inputs]))
    found = tree_leaves(function(*[x.to(DEVICE) for x in inputs]))
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        if isinstance(theirs, Tensor):
            assert ours.device == DEVICE
            assert ours.stride() == theirs.stride()
            assert_close(ours.cpu(), theirs, equal_nan=True)
        else:
            assert ours == theirs


def saved(value: Any, **options: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)


FACTORIES: dict[str, Callable[[Any], Tensor]] = {
    "zeros": lambda d: torch.zeros(2, 3, device=d),
    "ones": lambda d: torch.ones(2, dtype=torch.int32, device=d),
    "full": lambda d: torch.full((2,), 3.5, device=d),
    "arange": lambda d: torch.arange(2, 11, 3, device=d),
    "fractions": lambda d: torch.arange(0, 1, 0.25, device=d),
    "tensor": lambda d: torch.tensor([[1.0, 2.0]], device=d),
    "eye": lambda d: torch.eye(3, device=d),
    "linspace": lambda d: torch.linspace(0, 1, 5, device=d),
    "new_ones": lambda d: torch.zeros(2, 3, device=d).new_ones(4),
    "full_like": lambda d: torch.full_like(torch.zeros(2, device=d), 7),
    "channels_last": lambda d: torch.empty(2, 3, 4, 5, device=d, memory_format=torch.channels_last).zero_(),
    "strided": lambda d: torch.empty_strided((2, 3), (1, 2), device=d).fill_(2),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories(name: str) -> None:
    found, wanted = FACTORIES[name]("umd"), FACTORIES[name]("cpu")
    assert found.device == DEVICE
    assert found.is_umd  # type: ignore[attr-defined]  # torch makes it for the device
    assert (found.dtype, found.stride()) == (wanted.dtype, wanted.stride())
    assert torch.equal(found.cpu(), wanted)


def test_to_and_back() -> None:
    for dtype in DTYPES:
        x = torch.arange(12).reshape(3, 4).to(dtype)
        assert torch.equal(x.to("umd").cpu(), x)
        assert torch.equal(x.t().to("umd").cpu(), x.t())
        assert torch.equal(x[:, ::2].to("umd").cpu(), x[:, ::2])
        assert torch.equal(x.to("umd")[1:, 1::2].t().cpu(), x[1:, 1::2].t())
    assert torch.ones(2).to("umd", torch.float64).dtype is torch.float64
    assert torch.ones(2, device="umd").to("cpu", torch.int32).tolist() == [1, 1]
    with torch.device("umd"):
        assert torch.nn.Linear(2, 2).weight.device == DEVICE


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_element_types(dtype: torch.dtype) -> None:
    x, y = (torch.arange(k, k + 6).reshape(2, 3).to(dtype) for k in (0, 1))
    same(lambda a, b: (a + b, a * b, a == b, a.sum(), a.to(torch.float32), torch.where(a > b, a, b)), x, y)
    if dtype is not torch.bool:
        same(lambda a, b: (a * 2, a - b, 3 - a, a / b, a // b, (a * 0.5), a.clamp(1, 3), a.max(), a.neg()), x, y)


def test_type_promotion_of_numbers_and_tensors_without_dimensions() -> None:
    half, whole, single = torch.tensor([1.5, 2.5]).bfloat16(), torch.tensor([1, 2]), torch.tensor(3.0)
    same(lambda h, i, s: (h * 0.1, i * 1.5, s * 2.5, i + True, h + i, s + i, h * s, i / 3), half, whole, single)
    same(
        lambda h, i, s: (
            i // 2.5,
            i % 2.5,
            s % 2.0,
            h % 3,
            s // 0.4,
            h**2,
            i**2,
            i > 1.5,
            torch.maximum(s, s),
            torch.where(i > 1, s, 2.0),
        ),
        half,
        whole,
        single,
    )
    double = torch.tensor(0.1, dtype=torch.float64)  # of the CPU in either case
    same(lambda h, i, s: (h * double, i * double, s * double, s + 0.1, i.add(i, alpha=3)), half, whole, single)


def test_the_same_tensor_twice_is_not_mistaken_for_two() -> None:
    x, y = torch.tensor([1.0, 2.0], device="umd"), torch.tensor([3.0, 4.0], device="umd")
    for left, right in ((x, x), (x, y), (y, y)):
        assert torch.equal((left * right).cpu(), left.cpu() * right.cpu())
    assert x.add_(x).tolist() == [2, 4]
    assert x.add_(y).tolist() == [5, 8]
    assert x.add_(x).tolist() == [10, 16]


# views and what changes them


def test_views_share_bytes() -> None:
    x = torch.zeros(4, 3, device="umd")
    x[1:3].add_(5)
    x.t()[0] = 9
    x.view(12)[-1:] = 7
    x.select(1, 1).mul_(2)
    wanted = torch.zeros(4, 3)
    wanted[1:3] += 5
    wanted[:, 0], wanted[3, 2] = 9, 7
    wanted[:, 1] *= 2
    assert torch.equal(x.cpu(), wanted)
    assert x[1:].storage_offset() == 3
    assert x.t().untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert x[1:]._base is x


def test_metadata_changes_in_place() -> None:
    same(lambda x: x.clone().unsqueeze_(0).squeeze_(0).t_(), torch.arange(6.0).view(2, 3))
    same(lambda x: x.unfold(0, 2, 1).sum(1), torch.arange(5.0))
    same(lambda x: x.diagonal().clone(), torch.arange(9.0).view(3, 3))
    same(lambda x: torch.as_strided(x, (2, 2), (1, 2), 1).contiguous(), torch.arange(6.0))
    x = torch.arange(3.0, device="umd")
    assert x.resize_(5)[:3].tolist() == [0, 1, 2]
    assert x.set_(torch.ones(2, device="umd")).tolist() == [1, 1]  # type: ignore[call-overload]  # as torch has it
    assert x.view(torch.int32).tolist() == [0x3F800000] * 2


SLICES = st.tuples(st.integers(0, 4), st.integers(1, 6), st.integers(1, 3)).map(lambda t: slice(*t))
CHANGES: list[Callable[[Tensor, Tensor], Any]] = [
    lambda t, s: t.copy_(s),
    lambda t, s: t.add_(s),
    lambda t, s: t.mul_(s),
    lambda t, s: t.sub_(s, alpha=3),
    lambda t, s: t.addcmul_(s, s, value=0.5),
    lambda t, s: torch.where(s > 5, s, s, out=t),
    lambda t, s: torch.mul(s, s, out=t),
    lambda t, s: t.masked_fill_(s > 5, -1.0),
    lambda t, s: t.fill_(s[0, 0]),
]


@settings(deadline=None, max_examples=40)
@given(SLICES, SLICES, SLICES, SLICES, st.booleans(), st.sampled_from(CHANGES), st.booleans())
def test_changing_a_view_changes_what_torch_changes(
    a: slice, b: slice, c: slice, d: slice, turned: bool, change: Callable[[Tensor, Tensor], Any], shared: bool
) -> None:
    """Views may overlap: what is read is what was there before, as on a copy."""
    results = []
    for device in ("cpu", "umd"):
        base = torch.arange(36.0).view(6, 6).to(device)
        other = base if shared else (base * 2 + 1)
        target, source = base[a, b], (other.t() if turned else other)[c, d]
        rows, columns = (min(x, y) for x, y in zip(target.shape, source.shape, strict=True))
        if rows and columns:
            target, source = target[:rows, :columns], source[:rows, :columns]
            change(target, source.clone() if device == "cpu" else source)
        results.append(base.cpu())
    assert torch.equal(*results)


def test_out() -> None:
    same(lambda x: torch.add(x, x, out=torch.empty(3, device=x.device)), torch.ones(3))
    same(lambda x: torch.add(x, x, out=torch.empty(0, device=x.device)), torch.ones(3))
    same(lambda x: torch.mm(x, x, out=torch.zeros(4, 2, device=x.device)[::2]), torch.ones(2, 2))
    same(
        lambda x: torch.sort(x, out=(torch.empty(0, device=x.device), torch.empty(0, device=x.device).long())),
        -torch.arange(4.0),
    )


def test_tensors_without_elements() -> None:
    same(lambda x: (x.sum(), x.t() @ x, torch.cat([x, x + 1]), x * 2, x.max(1, keepdim=True).values), torch.zeros(0, 3))


# data decides the shape


def test_shapes_that_depend_on_data() -> None:
    x = torch.tensor([0.0, 3.0, -1.0, 2.0])

    def put(a: Tensor) -> Tensor:
        a = a.clone()
        a[a > 2] = 0
        a[a < 0] = torch.tensor([8.0], device=a.device)
        return a

    same(lambda a: (a.nonzero(), a[a > 0], torch.masked_select(a, a != 0), torch.where(a > 0), put(a)), x)
    same(lambda a: (a[torch.tensor([2, 0])], a[torch.tensor([-1], device=a.device)]), x)
    assert torch.equal(x.to("umd"), x.to("umd"))
    assert torch.allclose(x.to("umd"), x.to("umd"))
    assert not counters.fallbacks


# copies, files, text


def test_deepcopy_and_files() -> None:
    x = torch.arange(6.0, device="umd").view(2, 3)
    twin = copy.deepcopy(x)
    twin[0] = 9
    assert x[0].tolist() == [0, 1, 2]
    pair = saved({"x": x, "row": x[1]})
    assert pair["x"].device == DEVICE
    pair["row"].zero_()
    assert pair["x"].tolist() == [[0, 1, 2], [0, 0, 0]]  # the file keeps what is shared
    assert saved(x, map_location="cpu").device.type == "cpu"
    assert torch.equal(saved(x.t(), map_location="cpu"), x.t().cpu())
    assert torch.equal(saved(x.cpu(), map_location="umd").cpu(), x.cpu())
    assert torch.UntypedStorage(8, device="umd").nbytes() == 8


def test_modules_move_and_weights_stay_tied() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    parameter = model[0].weight
    model.to("umd")
    assert model[0].weight is model[1].weight is parameter
    assert isinstance(parameter, torch.nn.Parameter)
    assert len(list(model.parameters())) == 3
    twin = copy.deepcopy(model)
    assert twin[0].weight is twin[1].weight
    twin.double().cpu()
    assert twin[0].weight is twin[1].weight
    assert twin[1].weight.dtype is torch.float64
    assert not torch.__future__.get_swap_module_params_on_conversion()
    other = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    other.load_state_dict(model.state_dict())
    x = torch.randn(2, 3)
    assert_close(model(x.to("umd")).cpu(), other(x))
    model.load_state_dict(saved(other.state_dict()))
    assert_close(model(x.to("umd")).cpu(), other(x))


def test_text() -> None:
    counters.reset()
    assert repr(torch.randn(2, 3, device="umd")).startswith("tensor([[")
    assert counters.round_trips == 1
    assert repr(torch.arange(3, device="umd")) == "tensor([0, 1, 2], device='umd:0')"
    assert repr(torch.ones(1, 2, device="umd") * 1.5) == "tensor([[1.5000, 1.5000]], device='umd:0')"
    assert "requires_grad=True" in repr(torch.nn.Linear(2, 1).to("umd").weight)
    assert "..." in repr(torch.zeros(2000, device="umd"))
    assert f"{torch.tensor(2.5, device='umd'):.2f}" == "2.50"


def test_loaders_give_what_moves_to_the_device() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(8.0), torch.arange(8))
    batches = [x.to("umd") * y.to("umd") for x, y in torch.utils.data.DataLoader(data, batch_size=4)]
    assert torch.cat(batches).tolist() == [float(k * k) for k in range(8)]


# what it costs


def test_a_call_that_was_seen_is_no_new_program() -> None:
    x, y = torch.randn(3, 4, device="umd"), torch.randn(3, 4, device="umd")
    (x * y + 0.25).add_(y, alpha=0.3)
    counters.reset()
    for number in range(2, 12):
        (y * x + 1 / number).add_(x, alpha=1 / number)
        torch.addcdiv(x, x, y, value=float(number))
    assert counters.programs == 1  # of addcdiv; numbers are operands
    assert counters.submissions == 40
    assert counters.round_trips == 0
    x[1:].relu()  # another shape is another program
    assert counters.programs == 2


def test_numbers_that_vary_give_torch_s_results() -> None:
    for number in (0.1, -0.0, 2.5, float("inf"), 7):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            x = torch.tensor([1.0, -2.5, 0.3]).to(dtype)
            same(lambda a, n=number: (a * n, a + n, a - n, a / n, n - a, a.add(a, alpha=n)), x)
        same(lambda a, n=number: (a.addcmul(a, a, value=n), a.addcdiv(a, a, value=n), torch.rsub(a, a, alpha=n)), x)


def test_bytes_go_back_when_tensors_die() -> None:
    session = session_for("sim:0")
    session.trim()
    before = session.device.used  # type: ignore[attr-defined]  # the simulator has it
    x = torch.zeros(1 << 20, device="umd")
    view = x[1:]
    del x
    assert session.device.used >= before + (4 << 20)  # type: ignore[attr-defined]  # see above
    assert view.sum().item() == 0
    del view
    session.trim()
    assert session.device.used <= before + 4096  # type: ignore[attr-defined]  # see above
