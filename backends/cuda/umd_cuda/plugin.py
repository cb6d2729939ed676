"""The CUDA backend as a plugin: importing it loads nothing but the hook.

Two backends: `cuda` runs on NVIDIA GPUs through CuPy; `cuda-cpu` compiles the same kernels for the processor.
"""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import TYPE_CHECKING

from umd_core.device import Available, BackendInfo, Unavailable
from umd_core.errors import UnsupportedError
from umd_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from umd_core.device import Device

CUPY = 14
"""The oldest major version of CuPy that is known to work."""
MAJORS = (13, 12)
"""CUDA versions for which CuPy 14 is built, the one of our extra first."""
_INSTALL = "pip install 'umd-runtime[cuda]'"
_GPU_PRIORITY, _CPU_PRIORITY = 10, -10


def probe_cuda() -> Available | Unavailable:
    """Returns the GPUs of this machine, or what has to be installed. CuPy itself is not imported."""
    from umd_cuda.cuda_library import NoGpuError, gpus, open_library  # noqa: PLC0415  # importing a plugin costs nothing

    major, reason = _cupy()
    if not major:
        return Unavailable(reason)
    try:
        found = gpus(open_library())
    except NoGpuError as error:
        return Unavailable(str(error))
    if found.version[0] < major:
        version = ".".join(map(str, found.version))
        other = f", or install cupy-cuda{found.version[0]}x in its place" if found.version[0] in MAJORS else ""
        return Unavailable(
            f"the NVIDIA driver supports CUDA {version}, cupy-cuda{major}x needs {major}.0: update the driver{other}"
        )
    if not found.names:
        return Unavailable("the NVIDIA driver sees no GPU: check nvidia-smi")
    return Available(found.names) if _has_compiler() else Unavailable(f"no CUDA compiler (NVRTC) is found: {_INSTALL}")


def _has_compiler() -> bool:
    """Returns whether CuPy will find NVRTC, which it looks for with this very function."""
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
    except ImportError:
        return True  # another way of looking: it is asked for when the device is opened
    try:
        pathfinder.load_nvidia_dynamic_lib("nvrtc")
    except Exception:  # noqa: BLE001  # whatever it raises, CuPy will not get it either
        return False
    return True


def _cupy() -> tuple[int, str]:
    """Returns the CUDA major that the installed CuPy is built for, or 0 and what to install."""
    found = {name: version for name in _wheels() if (version := _version(name))}
    if not found:
        other = next((name for name in ("cupy", "cupy-cuda11x") if _version(name)), "")
        instead = f"{other} is installed, which umd does not use; " if other else ""
        return 0, f"{instead}CuPy is not installed: {_INSTALL}"
    if len(found) > 1:
        return 0, f"{' and '.join(sorted(found))} are both installed: uninstall all but one"
    ((name, version),) = found.items()
    if int(version.partition(".")[0]) < CUPY:
        return 0, f"{name} {version} is too old, {CUPY} or later is needed: {_INSTALL}"
    return int(name.removeprefix("cupy-cuda").removesuffix("x")), ""


def _wheels() -> list[str]:
    return [f"cupy-cuda{major}x" for major in MAJORS]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def open_cuda(rest: str) -> Device:
    """Returns the GPU that "cuda:" + rest names: an ordinal, then options as in "0?memory=2GiB&sync=1".

    Raises:
        UnsupportedError, AttributeValueError: there is no such GPU, or an option is wrong.
    """
    from umd_cuda.cupy_driver import CupyDriver  # noqa: PLC0415  # loaded when a device is opened, not before
    from umd_cuda.device import CudaDevice  # noqa: PLC0415  # loaded when a device is opened, not before
    from umd_cuda.driver import DriverError  # noqa: PLC0415  # loaded when a device is opened, not before
    from umd_cuda.options import parse  # noqa: PLC0415  # loaded when a device is opened, not before

    options = parse("cuda", rest)
    found = probe_cuda()
    name = f"cuda:{options.ordinal}"
    if isinstance(found, Unavailable):
        raise UnsupportedError(f"cannot be opened: {found.reason}", device=name)
    if options.ordinal >= len(found.devices):
        raise UnsupportedError(f"is not there; this machine has {len(found.devices)} GPU(s)", device=name)
    try:
        driver = CupyDriver(options.ordinal)
    except DriverError as fault:
        advice = "nvidia-smi may say why; a driver that is too old has to be updated"
        raise UnsupportedError(f"cannot be opened: {fault.reason}; {advice}", device=name) from fault
    return CudaDevice(driver, name, options)


def probe_cpu() -> Available | Unavailable:
    """Returns the processor when there is a C++ compiler for it."""
    from umd_cuda.host_driver import describe_compiler  # noqa: PLC0415  # loaded when a device is opened, not before

    line, reason = describe_compiler()
    return Available((line,)) if line else Unavailable(reason)


def open_cpu(rest: str) -> Device:
    """Returns the processor as a CUDA device: "cuda-cpu:" + rest, with options as in "0?memory=2GiB".

    Raises:
        UnsupportedError, AttributeValueError: there is no compiler, or an option is wrong.
    """
    from umd_cuda import serial, sources  # noqa: PLC0415  # loaded when a device is opened, not before
    from umd_cuda.checked import CheckedDevice  # noqa: PLC0415  # loaded when a device is opened, not before
    from umd_cuda.checked_driver import CheckedHostDriver  # noqa: PLC0415  # loaded when a device is opened, not before
    from umd_cuda.device import CudaDevice  # noqa: PLC0415  # loaded when a device is opened, not before
    from umd_cuda.host_driver import HostDriver  # noqa: PLC0415  # loaded when a device is opened, not before
    from umd_cuda.options import parse  # noqa: PLC0415  # loaded when a device is opened, not before

    options = parse("cuda-cpu", rest)
    name = f"cuda-cpu:{options.ordinal}"
    found = probe_cpu()
    if isinstance(found, Unavailable):
        raise UnsupportedError(f"cannot be opened: {found.reason}", device=name)
    if options.ordinal:
        raise UnsupportedError("is not there; cuda-cpu:0 is the only one", device=name)
    if options.checked:  # as many invocations as on a GPU: a single one would hide every race
        return CheckedDevice(CheckedHostDriver(orders=options.orders), name, options, sources)
    return CudaDevice(HostDriver(), name, options, serial)


@hookimpl
def umd_register_backends() -> list[BackendInfo]:
    """Returns the two backends. Kernels on a processor are for tests: the simulator comes before them."""
    return [
        BackendInfo("cuda", probe=probe_cuda, open=open_cuda, priority=_GPU_PRIORITY),
        BackendInfo("cuda-cpu", probe=probe_cpu, open=open_cpu, priority=_CPU_PRIORITY),
    ]
