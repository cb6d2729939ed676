"""The errors of umd_cuda.host beyond umd_core's: sources that do not compile, and launches that fail."""

from __future__ import annotations

from collections.abc import Sequence

from umd_core.errors import Status, UmdError, UnsupportedError


class NoCompilerError(UnsupportedError):
    """No C++ compiler was found. Facts: `tried` (commands), `reason`."""

    tried: Sequence[str]

    def __init__(self, tried: Sequence[str], chosen: str = "") -> None:
        source = f"UMD_CXX is {chosen!r}, which does not work or is too old" if chosen else f"tried {', '.join(tried)}"
        super().__init__(
            f"no C++ compiler for CUDA kernels on a CPU: {source}; "
            f"{'unset it or ' if chosen else ''}install g++ 12 or clang 15 or newer, or the Python package ziglang"
        )
        self.tried = tuple(tried)


class RefusedSourceError(UnsupportedError):
    """The source uses what the CPU cannot run. Facts: `source`, `refusals` (line and construct each), `line`."""

    source: str
    line: int
    refusals: Sequence[tuple[int, str]]

    def __init__(self, source: str, refusals: Sequence[tuple[int, str]]) -> None:
        listed = "; ".join(f"{source}:{line}: {construct}" for line, construct in refusals)
        super().__init__(f"not covered on a CPU: {listed}")
        self.source, self.line, self.refusals = source, refusals[0][0], tuple(refusals)


class CompileError(UmdError):
    """The C++ compiler refused the source. Facts: `source`, `line` (0: unknown), `diagnostics`."""

    status = Status.UNSUPPORTED
    source: str
    line: int
    diagnostics: str

    def __init__(self, source: str, line: int, diagnostics: str) -> None:
        where = f"{source}:{line}" if line else source
        super().__init__(f"{where} does not compile:\n{diagnostics}", source=source, line=line, diagnostics=diagnostics)


class UnknownKernelError(UmdError):
    """The module has no such kernel. Facts: `kernel`, `known`."""

    status = Status.UNSUPPORTED
    kernel: str
    known: Sequence[str]

    def __init__(self, kernel: str, known: Sequence[str]) -> None:
        has = f"it has {', '.join(known)}" if known else "it has none"
        super().__init__(f"the source has no kernel {kernel!r}; {has}", kernel=kernel, known=tuple(known))


class LaunchError(UmdError):
    """A kernel did not run to its end: a barrier or warp operation that cannot be met. Facts: `kernel`, `reason`."""

    kernel: str
    reason: str

    def __init__(self, kernel: str, reason: str) -> None:
        super().__init__(f"kernel {kernel}: {reason}", kernel=kernel, reason=reason)


class CacheError(UmdError):
    """There is no room to compile in. Facts: `folder`, `reason`."""

    status = Status.LIMIT
    folder: str
    reason: str

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(
            f"cannot compile in {folder}: {reason}; free some space or set TMPDIR to another folder",
            folder=folder,
            reason=reason,
        )
