"""The host's C++ compiler, and the cache of what it compiled."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from umd_cuda.host import refusals
from umd_cuda.host.errors import CacheError, CompileError, NoCompilerError, RefusedSourceError

_HERE = Path(__file__).parent
_COMMON = ("-fPIC", "-fvisibility=hidden", "-w", "-fno-strict-aliasing", "-march=native")
_FAST = ("-O3", "-fno-math-errno", "-fno-trapping-math")
_CHECKED = ("-O1", "-fno-threadsafe-statics", "-gdwarf-4", "-fno-omit-frame-pointer", "-DUMD_CHECKED")
_IGNORED = re.compile(
    r"-arch|--gpu-architecture|-gencode|--use_fast_math|-use_fast_math|--ftz|-ftz|--prec|-prec|-lineinfo|--generate-line"
    r"|--maxrregcount|-maxrregcount|--device|-default-device|--extra-device|--restrict|-G$|--relocatable|-dc$|-rdc|-w$"
)
_SPELLED = (("--std=", "-std="), ("--define-macro=", "-D"), ("--include-path=", "-I"), ("--undefine-macro=", "-U"))


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler: its command and what `--version` says."""

    command: tuple[str, ...]
    version: str


@functools.cache
def find_compiler(path: str | None = None) -> Compiler:
    """Returns the first of g++, clang++ and zig that answers; `path` is searched instead of PATH.

    Raises:
        NoCompilerError: none does.
    """
    candidates: list[tuple[str, ...]] = []
    for name in ("g++", "clang++"):
        found = shutil.which(name, path=path)
        if found:
            candidates.append((found,))
    if path is None and importlib.util.find_spec("ziglang") is not None:
        candidates.append((sys.executable, "-m", "ziglang", "c++"))
    for command in candidates:
        answer = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            return Compiler(command, answer.stdout.splitlines()[0] if answer.stdout else "")
    raise NoCompilerError(("g++", "clang++", "python -m ziglang c++"))


def cache_folder() -> Path:
    """Returns the folder of compiled code: UMD_CUDA_CACHE, or umd under the user's cache folder."""
    chosen = os.environ.get("UMD_CUDA_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "umd"


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
        CacheError: the library could not be written.
        NoCompilerError: there is no compiler.
    """
    compiler = find_compiler()
    flags = (*_COMMON, *(_CHECKED if checked else _FAST), *host_options(options))
    key = _digest(unit, name, flags, compiler.command, compiler.version, _shim_digest(), _machine())
    library = cache_folder() / key[:2] / f"{key}.so"
    if _intact(library):
        return library
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
        _keep(result, library)
    return library


def _runtime_object(compiler: Compiler, part: str, checked: bool) -> Path:
    source = _HERE / "runtime" / f"{part}.cpp"
    flags = ("-std=c++17", "-O2", *_COMMON, *(("-g", "-DUMD_CHECKED") if checked else ()))
    key = _digest(part, flags, compiler.command, compiler.version, _shim_digest(), _machine())
    kept = cache_folder() / key[:2] / f"{key}.o"
    if not _intact(kept):
        with _scratch() as folder:
            result = Path(folder, "runtime.o")
            _compile(compiler, (*flags, "-c", str(source), "-o", str(result)), part)
            _keep(result, kept)
    return kept


def _compile(compiler: Compiler, arguments: Sequence[str], name: str) -> None:
    answer = subprocess.run([*compiler.command, *arguments], capture_output=True, text=True, check=False)
    if answer.returncode == 0:
        return
    refused = refusals.found(answer.stderr)
    if refused:
        raise RefusedSourceError(name, refused)
    first = re.search(rf"^{re.escape(name)}:(\d+):.*error:", answer.stderr, re.MULTILINE)
    if "No space left" in answer.stderr:
        raise CacheError(str(cache_folder()), "no space left on the device")
    raise CompileError(name, int(first.group(1)) if first else 0, answer.stderr.strip()[:4000])


def _scratch() -> tempfile.TemporaryDirectory[str]:
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix="build-", dir=folder)
    except OSError as error:
        raise CacheError(str(folder), error.strerror or str(error)) from error


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise CacheError(str(cache_folder()), error.strerror or str(error)) from error


def _keep(result: Path, kept: Path) -> None:
    """Moves a compiled file into the cache in one step, its digest behind its last byte (loaders do not look there)."""
    data = result.read_bytes()
    _write(result, data + _seal(data))
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        os.replace(result, kept)
    except OSError as error:
        raise CacheError(str(cache_folder()), error.strerror or str(error)) from error


def _seal(data: bytes) -> bytes:
    return b"umd:" + hashlib.sha256(data).digest()


def _intact(kept: Path) -> bool:
    """Whether a cached file is there whole: loading a torn library would end the process."""
    try:
        data = kept.read_bytes()
    except OSError:
        return False
    return len(data) > 36 and _seal(data[:-36]) == data[-36:]


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
