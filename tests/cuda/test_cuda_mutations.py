"""Every class of bug, planted by rule into the source of every kernel file that has a place for it, is found."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.cuda import kernel_runs
from tests.cuda.kernel_runs import findings, has_compiler, launches_of, pick
from umd_core.kernels import BY_NAME, KernelRecord
from umd_core.kernels.geometry import Flat
from umd_core.testing.launches import Launch
from umd_cuda import host
from umd_cuda.geometry import Geometry
from umd_cuda.sources import KernelSource, source_for

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")

KERNELS = (
    "elementwise_add_kernel", "reduce_sum_kernel", "argmax_kernel", "gather_kernel", "scatter_add_kernel",
    "scatter_max_kernel", "iota_kernel", "gemm_kernel", "conv_kernel", "conv_input_grad_kernel",
    "conv_weight_grad_kernel", "max_pool_kernel", "average_pool_grad_kernel", "softmax_kernel", "softmax_grad_kernel",
    "normalize_kernel", "adamw_kernel", "scan_sum_kernel", "sort_kernel", "random_uniform_kernel",
    "attention_kernel", "attention_grad_kernel",
)  # fmt: skip
"""One of each kernel file."""
SITES = 24
"""Places of a source that are tried until a bug there is found: some mutants compute the same."""

# class of bug: what it looks for in the source, what it puts there, and a word of what is to be reported
BUGS = {
    "missing barrier": (r"__syncthreads\(\);", "", r"race|differ|uninitialised"),
    "divergent barrier": (r"__syncthreads\(\);", "if (threadIdx.x % 64 < 32) __syncthreads();", r"barrier|race|differ"),
    "out of bounds": (r"(?<=\w) < (?=\w)", " <= ", r"out-of-bounds|differ"),
    "bad shuffle mask": (r"0xffffffffu?", "0x0000ffffu", r"mask|shuffle"),
    "unwritten output": (
        r"(?m)^(\s+)(?:if \([^;{]*\) )?[\w.]*(?:out|y|dx|dw|value|values|p|index)\[[^;]*\] = [^;]*;", r"\1;",
        r"unwritten|differ",
    ),
    "update that is not atomic": (
        r"(?m)^(#define ATOMIC\(to, value\)) .*$", r"\1 (*(to) = *(to) < (value) ? (value) : *(to))", r"race|differ"
    ),
    "uninitialised read": (
        r"(?m)^(\s+)(?:if \([^;{]*\) )?(?:partial|tile|shared|own|counts|left|right)\w*\[[^;]*\] = [^;]*;", r"\1;",
        r"uninitialised|differ",
    ),
}  # fmt: skip
TILED = "its barriers are in the tiled kernel, which larger launches take: planted in test_cuda_plans.py"
NOT_REACHED = {
    ("conv_kernel", "missing barrier"): TILED,
    ("conv_kernel", "divergent barrier"): TILED,
    ("conv_input_grad_kernel", "missing barrier"): TILED,
    ("conv_input_grad_kernel", "divergent barrier"): TILED,
    ("conv_input_grad_kernel", "uninitialised read"): "the array that matches is in registers",
    ("attention_grad_kernel", "bad shuffle mask"): "what shuffles is in a macro that the forward kernel uses",
    ("argmax_kernel", "uninitialised read"): "the place is in a macro that other types use",
    ("iota_kernel", "out of bounds"): "its loop is in a macro; what matches bounds axes that are there",
}
"""Places that small launches do not come to, and why."""


def kernel_start(text: str) -> int:
    """Returns where the kernel begins: what is before it is included from files that others have too."""
    return text.rindex('extern "C"') if 'extern "C"' in text else 0


def mutants(text: str, bug: str) -> list[str]:
    """Returns sources with the bug in one place each, those in the kernel itself first."""
    pattern, replacement, _ = BUGS[bug]
    start = kernel_start(text)
    places = sorted(re.finditer(pattern, text), key=lambda match: (match.start() < start, match.start()))
    return [text[: m.start()] + m.expand(replacement) + text[m.end() :] for m in places[:SITES]]


def places() -> list[tuple[str, str]]:
    """Returns (kernel, class of bug) wherever a source has a place for it."""
    found = []
    for name in KERNELS:
        row, types = pick(name, turn=1)
        source = source_for(row.record(types, [allowed[0] for _, allowed in row.sizes]))
        assert source is not None
        found += [(name, bug) for bug in BUGS if (name, bug) not in NOT_REACHED and mutants(source.text, bug)]
    return found


PLACES = places() if has_compiler() else []


def reports_of(launches: list[Launch]) -> Iterator[str]:
    """Yields what is reported: by two workgroups, and by as many as a GPU would get, in two thread orders."""
    for geometry in (two_groups, None):
        for seed in (0, 1):
            for launch in launches:
                try:
                    yield from findings(launch, seed, geometry)
                except host.CompileError:
                    return  # a mutant that does not compile is none
                except host.LaunchError as error:
                    yield str(error)


def two_groups(record: KernelRecord, flat: Flat) -> Geometry:
    return (2, 1, 1), (64, 1, 1), 0


@pytest.mark.parametrize(("name", "bug"), PLACES)
def test_a_planted_bug_is_found(name: str, bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row, types = pick(name, turn=1)
    launches = [launch for launch in launches_of(row, types, seed=8) if all(piece.length for piece in launch.pieces)]
    source = source_for(launches[0].record)
    assert source is not None
    wanted = re.compile(BUGS[bug][2])
    for text in mutants(source.text, bug):

        def faulty(record: KernelRecord, wide: bool = False, mutant: str = text) -> KernelSource:
            given = source_for(record, wide)
            assert given is not None
            return given._replace(text=mutant)

        monkeypatch.setattr(kernel_runs, "source_for", faulty)
        if any(wanted.search(line) for line in reports_of(launches)):
            return
    pytest.fail(f"no bug of this class was found in {name}: {len(mutants(source.text, bug))} places were tried")


def test_every_kernel_has_places() -> None:
    assert {name for name, _ in PLACES} == set(KERNELS)
    assert {bug for _, bug in PLACES} == set(BUGS)
    assert set(KERNELS) <= set(BY_NAME)
    assert {BY_NAME[name].family for name in KERNELS} >= {row.family for row in BY_NAME.values()} - {"chain"}
