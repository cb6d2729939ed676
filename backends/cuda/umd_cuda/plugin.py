"""The CUDA backend as a plugin: importing it loads nothing but the hook.

Two backends: `cuda` runs on NVIDIA GPUs through CuPy; `cuda-cpu` compiles the same kernels for the processor.
"""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

from umd_core.device import Available, BackendInfo, Unavailable
from umd_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from umd_core.device import Device

CUPY = "14.0"
MAJORS = (13, 12)
"""CUDA versions for which CuPy 14 is built, the one of our extra first."""
_INSTALL = "pip install 'umd-runtime[cuda]'"
_GPU_PRIORITY, _CPU_PRIORITY = 10, -10


def probe_cuda() -> Available | Unavailable:
    """Returns the GPUs of this machine, or what has to be installed. CuPy itself is not imported."""
    from umd_cuda.cuda_library import NoCuda, gpus, open_library  # noqa: PLC0415  # importing a plugin costs nothing

    major, reason = _cupy()
    if not major:
        return Unavailable(reason)
    try:
        found = gpus(open_library())
    except NoCuda as error:
        return Unavailable(str(error))
    if found.version[0] < major:
        version = ".".join(map(str, found.version))
        other = f", or install cupy-cuda{found.version[0]}x in its place" if found.version[0] in MAJORS else ""
        return Unavailable(
            f"the NVIDIA driver supports CUDA {version}, cupy-cuda{major}x needs {major}.0: update the driver{other}"
        )
    return Available(found.names) if found.names else Unavailable("the NVIDIA driver sees no GPU: check nvidia-smi")


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
    if int(version.split(".")[0]) < int(CUPY.split(".")[0]):
        return 0, f"{name} {version} is too old, {CUPY} or later is needed: {_INSTALL}"
    return int(name.removeprefix("cupy-cuda").removesuffix("x")), ""


def _wheels() -> list[str]:
    return [f"cupy-cuda{major}x" for major in MAJORS]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
