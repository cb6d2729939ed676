"""The conformance kit finds planted faults, and the reference agrees with results worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.core.device_samples import example_device, example_module
from umd_core import dtypes
from umd_core.device import Binding, Caps, SequentialDevice
from umd_core.errors import IndexRangeError
from umd_core.kernels import BY_NAME
from umd_core.testing.checks import commands, failures, memory, submissions
from umd_core.testing.compare import difference
from umd_core.testing.conformance import check_kernel
from umd_core.testing.harness import record_launch
from umd_core.testing.launches import LAYOUTS, SHAPES, Plan, build, type_arguments
from umd_core.testing.reference import Case, Expected, reference
from umd_core.testing.report import Report, Result

Check = Callable[[Any], None]
Kernel = Callable[..., None]


def with_kernel(kernel: str, broken: Callable[[Kernel], Kernel]) -> SequentialDevice:
    """Returns an example device one kernel of which is wrapped."""
    module = example_module()

    class Faulty(module.ExampleDevice):  # type: ignore[misc,name-defined]  # the example is imported by path
        def load_kernel(self, record: Any, parameters: bytes) -> Any:
            record, family = super().load_kernel(record, parameters)
            return record, broken(family) if record.row.name == kernel else family

    return Faulty("faulty:0")


def with_method(name: str, method: Any) -> SequentialDevice:
    """Returns an example device with another method."""
    return type("Faulty", (example_module().ExampleDevice,), {name: method})("faulty:0")  # type: ignore[no-any-return]  # the example is imported by path


def kernel(name: str) -> Check:
    return lambda device: check_kernel(device, BY_NAME[name])


def replaced(function: Kernel) -> Callable[[Kernel], Kernel]:
    return lambda family: function


def then(after: Callable[..., None]) -> Callable[[Kernel], Kernel]:
    """Wraps a kernel: `after` spoils its operands when it is done."""

    def wrap(family: Kernel) -> Kernel:
        def run(record: Any, p: Any, *views: Any) -> None:
            family(record, p, *views)
            after(*views)

        return run

    return wrap


def floor_div(record: Any, p: Any, a: Any, b: Any, out: Any) -> None:
    out[...] = np.where(b == 0, 0, a // np.where(b == 0, 1, b)) if a.dtype.kind in "iu" else a / b


def clamped_gather(record: Any, p: Any, data: Any, index: Any, out: Any) -> None:
    k = np.clip(np.where(index < 0, index + p["axis"], index), 0, max(p["axis"] - 1, 0))
    out[...] = np.take_along_axis(data, k[..., None], -1)[..., 0] if index.size else 0


def long_write(self: Any, executable: Any, launch: Any, parameters: bytes, bindings: Sequence[Binding]) -> None:
    example_module().ExampleDevice.dispatch(self, executable, launch, parameters, bindings)
    out = bindings[-1]
    out.buffer.memory[out.offset + out.size] = 0


def dense(self: Any, executable: Any, launch: Any, parameters: bytes, bindings: Sequence[Binding]) -> None:
    """Writes the whole range of the output, gaps included."""
    example_module().ExampleDevice.dispatch(self, executable, launch, parameters, bindings)
    out = bindings[-1]
    out.buffer.memory[out.offset : out.offset + out.size] |= 0


def eager(
    self: Any, program: Any, bindings: Any, values: Any = (), waits: Any = (), signals: Any = (), queue: int = 0
) -> Any:
    return SequentialDevice.submit(self, program, bindings, values, (), signals, queue)


def careless_read(self: Any, buffer: Any, offset: int, size: int) -> memoryview:
    return self.read_memory(buffer.memory, offset, size)  # type: ignore[no-any-return]  # the example is imported by path


def first_byte(self: Any, destination: Binding, pattern: bytes) -> None:
    SequentialDevice.fill(self, destination, pattern[:1])


def short_copy(self: Any, destination: Binding, source: Binding) -> None:
    source = Binding(source.buffer, source.offset, max(source.size - 1, 0))
    SequentialDevice.copy(self, Binding(destination.buffer, destination.offset, source.size), source)


def boastful(self: Any) -> Caps:
    return Caps({**example_module().LEVEL_0, "no_such_kernel": None})


def spoil(*views: Any) -> None:
    if views[-1].size:
        views[-1].flat[-1] = 99


def whole(family: Kernel) -> Kernel:
    """A reduction that skips its last element."""
    return lambda record, p, x, out: family(
        record, {**p, "inner": p["inner"]}, x[..., :-1] if x.shape[-1] > 1 else x, out
    )


FAULTS: dict[str, tuple[Callable[[], SequentialDevice], Check]] = {
    "one wrong element": (lambda: with_kernel("elementwise_add_kernel", then(spoil)), kernel("elementwise_add_kernel")),
    "floor division": (
        lambda: with_kernel("elementwise_div_kernel", replaced(floor_div)), kernel("elementwise_div_kernel")
    ),
    "NaN is ignored": (
        lambda: with_kernel("elementwise_max_kernel", replaced(lambda r, p, a, b, out: np.fmax(a, b, out=out))),
        kernel("elementwise_max_kernel"),
    ),
    "bools are compared as bytes": (
        lambda: with_kernel(
            "elementwise_xor_kernel",
            replaced(lambda r, p, a, b, out: out.__setitem__(..., a.view(np.uint8) ^ b.view(np.uint8))),
        ),
        kernel("elementwise_xor_kernel"),
    ),
    "a row's last element is skipped": (
        lambda: with_kernel("reduce_sum_kernel", whole), kernel("reduce_sum_kernel")
    ),
    "16-bit sums in 16 bits": (
        lambda: with_kernel(
            "gemm_kernel",
            replaced(lambda r, p, a, b, out: out.__setitem__(..., (a.astype(np.float16) @ b.astype(np.float16)))),
        ),
        kernel("gemm_kernel"),
    ),
    "duplicates are added once": (
        lambda: with_kernel(
            "scatter_add_kernel",
            replaced(
                lambda r, p, updates, index, out: out.__setitem__(
                    example_module().places(r, index, p["axis"]),
                    out[example_module().places(r, index, p["axis"])] + updates,
                )
            ),
        ),
        kernel("scatter_add_kernel"),
    ),
    "the last of equals": (
        lambda: with_kernel("argmax_kernel", lambda f: lambda r, p, x, o: f(r, {**p, "select_last": 1}, x, o)),
        kernel("argmax_kernel"),
    ),
    "a byte beyond the output": (lambda: with_method("dispatch", long_write), kernel("elementwise_neg_kernel")),
    "clamped indices": (
        lambda: with_kernel("gather_kernel", replaced(clamped_gather)), lambda d: failures.check_error_at(d, 1)
    ),
    "waits are ignored": (lambda: with_method("submit", eager), submissions.CHECKS["fences"]),
    "poison is ignored": (lambda: with_method("read", careless_read), failures.CHECKS["dependents_fail"]),
    "fills with one byte": (lambda: with_method("fill", first_byte), commands.CHECKS["fill"]),
    "copies too little": (lambda: with_method("copy", short_copy), commands.CHECKS["legal_orders"]),
    "claims what is not there": (
        lambda: with_method("caps", boastful), lambda d: memory.check_caps(d.caps(), {})
    ),
    "lacks what it does not list": (
        lambda: with_method("caps", lambda self: Caps({"gemm_kernel": None})),
        lambda d: memory.check_caps(d.caps(), {}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(fault: str) -> None:
    make, check = FAULTS[fault]
    with pytest.raises((AssertionError, IndexRangeError)):
        check(make())
    check(example_device())


def test_writing_back_what_was_there_is_no_fault() -> None:
    check_kernel(with_method("dispatch", dense), BY_NAME["elementwise_neg_kernel"])


# the reference


def launch_of(
    name: str, types: Sequence[dtypes.DType], sizes: Sequence[int], operands: dict[str, Any], **given: Any
) -> Case:
    """Returns a case over contiguous operands."""
    record = BY_NAME[name].record(types, sizes)
    arrays = {}
    for box in record.boxes:
        array = np.array(operands[box.operand.name], box.dtype.numpy)
        arrays[box.operand.name] = array
        given[f"{box.operand.name}_offset"] = 0
        given[f"{box.operand.name}_strides"] = tuple(s // array.itemsize for s in array.strides)
    return Case(record, record.pack(**given), arrays)


f32, i8, i64 = dtypes.float32, dtypes.int8, dtypes.int64


def test_reference_by_hand() -> None:
    div = launch_of(
        "elementwise_div_kernel", [i8], [1], {"a": [7, -7, 5, -128], "b": [2, 2, 0, -1], "out": [0] * 4}, extents=(4,)
    )
    assert reference(div)["out"].value.tolist() == [3, -3, 0, -128]
    cast = launch_of(
        "elementwise_cast_kernel",
        [f32, i8],
        [1],
        {"x": [1.9, -1.9, 300, np.nan, -np.inf], "out": [0] * 5},
        extents=(5,),
    )
    assert reference(cast)["out"].value.tolist() == [1, -1, 127, 0, -128]
    power = launch_of(
        "elementwise_pow_kernel",
        [i8],
        [1],
        {"a": [2, -1, 0, 3, -2], "b": [7, -3, -1, -2, 3], "out": [0] * 5},
        extents=(5,),
    )
    assert reference(power)["out"].value.tolist() == [-128, -1, 0, 0, -8]
    first = {"x": [[1, 3, 3], [np.nan, 9, np.nan]], "out": [0, 0]}
    for last, wanted in ((0, [1, 0]), (1, [2, 2])):
        argmax = launch_of("argmax_kernel", [f32], [1, 1], first, outer=(2,), inner=(3,), select_last=last)
        assert reference(argmax)["out"].value.tolist() == wanted
    scatter = launch_of(
        "scatter_add_kernel", [f32, i64], [1],
        {"updates": [1, 2, 4], "index": [0, -1, 1], "out": np.zeros((3, 2))}, extents=(3,), axis=2,
    )  # fmt: skip
    assert reference(scatter)["out"].value.tolist() == [[1, 0], [0, 2], [0, 4]]
    gemm = launch_of(
        "gemm_kernel",
        [i8],
        [1],
        {"a": [[[100, 1]]], "b": [[[2], [56]]], "out": [[[0]]]},
        batch=(1,),
        rows=1,
        columns=1,
        depth=2,
    )
    assert reference(gemm)["out"].value.tolist() == [[[0]]]


def test_reference_of_windows_by_hand() -> None:
    window = {"window_strides": (2,), "dilations": (1,), "pads": (1,), "output": (2,), "input": (3,), "kernel": (2,)}
    conv = launch_of(
        "conv_kernel", [f32], [1], {"x": [[[[1, 2, 3]]]], "w": [[[[10, 1]]]], "y": [[[[0, 0]]]]},
        batch=1, groups=1, out_channels=1, in_channels=1, **window,
    )  # fmt: skip
    assert reference(conv)["y"].value.tolist() == [[[[1.0, 23.0]]]]
    pools = {
        "average_pool_kernel": [[1.0, 2.5]],
        "max_pool_index_kernel": [[1.0, 3.0]],
    }
    for name, wanted in pools.items():
        extra = {"count_pad": 0, "pads_end": (0,)} if name.startswith("average") else {}
        operands = {"x": [[1, 2, 3]], "y": [[0, 0]], "index": [[0, 0]]}
        case = launch_of(name, [f32], [1], operands, batch=1, **window, **extra)
        assert reference(case)["y"].value.tolist() == wanted
    assert reference(case)["index"].value.tolist() == [[0, 2]]
    padded = launch_of(
        "average_pool_kernel",
        [f32],
        [1],
        {"x": [[1, 2, 3]], "y": [[0, 0]]},
        batch=1,
        **window,
        count_pad=1,
        pads_end=(0,),
    )
    assert reference(padded)["y"].value.tolist() == [[0.5, 2.5]]


def test_reference_of_rows_and_updates_against_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch is an extra")
    generator = np.random.default_rng(0)
    x, dy = generator.normal(size=(2, 3, 5)).astype(np.float32)
    rows = {"outer": (3,), "inner": (5,)}
    wide = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    for name, function in (("softmax", torch.softmax), ("log_softmax", torch.log_softmax)):
        y = function(wide, -1)
        (wanted,) = torch.autograd.grad(y, wide, torch.tensor(dy, dtype=torch.float64))
        case = launch_of(f"{name}_kernel", [f32], [1, 1], {"x": x, "y": x}, **rows)
        np.testing.assert_allclose(reference(case)["y"].value, y.detach(), rtol=1e-12)
        grad = launch_of(f"{name}_grad_kernel", [f32], [1, 1], {"dy": dy, "y": y.detach().numpy(), "dx": x}, **rows)
        np.testing.assert_allclose(reference(grad)["dx"].value, wanted, atol=1e-6)
    parameter = torch.tensor(x[0], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.AdamW([parameter], lr=0.125, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)
    state: dict[str, Any] = {"p": x[0].astype(np.float64), "m": np.zeros(5), "v": np.zeros(5)}
    for step in (1, 2):
        parameter.grad = torch.tensor(dy[0], dtype=torch.float64)
        optimizer.step()
        case = launch_of(
            "adamw_kernel", [dtypes.float64], [1], {**state, "g": dy[0], "lr": 0.125, "step": step},
            extents=(5,), beta1=0.9, beta2=0.99, epsilon=1e-8, weight_decay=0.1, decoupled=1,
        )  # fmt: skip
        state = {name: expected.value.astype(np.float64) for name, expected in reference(case).items()}
    np.testing.assert_allclose(state["p"], parameter.detach(), rtol=1e-12)


# what the kit feeds


def test_every_launch_obeys_rule_7() -> None:
    """`encode` and the decoder accept every launch that `build` makes."""
    from umd_core.encoding import decode

    for number, row in enumerate(BY_NAME.values()):
        random = np.random.default_rng(number)
        types = type_arguments(row)
        for shape in SHAPES:
            for layout in LAYOUTS:
                chosen = types[int(random.integers(len(types)))]
                launch = build(random, row, chosen, Plan(shape, layout, alias=bool(random.integers(2))))
                decode(bytes(record_launch(launch)))


@pytest.mark.parametrize(
    ("got", "value", "scale", "tolerance", "same"),
    [
        (1.0, 1.0 + 1e-6, 0.0, 16.0, True),
        (1.0, 1.0 + 1e-5, 0.0, 16.0, False),
        (1e-5, 0.0, 100.0, 1.0, True),
        (np.nan, np.nan, 0.0, 1.0, True),
        (0.0, np.nan, 0.0, 1.0, False),
        (np.nan, 0.0, np.inf, 1.0, False),
        (np.inf, np.inf, 0.0, 1.0, True),
        (np.inf, -np.inf, 0.0, 1.0, False),
        (5.0, np.inf, 0.0, 1.0, False),
        (-3.4e38, -np.inf, 0.0, 1.0, False),
        (np.inf, 3.4028236e38, 0.0, 1.0, True),
        (np.inf, 3e38, 0.0, 1.0, False),
        (0.0, 1e-39, 0.0, 1.0, True),
        (0.0, 1e-30, 0.0, 1.0, False),
    ],
)
def test_comparison(got: float, value: float, scale: float, tolerance: float, same: bool) -> None:
    expected = Expected(np.array([value]), np.array([scale]))
    assert (difference(np.array([got], np.float32), expected, f32, tolerance) == "") == same


def test_reports() -> None:
    report = Report("mine", [Result("a", "passed", 0.1), Result("b", "skipped", 0.0, "why")])
    assert report.ok
    assert report.as_dict()["counts"] == {"passed": 1, "skipped": 1}
    report.results.append(Result("c", "failed", 0.1, "broken"))
    assert not report.ok
    assert not Report("empty").ok
