"""CUDA C to what a GPU loads: CuPy's NVRTC, with compiled modules in umd's own cache on the disk."""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from umd_core.errors import UnsupportedError
from umd_cuda import disk

INSTALL = "pip install 'umd-runtime[cuda]'"
_THREADS = 8
_MISSING = {
    "libnvrtc": "has no CUDA compiler",
    "cuda_fp16.h": "has no headers of CUDA",
    "cuda_bf16.h": "has no headers of CUDA",
}
"""What is not installed, by what the message of an error then holds."""


class CupyModule:
    """A module in the making.

    Attributes:
        image: the compiled code, once it is there.
        loaded: CuPy's module, None until a function of it is asked for.
    """

    __slots__ = ("image", "loaded")

    def __init__(self, image: Future[bytes]) -> None:
        self.image: Future[bytes] = image
        self.loaded: Any = None


class Compiler:
    """Compiles for one GPU. Sources are compiled side by side: NVRTC lets go of the interpreter meanwhile.

    What CuPy keeps under CUPY_CACHE_DIR is not used. CuPy fails where that folder cannot be written, and says nothing
    of a damaged file.
    """

    def __init__(self, cupy: Any, device: Any) -> None:
        self._cupy, self._device = cupy, device
        self._architecture = str(device.compute_capability)
        with _lacking():
            self._version = str(cupy.cuda.nvrtc.getVersion())
        self._threads = ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1), thread_name_prefix="umd-cuda-compile")

    def load(self, text: str, options: Sequence[str]) -> CupyModule:
        """Returns a module in the making."""
        return CupyModule(self._threads.submit(self._image, text, tuple(options)))

    def function(self, module: CupyModule, name: str) -> Any:
        """Returns a kernel; the device is current.

        Raises:
            Exception: whatever CuPy raises: the source does not compile.
            UnsupportedError: there is no compiler.
        """
        if module.loaded is None:
            loaded = self._cupy.cuda.Module()
            loaded.load(module.image.result())
            module.loaded = loaded
        return module.loaded.get_function(name)

    def _image(self, text: str, options: tuple[str, ...]) -> bytes:
        """Returns the compiled code of a source, from the disk when it was compiled before."""
        every = self._options(options)
        place = disk.place((text, every, self._architecture, self._version, self._cupy.__version__), ".cubin")
        image = disk.find(place)
        if image is None:
            with self._device, _lacking():
                image, _ = self._cupy.cuda.compiler.compile_using_nvrtc(text, every, cache_in_memory=True)
            disk.keep(place, image)
        return image

    def _options(self, options: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the options that CuPy itself compiles with, after ours."""
        standard = () if any("-std=" in option for option in options) else ("--std=c++17",)
        path = self._cupy.cuda.get_cuda_path()
        headers = (f"-I{Path(path, 'include')}",) if path else ()
        return (*options, *standard, *headers, "-ftz=true")

    def close(self) -> None:
        """Ends the threads."""
        self._threads.shutdown()


@contextlib.contextmanager
def _lacking() -> Generator[None]:
    """Turns an error that something is not installed into one that says what to install."""
    try:
        yield
    except Exception as error:
        for line in str(error).splitlines():
            for sign, what in _MISSING.items():
                if sign in line:
                    raise UnsupportedError(f"{what}: {INSTALL} ({line.strip()})", device="cuda") from error
        raise


def import_cupy() -> Any:
    """Returns CuPy.

    CuPy makes a cache folder of its own when it is imported; where it cannot, it gets another one.

    Raises:
        UnsupportedError: it cannot be imported.
    """
    folder = os.environ.get("CUPY_CACHE_DIR") or os.path.expanduser("~/.cupy/kernel_cache")
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        disk.LOGGER.warning(
            "CuPy cannot have its cache in %s: %s; CUPY_CACHE_DIR may name another folder", folder, reason
        )
        os.environ["CUPY_CACHE_DIR"] = tempfile.mkdtemp(prefix="umd-cupy-")
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise UnsupportedError(f"CuPy cannot be imported: {error}: {INSTALL}", device="cuda") from error
