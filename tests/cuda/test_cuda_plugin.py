"""The two backends of the CUDA plugin: what a probe says when something is missing, and what opening does then."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.cuda.fake_cupy import FakeCupy
from umd_core.device import Available, Unavailable
from umd_core.errors import AttributeValueError, UnsupportedError
from umd_core.registry import Registry
from umd_cuda import cuda_library, plugin


class Library:
    """Plays libcuda: what each call returns, and what is there."""

    def __init__(self, version: int = 13000, names: tuple[str, ...] = ("GPU A", "GPU B"), **codes: int) -> None:
        self._version, self._names, self._codes = version, names, codes

    def cuDriverGetVersion(self, number: Any) -> int:  # noqa: N802  # NVIDIA's name
        number._obj.value = self._version
        return self._codes.get("cuDriverGetVersion", 0)

    def cuInit(self, flags: int) -> int:  # noqa: N802  # the driver's name
        return self._codes.get("cuInit", 0)

    def cuDeviceGetCount(self, number: Any) -> int:  # noqa: N802  # the driver's name
        number._obj.value = len(self._names)
        return 0

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:  # noqa: N802  # the driver's name
        device._obj.value = 70 + ordinal
        return 0

    def cuDeviceGetName(self, text: Any, size: int, device: Any) -> int:  # noqa: N802  # the driver's name
        ctypes.memmove(text, self._names[device.value - 70].encode() + b"\0", len(self._names[device.value - 70]) + 1)
        return 0


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that says which wheels are installed and what the driver library is."""

    def machine(library: Library | None = None, **wheels: str) -> Available | Unavailable:
        installed = {name.replace("_", "-"): version for name, version in wheels.items()}

        def version(name: str) -> str:
            if name in installed:
                return installed[name]
            raise metadata.PackageNotFoundError(name)

        def cdll(name: str) -> Library:
            if library is None:
                raise OSError(name)
            return library

        monkeypatch.setattr(metadata, "version", version)
        monkeypatch.setattr(cuda_library, "ctypes", _with(CDLL=cdll))
        return plugin.probe_cuda()

    return machine


def _with(**names: Any) -> Any:
    module = type(sys)("ctypes")
    module.__dict__.update(ctypes.__dict__, **names)
    return module


def test_gpus_are_listed_by_name(machine: Any) -> None:
    assert machine(Library(), cupy_cuda13x="14.2.0") == Available(("GPU A", "GPU B"))
    assert machine(Library(12040), cupy_cuda12x="14.0.1") == Available(("GPU A", "GPU B"))


REASONS = {
    "CuPy is not installed: pip install 'umd-runtime[cuda]'": (Library(), {}),
    "cupy is installed, which umd does not use; CuPy is not installed: pip install 'umd-runtime[cuda]'": (
        Library(), {"cupy": "14.0"},
    ),
    "cupy-cuda13x 13.6.0 is too old, 14 or later is needed: pip install 'umd-runtime[cuda]'": (
        Library(), {"cupy_cuda13x": "13.6.0"},
    ),
    "cupy-cuda12x and cupy-cuda13x are both installed: uninstall all but one": (
        Library(), {"cupy_cuda12x": "14.0", "cupy_cuda13x": "14.0"},
    ),
    "no NVIDIA driver is installed (libcuda.so.1 is not found): install one": (None, {"cupy_cuda13x": "14.0"}),
    "the NVIDIA driver supports CUDA 12.4, cupy-cuda13x needs 13.0: update the driver, "
    "or install cupy-cuda12x in its place": (Library(12040), {"cupy_cuda13x": "14.0"}),
    "the NVIDIA driver supports CUDA 11.8, cupy-cuda12x needs 12.0: update the driver": (
        Library(11080), {"cupy_cuda12x": "14.0"},
    ),
    "the NVIDIA driver sees no GPU: check nvidia-smi, and CUDA_VISIBLE_DEVICES": (
        Library(cuInit=100), {"cupy_cuda13x": "14.0"},
    ),
    "the NVIDIA driver sees no GPU: check nvidia-smi": (Library(names=()), {"cupy_cuda13x": "14.0"}),
    "the NVIDIA driver does not work: cuInit returned 803; nvidia-smi may say why": (
        Library(cuInit=803), {"cupy_cuda13x": "14.0"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", REASONS)
def test_what_is_missing_is_said(machine: Any, reason: str) -> None:
    library, wheels = REASONS[reason]
    assert machine(library, **wheels) == Unavailable(reason)
    with pytest.raises(UnsupportedError) as caught:
        plugin.open_cuda("0")
    assert reason in str(caught.value)


def test_an_ordinal_beyond_the_gpus_is_refused(machine: Any) -> None:
    machine(Library(), cupy_cuda13x="14.2.0")
    with pytest.raises(UnsupportedError, match=r"cuda:2: is not there; this machine has 2 GPU"):
        plugin.open_cuda("2")


def test_a_probe_imports_neither_cupy_nor_the_device() -> None:
    code = (
        "import sys; from umd_cuda import plugin; plugin.probe_cuda(); "
        "sys.exit(' '.join({'cupy', 'umd_cuda.device'} & set(sys.modules)) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_both_backends_are_registered_below_and_above_the_simulator() -> None:
    registry = Registry("umd.backends.none")
    registry.register(plugin, "cuda")
    assert registry.failures == []
    priorities = {name: info.priority for name, info in registry.backends.items()}
    assert priorities["cuda"] > 0 > priorities["cuda-cpu"]


def test_without_a_compiler_the_processor_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    from umd_cuda import host_driver

    monkeypatch.setattr(host_driver, "describe_compiler", lambda: ("", "no C++ compiler is installed: apt install g++"))
    assert plugin.probe_cpu() == Unavailable("no C++ compiler is installed: apt install g++")
    with pytest.raises(UnsupportedError, match=r"cuda-cpu:0: cannot be opened: no C\+\+ compiler"):
        plugin.open_cpu("0")


class Finder:
    """Plays cuda.pathfinder, with which CuPy looks for NVIDIA's libraries."""

    def __init__(self, there: bool) -> None:
        self._there = there

    def load_nvidia_dynamic_lib(self, name: str) -> None:
        assert name == "nvrtc"
        if not self._there:
            raise RuntimeError('Failure finding "libnvrtc.so.13"')


@pytest.mark.parametrize("there", [True, False])
def test_without_nvrtc_no_gpu_is_listed(machine: Any, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", Finder(there))
    lacking = Unavailable("no CUDA compiler (NVRTC) is found: pip install 'umd-runtime[cuda]'")
    assert machine(Library(), cupy_cuda13x="14.2.0") == (Available(("GPU A", "GPU B")) if there else lacking)


OPENING = {
    35: r"cuda:0: cannot be opened: CUDARuntimeError: cudaError 35; nvidia-smi .* too old has to be updated",
    2: r"cuda:0: cannot be opened: cudaError 2; nvidia-smi",
    46: r"cuda:0: cannot be opened: .*the device is busy or unavailable",
}


@pytest.mark.parametrize("status", OPENING)
def test_a_gpu_that_does_not_start_is_an_error_that_says_why(
    machine: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: int
) -> None:
    machine(Library(), cupy_cuda13x="14.2.0")
    cupy = FakeCupy()
    cupy.fail["stream"] = status
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    with pytest.raises(UnsupportedError, match=OPENING[status]):
        plugin.open_cuda("0")
    device = plugin.open_cuda("1?queues=2&memory=1MiB")
    assert device.name == "cuda:1"
    device.close()


def test_a_compiler_that_is_not_found_at_opening_is_said(
    machine: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing() -> None:
        raise RuntimeError('Failure finding "libnvrtc.so.13": No such file')

    machine(Library(), cupy_cuda13x="14.2.0")
    cupy = FakeCupy()
    cupy.cuda.nvrtc.getVersion = missing
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    with pytest.raises(UnsupportedError, match=r"no CUDA compiler: pip install 'umd-runtime\[cuda\]'"):
        plugin.open_cuda("0")


def test_what_is_missing_is_listed_and_hides_no_other_backend(tmp_path: Path) -> None:
    """`umd devices` where there is neither a GPU nor a compiler."""
    command = [sys.executable, "-m", "umd_cli", "devices", "--json"]
    environment = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found = {entry["name"]: entry for entry in json.loads(result.stdout)}
    assert not found["cuda"]["available"]
    assert "install" in found["cuda"]["detail"]
    assert found["sim:0"]["available"]
    if importlib.util.find_spec("ziglang") is None:
        assert not found["cuda-cpu"]["available"]
        assert "install g++" in found["cuda-cpu"]["detail"]


@pytest.mark.parametrize("opens", [plugin.open_cuda, plugin.open_cpu])
def test_wrong_options_are_named(opens: Any) -> None:
    with pytest.raises(AttributeValueError, match="memory=SIZE"):
        opens("0?speed=11")
