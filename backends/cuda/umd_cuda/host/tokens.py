"""CUDA C++ source as tokens, so that comments, strings and line numbers survive every change."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_PATTERN = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)
    | (?P<directive>\#(?:\\\r?\n|/\*.*?\*/|[^\n])*)
    | (?P<string>(?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)"
        |(?:u8|[uUL])?"(?:\\.|[^"\\\n])*"|(?:u8|[uUL])?'(?:\\.|[^'\\\n])*')
    | (?P<number>\.?[0-9](?:[eEpP][+-]|'(?=\w)|[\w.])*)
    | (?P<word>[^\W\d]\w*)
    | (?P<mark><<<|>>>|::|.)
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of source. `kind` is space, comment, directive, string, number, word or mark; `line` is its first."""

    kind: str
    text: str
    line: int

    @property
    def is_code(self) -> bool:
        """Whether the compiler sees it as a token."""
        return self.kind in ("string", "number", "word", "mark")


def tokenise(source: str) -> list[Token]:
    """Returns the tokens of a source; their texts joined are the source."""
    tokens: list[Token] = []
    line, position, fresh = 1, 0, True  # fresh: nothing but space and comments since the line began
    while position < len(source):
        match = _PATTERN.match(source, position)
        text = match.group() if match else source[position]
        kind = match.lastgroup if match and match.lastgroup else "mark"
        if kind == "delimiter":
            kind = "string"
        if kind == "directive" and not fresh:
            kind, text = "mark", "#"
        tokens.append(Token(kind, text, line))
        position += len(text)
        line += text.count("\n")
        fresh = "\n" in text or (fresh and kind in ("space", "comment"))
    return tokens


def matching(tokens: Sequence[Token], start: int) -> int:
    """Returns the index of the bracket that closes the one at `start`, or the last index if none does."""
    opening = tokens[start].text
    closing = {"(": ")", "[": "]", "{": "}", "<": ">"}[opening]
    depth = 0
    for index in range(start, len(tokens)):
        text = tokens[index].text
        depth += (text == opening) - (text == closing)
        if depth == 0:
            return index
    return len(tokens) - 1
