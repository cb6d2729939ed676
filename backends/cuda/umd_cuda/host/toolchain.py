"""The host's C++ compiler, and the cache of what it compiled."""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from umd_cuda import disk
from umd_cuda.disk import cache_folder
from umd_cuda.host import refusals
from umd_cuda.host.errors import CacheError, CompileError, NoCompilerError, RefusedSourceError

_HERE = Path(__file__).parent
_NATIVE = "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native"
# zig turns a sanitizer on of its own accord
_COMMON = ("-fPIC", "-fvisibility=hidden", "-w", "-fno-strict-aliasing", "-fno-sanitize=undefined", _NATIVE)
_FAST = ("-O3", "-fno-math-errno", "-fno-trapping-math")
_CHECKED = ("-O1", "-fno-threadsafe-statics", "-gdwarf-4", "-fno-omit-frame-pointer", "-DUMD_CHECKED")
# A lane may hand a variable that it never set to a shuffle: clang would conclude that no such lane gets there.
_CLANG = ("-Xclang", "-no-enable-noundef-analysis")
# clang leaves the check of a read out when a write to the same place follows.
_CLANG_CHECKED = ("-mllvm", "-tsan-instrument-read-before-write")
_IGNORED = re.compile(
    r"-arch|--gpu-architecture|-gencode|--use_fast_math|-use_fast_math|--ftz|-ftz|--prec|-prec|-lineinfo|--generate-line"
    r"|--maxrregcount|-maxrregcount|--device|-default-device|--extra-device|--restrict|-G$|--relocatable|-dc$|-rdc|-w$"
)
_spares: dict[Path, Path] = {}
"""Where compiled files lie that the cache does not take, by their place in it."""
_SPELLED = (("--std=", "-std="), ("--define-macro=", "-D"), ("--include-path=", "-I"), ("--undefine-macro=", "-U"))


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler: its command and what `--version` says."""

    command: tuple[str, ...]
    version: str

    def flags(self, checked: bool) -> tuple[str, ...]:
        """Returns the options for kernels of a plain or of a checked build."""
        own = (*_CLANG, *(_CLANG_CHECKED if checked else ())) if "clang" in self.version else ()
        return (*_COMMON, *(_CHECKED if checked else _FAST), *own)


def find_compiler(path: str | None = None) -> Compiler:
    """Returns the command in UMD_CXX, else the first of g++, clang++ and zig that answers and is not too old.

    Args:
        path: searched instead of PATH, for these names alone.

    Raises:
        NoCompilerError: none does, or what UMD_CXX names does not.
    """
    return _find(path, os.environ.get("UMD_CXX", "").strip() if path is None else "")


@functools.cache
def _find(path: str | None, chosen: str) -> Compiler:
    for command in [tuple(shlex.split(chosen))] if chosen else _candidates(path):
        with contextlib.suppress(OSError):  # it is not there: the next one may be
            answer = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
            if answer.returncode == 0 and _knows_half(command):
                return Compiler(command, answer.stdout.splitlines()[0] if answer.stdout else "")
    raise NoCompilerError((chosen,) if chosen else ("g++", "clang++", "python -m ziglang c++"), chosen)


def _knows_half(command: tuple[str, ...]) -> bool:
    """Returns whether a compiler has the type that half types are made of, which older ones lack."""
    asked = [*command, "-std=c++17", "-S", "-o", "-", "-x", "c++", "-"]
    answer = subprocess.run(asked, input="_Float16 x;", capture_output=True, text=True, check=False)
    return answer.returncode == 0


def _candidates(path: str | None) -> list[tuple[str, ...]]:
    candidates: list[tuple[str, ...]] = []
    for name in ("g++", "clang++"):
        found = shutil.which(name, path=path)
        if found:
            candidates.append((found,))
    if path is None and importlib.util.find_spec("ziglang") is not None:
        candidates.append((sys.executable, "-m", "ziglang", "c++"))
    return candidates


def host_options(options: Sequence[str]) -> tuple[str, ...]:
    """Returns NVRTC's options as the host compiler spells them; what has no meaning on a CPU is left out."""
    result: list[str] = []
    for option in options:
        if _IGNORED.match(option):
            continue
        if option in ("--fmad=false", "-fmad=false"):
            result.append("-ffp-contract=off")
            continue
        if option in ("--fmad=true", "-fmad=true"):
            continue
        for spelled, ours in _SPELLED:
            if option.startswith(spelled):
                option = ours + option[len(spelled) :]
        result.append(option)
    if not any(option.startswith("-std=") for option in result):
        result.insert(0, "-std=c++17")
    return tuple(result)


def build(unit: str, name: str, options: Sequence[str], *, checked: bool) -> Path:
    """Returns the shared library of a translation unit, compiled now or earlier.

    Raises:
        RefusedSourceError: the source uses what the CPU does not run.
        CompileError: the compiler refused it.
        CacheError: there is no room to compile in.
        NoCompilerError: there is no compiler.
    """
    compiler = find_compiler()
    flags = (*compiler.flags(checked), *host_options(options))
    parts = (unit, name, flags, compiler.command, compiler.version, _shim_digest(), _machine())
    library = disk.place(parts, ".so")
    known = _known(library)
    if known is not None:
        return known
    objects = [
        _runtime_object(compiler, part, checked) for part in (("runtime", "checks") if checked else ("runtime",))
    ]
    with _scratch() as folder:
        source, result = Path(folder, "unit.cpp"), Path(folder, "unit.so")
        _write(source, unit.encode())
        tsan = ("-fsanitize=thread",) if checked else ()
        _compile(compiler, (*flags, *tsan, "-c", str(source), "-o", f"{source}.o", f"-I{_HERE / 'include'}"), name)
        # Nothing else is exported: a template's variable would be shared by all modules that have one of its name.
        exports = f"-Wl,--version-script={_HERE / 'runtime' / 'exports.map'}"
        _compile(compiler, ("-shared", exports, f"{source}.o", *map(str, objects), "-o", str(result)), name)
        return _kept(result, library)


def _runtime_object(compiler: Compiler, part: str, checked: bool) -> Path:
    source = _HERE / "runtime" / f"{part}.cpp"
    flags = ("-std=c++17", "-O2", *_COMMON, *(("-g", "-DUMD_CHECKED") if checked else ()))
    kept = disk.place((part, flags, compiler.command, compiler.version, _shim_digest(), _machine()), ".o")
    known = _known(kept)
    if known is not None:
        return known
    with _scratch() as folder:
        result = Path(folder, "runtime.o")
        _compile(compiler, (*flags, "-c", str(source), "-o", str(result)), part)
        return _kept(result, kept)


def _compile(compiler: Compiler, arguments: Sequence[str], name: str) -> None:
    answer = subprocess.run([*compiler.command, *arguments], capture_output=True, text=True, check=False)
    if answer.returncode == 0:
        return
    refused = refusals.found(answer.stderr)
    if refused:
        raise RefusedSourceError(name, refused)
    first = re.search(rf"^{re.escape(name)}:(\d+):.*error:", answer.stderr, re.MULTILINE)
    if "No space left" in answer.stderr:
        raise CacheError(tempfile.gettempdir(), "no space left on the device")
    raise CompileError(name, int(first.group(1)) if first else 0, answer.stderr.strip()[:4000])


def _scratch() -> tempfile.TemporaryDirectory[str]:
    """Returns a folder to compile in: in the machine's own, or in the cache when that has no room."""
    reason = ""
    for folder in (None, cache_folder()):
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            return tempfile.TemporaryDirectory(prefix="umd-build-", dir=folder)
        except OSError as error:
            reason = reason or error.strerror or str(error)
    raise CacheError(tempfile.gettempdir(), reason)


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise CacheError(str(path.parent), error.strerror or str(error)) from error


def _known(place: Path) -> Path | None:
    """Returns where a file is that was compiled before, None when it was not. Loading a torn one would be fatal."""
    return _spares.get(place) or (place if disk.find(place) is not None else None)


def _kept(result: Path, place: Path) -> Path:
    """Returns where a compiled file lies from now on: in the cache, or where it stays until this process ends."""
    data = result.read_bytes()
    if disk.keep(place, data):
        return place
    try:
        spare = Path(tempfile.mkdtemp(dir=_spare_folder()), place.name)  # never over a library that is loaded
        spare.write_bytes(data)
    except OSError as error:
        raise CacheError(tempfile.gettempdir(), error.strerror or str(error)) from error
    _spares[place] = spare
    return spare


@functools.cache
def _spare_folder() -> str:
    """Returns a folder of this process for what the cache does not take."""
    folder = tempfile.TemporaryDirectory(prefix="umd-kernels-")
    atexit.register(folder.cleanup)
    return folder.name


def _digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:40]


@functools.cache
def _shim_digest() -> str:
    files = sorted(path for folder in ("include", "runtime") for path in (_HERE / folder).iterdir())
    return _digest(*(path.read_text() for path in files))


@functools.cache
def _machine() -> str:
    """Returns what -march=native depends on: the cache may be shared by unlike machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return platform.machine() + next((line for line in lines if line.startswith(("flags", "Features"))), "")
