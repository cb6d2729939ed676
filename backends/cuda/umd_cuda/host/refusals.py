"""What the CPU does not run. It becomes a compile error of ours in its place, so an inactive #if is no matter."""

from __future__ import annotations

import re

from umd_cuda.host.tokens import Token

_PTX = "inline PTX (asm); keep a plain path beside it, under #ifndef __UMD_HOST__"
_TEXTURE = "textures and surfaces"
_GRID = "cooperative groups"
_WMMA = "tensor-core fragments (wmma)"
_LAUNCH = "a launch from inside the source (dynamic parallelism)"
_WORDS = {
    "asm": _PTX, "__asm": _PTX, "__asm__": _PTX, "cooperative_groups": _GRID, "nvcuda": _WMMA, "<<<": _LAUNCH,
    "cudaTextureObject_t": _TEXTURE, "cudaSurfaceObject_t": _TEXTURE,
}  # fmt: skip
_TEXTURE_CALL = re.compile(r"(tex|surf)(1D|2D|3D|Cubemap)\w*$")
_HEADERS = {
    "cooperative_groups": _GRID, "mma.h": _WMMA, "cub/": "the library CUB", "thrust/": "the library Thrust",
    "cuda/": "the library libcu++", "cupy/": "CuPy's own headers", "curand": "the library cuRAND",
    "cuda_fp8": "8-bit floats", "cuda_fp6": "6-bit floats", "cuda_fp4": "4-bit floats", "cuComplex": "complex numbers",
    "texture_": _TEXTURE, "surface_": _TEXTURE, "cuda_pipeline": "asynchronous copies",
}  # fmt: skip
_INCLUDE = re.compile(r"""#\s*include\s*[<"]([^>"]+)""")
_FOUND = re.compile(r"^(.*?):(\d+):(?:\d+:)? (?:fatal )?error: (?:#error )?\"?umd refuses: (.*?)\"?$", re.MULTILINE)


def rewrite(token: Token) -> str:
    """Returns the token's text, or a compile error in its place."""
    if token.kind == "directive":
        return _directive(token.text)
    if not token.is_code or token.kind == "string":
        return token.text
    reason = _WORDS.get(token.text)
    if reason is None and token.kind == "word" and _TEXTURE_CALL.match(token.text):
        reason = _TEXTURE
    return token.text if reason is None else _error(reason)


def found(diagnostics: str) -> list[tuple[int, str]]:
    """Returns line and reason of each of our errors among a compiler's messages."""
    return list(dict.fromkeys((int(line), reason) for _, line, reason in _FOUND.findall(diagnostics)))


def _error(reason: str) -> str:
    return f' _Pragma("GCC error \\"umd refuses: {reason}\\"") '


def _directive(text: str) -> str:
    include = _INCLUDE.match(text)
    if include:
        for start, reason in _HEADERS.items():
            if include.group(1).startswith(start):
                return f"#error umd refuses: {reason}, included from {include.group(1)}"
    if re.match(r"#\s*define\b", text):
        return re.sub(
            r"\b(asm|__asm__|__asm)\b(?=\s*(volatile|__volatile__)?\s*\()", _error(_PTX).replace("\\", r"\\"), text
        )
    return text
