"""Our kernels under NVIDIA's compiler, without a GPU: no warning, no spill, needs as recorded in nvrtc.json.

One architecture is compiled with every kernel and class of types, the others with every eighth;
`make cuda-check` compiles them all, and `python scripts/cuda_check.py --write` rewrites the records.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from umd_core.errors import UnsupportedError
from umd_cuda import nvrtc

ROOT = Path(__file__).resolve().parent.parent.parent
WHOLE = "sm_90"
PARTS = 4
"""The work is cut into as many tests, so that the workers of a run share it."""

SPILL = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_90'
ptxas info    : Function properties for k
ptxas         .     48 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 48 bytes cumulative stack size, 128 bytes smem
ptxas info    : Compile time = 18.458 ms
"""


def _installed() -> bool:
    try:
        nvrtc.find()
    except UnsupportedError:
        return False
    return True


needs_nvrtc = pytest.mark.skipif(not _installed(), reason="NVRTC is not installed")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cuda_check", ROOT / "scripts" / "cuda_check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(script: ModuleType, arch: str, part: int, parts: int) -> None:
    records, faults = script.run(script.recorded_jobs([arch], [False])[part::parts], 1)
    assert faults == []
    assert script.beyond(records, script.read()[1]) == []


@needs_nvrtc
@pytest.mark.parametrize("part", range(PARTS))
def test_every_kernel_compiles_as_recorded(script: ModuleType, part: int) -> None:
    check(script, WHOLE, part, PARTS)


@needs_nvrtc
@pytest.mark.parametrize(("part", "arch"), [*enumerate(("sm_75", "sm_80", "sm_100"))])
def test_every_eighth_kernel_compiles_for_other_architectures(script: ModuleType, part: int, arch: str) -> None:
    check(script, arch, part, 8)


def test_exactly_the_kernels_of_the_table_are_recorded_for_every_architecture(script: ModuleType) -> None:
    records = script.read()[1]
    assert set(records) == {job.label for job in script.recorded_jobs([WHOLE])}
    assert {arch for by_arch in records.values() for arch in by_arch} == set(script.ARCHITECTURES)
    assert {len(by_arch) for by_arch in records.values()} == {len(script.ARCHITECTURES)}


@needs_nvrtc
def test_the_records_are_of_the_pinned_compiler(script: ModuleType) -> None:
    assert script.read()[0] == nvrtc.version()
    pins = (ROOT / "constraints.txt").read_text("utf-8")
    assert f"nvidia-cuda-nvrtc=={nvrtc.version()}." in pins


def test_a_log_is_read() -> None:
    found = nvrtc.parse(SPILL)
    assert found == nvrtc.Compiled(registers=255, shared=128, stack=48, spilled=20, warnings=())
    warned = nvrtc.parse("kernel.cu(3): warning #177-D: variable x was declared but never referenced\n" + SPILL)
    assert warned.warnings == ("kernel.cu(3): warning #177-D: variable x was declared but never referenced",)


def test_more_than_is_recorded_is_a_fault_and_less_is_not(script: ModuleType) -> None:
    found = {"k float": {"sm_90": (33, 0, 8)}}
    assert script.beyond(found, {"k float": {"sm_90": [40, 0, 8]}}) == []
    assert script.beyond(found, {"k float": {"sm_90": [32, 0, 4]}}) == [
        "k float sm_90: 33 registers, 32 are recorded",
        "k float sm_90: 8 bytes of stack, 4 are recorded",
    ]
    assert script.beyond(found, {}) == ["k float sm_90: not recorded"]
    assert script.wrong(nvrtc.parse(SPILL)) == ["20 bytes of registers are spilled"]


@needs_nvrtc
def test_what_does_not_compile_warns_or_spills_is_said() -> None:
    with pytest.raises(nvrtc.NvrtcError, match="undefined") as caught:
        nvrtc.compile('extern "C" __global__ void k(float* x) { x[0] = y; }', "sm_75")
    assert caught.value.facts()["arch"] == "sm_75"
    unused = nvrtc.compile('extern "C" __global__ void k(float* x) { int unused; x[0] = 1; }', "sm_75")
    assert any("never referenced" in line for line in unused.warnings)
    body = "float v[99]; for (int i = 0; i < 99; ++i) v[i] = x[i]; __syncthreads(); for (int i = 0; i < 99; ++i) "
    many = f'extern "C" __global__ void k(float* x) {{ {body} x[i] = v[98 - i]; }}'
    assert nvrtc.compile(many, "sm_90", ["-maxrregcount=32"]).spilled > 0
