"""Every kernel in the checked build, in launch order and in five random thread orders."""

from __future__ import annotations

import pytest

from tests.cuda import kernel_runs
from tests.cuda.kernel_runs import findings, has_compiler, launches_of, pick
from umd_core.kernels import BY_NAME, KernelRecord
from umd_cuda.sources import KernelSource, source_for

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")

ORDERS = 5


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_nothing_is_found(name: str) -> None:
    row, types = pick(name, turn=1)
    for launch in launches_of(row, types, seed=6, count=5):
        for seed in range(ORDERS + 1):  # 0 is launch order
            assert not findings(launch, seed)


# kernel, block, what is replaced in its source, by what, and a word of what must be reported
PLANTED = (
    ("gemm_kernel", 256, "    __syncthreads();\n    if (more) {", "    if (more) {", "race"),
    ("gemm_kernel", 256, "row < rows && column < columns", "row <= rows && column < columns", "out-of-bounds write"),
    ("elementwise_multiply_add_kernel", 256, "i < count;", "i <= count;", "out-of-bounds"),
    ("reduce_sum_kernel", 64, "__syncthreads(); ", "", "race"),
    ("softmax_kernel", 64, "if (threadIdx.x % 32 == 0) partial", "if (threadIdx.x % 64 == 0) partial", "uninitialised"),
    ("argmin_kernel", 64, "if (threadIdx.x != 0) continue;", "", "race between two writes"),
    ("conv_weight_grad_kernel", 64, "x_channel[(Offset)n", "x_channel[(Offset)n + 4096", "out-of-bounds read"),
    ("average_pool_kernel", 64, "args.x_offset + n *", "args.x_offset - 4096 + n *", "out-of-bounds read"),
    ("gather_kernel", 64, "e < count", "e + 1 < count", "differ"),
    ("scan_sum_kernel", 64, "__syncthreads();\n    if (lane == 31)", "if (lane == 31)", "race"),
    ("scan_sum_kernel", 64, "if (first + e < walk.length) walk", "walk", "out-of-bounds write"),
    ("sort_kernel", 64, "__syncthreads();\n  unsigned* own", "unsigned* own", "race"),
    ("sort_kernel", 64, "shift < BITS;", "shift + SORT_BITS < BITS;", "differ"),
    ("attention_kernel", 64, "meet();\n      for (Index n", "for (Index n", "race"),
    ("attention_grad_kernel", 64, "  meet();\n    }\n#pragma", "  }\n#pragma", "race"),
    ("attention_grad_kernel", 64, "if (w < width) out", "out", "out-of-bounds write"),
)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: f"{planted[0]}-{planted[4]}")
def test_planted_faults_are_found(planted: tuple[str, int, str, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    name, block, old, new, word = planted

    def faulty(record: KernelRecord, wide: bool = False) -> KernelSource:
        given = source_for(record, wide)
        assert given is not None
        assert old in given.text
        return given._replace(text=given.text.replace(old, new))

    monkeypatch.setattr(kernel_runs, "source_for", faulty)
    row, types = pick(name, turn=1)
    launches = [launch for launch in launches_of(row, types, seed=8) if all(piece.length for piece in launch.pieces)]
    reports = [findings(launch, geometry=lambda record, flat: ((2, 1, 1), (block, 1, 1), 0)) for launch in launches]
    assert any(word in text for report in reports for text in report), reports
