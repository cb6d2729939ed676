"""One launch pattern of each kernel file in the checked build, in launch order and in random thread orders."""

from __future__ import annotations

import pytest

from tests.cuda.kernel_runs import findings, has_compiler, launches_of, pick

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")

KERNELS = (
    "elementwise_multiply_add_kernel", "reduce_sum_kernel", "argmin_kernel", "softmax_kernel", "softmax_grad_kernel",
    "normalize_kernel", "gemm_kernel", "conv_kernel", "conv_input_grad_kernel", "conv_weight_grad_kernel",
    "max_pool_index_kernel", "average_pool_kernel", "average_pool_grad_kernel", "gather_kernel", "scatter_kernel",
    "scatter_add_kernel", "iota_kernel", "sgd_kernel", "sgd_momentum_kernel", "adamw_kernel",
)  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_nothing_is_found(name: str) -> None:
    row, types = pick(name, turn=1)
    for number, launch in enumerate(launches_of(row, types, seed=6, count=5)):
        for seed in (0, number + 1):
            assert not findings(launch, seed)


# kernel, what is replaced in its source, by what, and a word of what must be reported
PLANTED = (
    ("gemm_kernel", "          __syncthreads();\n#pragma", "#pragma", "race"),
    ("gemm_kernel", "row < rows && column < columns", "row <= rows && column < columns", "out-of-bounds write"),
    ("elementwise_multiply_add_kernel", "i < count;", "i <= count;", "out-of-bounds"),
    ("reduce_sum_kernel", "      __syncthreads();\n      value = partial[0];", "      value = partial[0];", "race"),
    ("softmax_kernel", "if (threadIdx.x % 32 == 0) partial", "if (threadIdx.x % 64 == 0) partial", "uninitialised"),
    ("argmin_kernel", "if (threadIdx.x == 0) {", "{", "race between two writes"),
    ("gather_kernel", "if (k < 0) continue;", "", "differ"),
    ("scatter_add_kernel", "|| (Index)k / share != part", "", "race"),
    ("conv_weight_grad_kernel", "x_channel[(Offset)n", "x_channel[(Offset)n + 4096", "out-of-bounds read"),
)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: f"{planted[0]}-{planted[3]}")
def test_planted_bugs_are_found(planted: tuple[str, str, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    name, old, new, word = planted
    source = kernel_runs.source_for

    def faulty(record: KernelRecord, wide: bool = False) -> KernelSource:
        given = source(record, wide)
        assert given is not None
        assert given.text.count(old) >= 1
        return given._replace(text=given.text.replace(old, new))

    monkeypatch.setattr(kernel_runs, "source_for", faulty)
    row, types = pick(name, turn=1)
    texts = [text for launch in _hard(name, row, types) for text in findings(launch, geometry=_GEOMETRIES.get(name))]
    assert any(word in text for text in texts), texts[:3]
