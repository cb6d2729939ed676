"""Which functions of a source reach a barrier, a warp operation or workgroup memory, however indirectly."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from umd_cuda.host.tokens import Token

_SYNCHRONISES = re.compile(
    r"__syncthreads|__syncwarp|__shfl|__ballot|__any|__all|__activemask|__match|__reduce_|__shared__|__trap$|assert$"
)
_KEYWORDS = {
    "if", "for", "while", "switch", "sizeof", "return", "alignas", "__launch_bounds__", "__align__", "decltype",
}  # fmt: skip
_OWN_HEADER = re.compile(r'#\s*include\s*"(?!cuda|device_|math_|vector_|std)')


@dataclass(slots=True)
class _Chunk:
    declared: set[str] = field(default_factory=set)
    words: set[str] = field(default_factory=set)


class Calls:
    """The definitions of a source and the names that each uses: an over-estimate of who calls whom."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._chunks = _chunks(tokens)
        reached = {name for chunk in self._chunks for name in chunk.words if _SYNCHRONISES.match(name)}
        self.any_synchronises: bool = bool(reached)
        self._unseen = any(token.kind == "directive" and _OWN_HEADER.match(token.text) for token in tokens)
        grown = True
        while grown:
            before = len(reached)
            for chunk in self._chunks:
                if chunk.words & reached:
                    reached |= chunk.declared
            grown = len(reached) > before
        self._reached = reached

    def synchronises(self, *names: str) -> bool:
        """Whether a function of one of these names may synchronise threads, or calls one that may."""
        return self._unseen or any(name in self._reached for name in names)


def _chunks(tokens: Sequence[Token]) -> list[_Chunk]:
    chunks, chunk = [], _Chunk()
    depth, header, last = 0, [""], ""
    transparent: list[bool] = []
    for token in tokens:
        if token.kind == "directive":
            chunks.append(_macro(token.text))
        if not token.is_code:
            continue
        text = token.text
        if token.kind == "word":
            chunk.words.add(text)
            if depth == 0 and last in ("struct", "class", "union"):
                chunk.declared.add(text)
        elif depth == 0 and text in ("(", "=") and last not in _KEYWORDS:
            chunk.declared.add(last)
        elif text == "{":
            transparent.append(depth == 0 and ("namespace" in header or header[-2:] == ["extern", '"C"']))
            depth += not transparent[-1]
        elif text == "}" and transparent:
            depth -= not transparent.pop()
        if depth == 0 and text in (";", "}", "{"):
            chunks.append(chunk)
            chunk, header = _Chunk(), [""]
        elif depth == 0:
            header.append(text)
        last = text
    return [*chunks, chunk]


def _macro(directive: str) -> _Chunk:
    words = re.findall(r"[^\W\d]\w*", directive)
    if len(words) < 2 or words[0] != "define":
        return _Chunk()
    return _Chunk({words[1]}, set(words[2:]))
