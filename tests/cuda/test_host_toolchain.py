"""The compiler and the cache of compiled code: keys, torn files, no compiler, no room."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cuda.host_cases import needs_compiler
from umd_core.errors import UnsupportedError
from umd_cuda import disk, host
from umd_cuda.host import toolchain

SOURCE = 'extern "C" __global__ void k(int* x) { x[0] = N; }\n'
SYNCHRONISING = 'extern "C" __global__ void k(int* x) { __syncthreads(); x[threadIdx.x] = 1; __syncthreads(); }\n'


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UMD_CUDA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _value(module: host.HostModule) -> int:
    x = np.zeros(1, np.int32)
    module.function("k").launch((1,), (1,), 0, [x.ctypes.data.to_bytes(8, "little")])
    return int(x[0])


def _libraries(cache: Path) -> set[Path]:
    return set(cache.rglob("*.so"))


@needs_compiler
def test_compiled_once_for_one_source_and_options(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _value(host.compile(SOURCE, ["-DN=4"])) == 4
    assert _value(host.compile(SOURCE, ["-DN=5"])) == 5
    assert len(_libraries(cache)) == 2
    monkeypatch.setattr(toolchain, "_compile", None)  # compiling again would fail
    assert _value(host.compile(SOURCE, ["-DN=4"])) == 4
    assert not [path for path in cache.iterdir() if path.name.startswith("build-")]


@needs_compiler
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_torn_library_is_built_again(cache: Path, damage: str) -> None:
    host.compile(SOURCE, ["-DN=6"])
    (library,) = _libraries(cache)
    data = library.read_bytes()
    library.unlink()  # it may be loaded: never change it in place
    torn = {"cut": data[: len(data) // 2], "flipped": bytes([data[0] ^ 1]) + data[1:], "empty": b""}[damage]
    library.write_bytes(torn)
    assert _value(host.compile(SOURCE, ["-DN=6"])) == 6
    assert _libraries(cache) == {library}
    assert library.read_bytes()[:4] == b"\x7fELF"


@needs_compiler
def test_two_processes_may_compile_the_same_source(cache: Path) -> None:
    program = f"import sys; from umd_cuda import host; host.compile({SOURCE!r}, ['-DN=7'])"
    running = [subprocess.Popen([sys.executable, "-c", program], env=_environment()) for _ in range(2)]
    assert [process.wait() for process in running] == [0, 0]
    assert len(_libraries(cache)) == 1
    assert _value(host.compile(SOURCE, ["-DN=7"])) == 7


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def test_no_compiler_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(host.NoCompilerError) as raised:
        toolchain.find_compiler(str(tmp_path))
    assert isinstance(raised.value, UnsupportedError)
    assert "install g++" in str(raised.value)


def test_a_compiler_that_does_not_answer_is_passed_over(tmp_path: Path) -> None:
    for name, code in (("g++", 1), ("clang++", 0)):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\necho {name} 99\nexit {code}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    found = toolchain.find_compiler(str(tmp_path))
    assert found == toolchain.Compiler((str(tmp_path / "clang++"),), "clang++ 99")


def _script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_compiler_without_half_types_is_passed_over(tmp_path: Path) -> None:
    for folder in ("one", "both"):
        (tmp_path / folder).mkdir()
        _script(tmp_path / folder / "g++", 'case "$*" in *--version) echo "g++ 9";; *) exit 1;; esac')
    _script(tmp_path / "both" / "clang++", 'echo "clang++ 99"')
    assert toolchain.find_compiler(str(tmp_path / "both")).version == "clang++ 99"
    with pytest.raises(host.NoCompilerError, match=r"g\+\+ 12 or clang 15"):
        toolchain.find_compiler(str(tmp_path / "one"))


def test_umd_cxx_names_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = _script(tmp_path / "mine", 'echo "mine $1"')
    monkeypatch.setenv("UMD_CXX", f"{mine} -DX")
    assert toolchain.find_compiler() == toolchain.Compiler((str(mine), "-DX"), "mine -DX")
    monkeypatch.setenv("UMD_CXX", str(tmp_path / "none"))
    with pytest.raises(host.NoCompilerError, match=r"UMD_CXX is '.*none', which does not work .*; unset it or install"):
        toolchain.find_compiler()


@needs_compiler
def test_a_full_disk_under_the_cache_is_said_and_done_without(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    disk.warn_unkept.cache_clear()
    with monkeypatch.context() as patch, caplog.at_level("WARNING", "umd_cuda"):
        patch.setattr(os, "replace", full)
        assert _value(host.compile(SOURCE, ["-DN=8"])) == 8
        patch.setattr(toolchain, "_compile", None)  # it stays with this process
        assert _value(host.compile(SOURCE, ["-DN=8"])) == 8
    (record,) = caplog.records
    assert f"cannot be kept in {cache}: No space left on device" in record.getMessage()
    assert "UMD_CUDA_CACHE" in record.getMessage()
    assert not _libraries(cache)


@needs_compiler
def test_a_cache_that_is_no_folder_is_said_and_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UMD_CUDA_CACHE", str(tmp_path / "file"))
    with caplog.at_level("WARNING", "umd_cuda"):
        assert _value(host.compile(SOURCE, ["-DN=9"])) == 9
    assert str(tmp_path / "file") in caplog.text


@needs_compiler
def test_no_room_to_compile_in_is_an_error_that_names_the_folder(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", full)
    with pytest.raises(host.CacheError, match="set TMPDIR") as raised:
        host.compile(SOURCE, ["-DN=10"])
    assert raised.value.folder == tempfile.gettempdir()


def test_nvrtcs_options_in_the_host_compilers_spelling() -> None:
    given = ("--std=c++20", "-arch=sm_90", "--gpu-architecture=compute_80", "--fmad=false", "--use_fast_math", "-DN=1")
    assert toolchain.host_options(given) == ("-std=c++20", "-ffp-contract=off", "-DN=1")
    assert toolchain.host_options(("--define-macro=A", "-lineinfo")) == ("-std=c++17", "-DA")


@needs_compiler
def test_modules_do_not_share_the_variables_of_their_templates() -> None:
    source = """
template <typename T> __device__ T counter = T(START);
extern "C" __global__ void k(int* x) { x[0] = counter<int>++; }
"""
    first, second = (host.compile(source, [f"-DSTART={start}"]) for start in (10, 20))
    assert [_value(first), _value(first), _value(second), _value(first)] == [10, 11, 20, 12]


@needs_compiler
def test_unknown_kernels_are_named() -> None:
    module = host.compile(SOURCE, ["-DN=1"])
    with pytest.raises(host.UnknownKernelError) as raised:
        module.function("j")
    assert (raised.value.kernel, tuple(raised.value.known)) == ("j", ("k",))


@needs_compiler
def test_portable_context_switch(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processors for which there is no switch in assembly use the C library's."""
    monkeypatch.setattr(toolchain, "_COMMON", (*toolchain._COMMON, "-DUMD_UCONTEXT"))
    x = np.zeros(64, np.int32)
    host.RawKernel(SYNCHRONISING, "k")(3, 64, (x,))
    np.testing.assert_array_equal(x, np.ones(64))


def test_importing_it_loads_no_gpu_library_torch_or_grpc() -> None:
    program = (
        "import sys, umd_cuda.host; print([m for m in ('cupy', 'torch', 'grpc', 'onnx', 'typer') if m in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=_environment()
    )
    assert answer.stdout.strip() == "[]"


def test_clang_is_told_what_it_would_leave_out() -> None:
    gcc, clang = toolchain.Compiler(("g++",), "g++ 12"), toolchain.Compiler(("c",), "Debian clang version 16.0.6")
    assert set(clang.flags(True)) - set(gcc.flags(True)) == {
        "-Xclang", "-no-enable-noundef-analysis", "-mllvm", "-tsan-instrument-read-before-write",
    }  # fmt: skip
    assert set(clang.flags(False)) - set(gcc.flags(False)) == {"-Xclang", "-no-enable-noundef-analysis"}
