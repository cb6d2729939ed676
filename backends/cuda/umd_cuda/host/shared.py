"""Declarations of workgroup memory (`__shared__`) as C++ that one workgroup at a time can share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from umd_cuda.host.tokens import Token, matching

_DROPPED = {"extern", "static", "__shared__", "__device__"}
_ALIGNMENTS = {"__align__", "alignas", "__attribute__"}


@dataclass(frozen=True, slots=True)
class Shared:
    """A statement that declares workgroup memory: the indices of its first and last token, and what it says."""

    start: int
    end: int
    alignment: str
    words: tuple[Token, ...]  # type and declarators, without storage words and alignment
    dynamic: bool

    @staticmethod
    def statements(tokens: Sequence[Token]) -> Iterator[Shared]:
        """Yields every declaration of workgroup memory in a source."""
        index = 0
        while index < len(tokens):
            if tokens[index].kind == "word" and tokens[index].text == "__shared__":
                statement = _statement(tokens, index)
                if all(_declares(part) for part in _split(statement.words)) and len(statement.words) > 1:
                    yield statement
                index = statement.end
            index += 1

    def text(self, checked: bool) -> str:
        """Returns the statement in C++; `checked` gives every variable a name and zones that nobody may touch."""
        if self.dynamic:
            return self._dynamic_text(checked)
        if not checked:
            return f"{self.alignment}static {_joined(self.words)};"
        parts = _split(self.words)
        base, first = _declarator(parts[0])
        return " ".join(_checked(_joined(base), part) for part in (first, *parts[1:]))

    def _dynamic_text(self, checked: bool) -> str:
        base, declarator = _declarator(self.words)
        bracket = next((i for i, token in enumerate(declarator) if token.text == "["), len(declarator))
        name, stars = declarator[bracket - 1].text, _joined(declarator[: bracket - 1])
        inner = _joined(declarator[matching(declarator, bracket) + 1 :]) if bracket < len(declarator) else ""
        kind = f"{_joined(base)} {stars}"
        pointer = f"{kind} (* const {name}){inner}" if inner else f"{kind}* const {name}"
        cast = f"{kind} (*){inner}" if inner else f"{kind}*"
        known = f'umd::SharedName umd_n_{name}(umd_rt_dynamic, 0, "{name}"); ' if checked else ""
        return f"{known}{pointer} = ({cast})umd_rt_dynamic;"


def _statement(tokens: Sequence[Token], index: int) -> Shared:
    start = index
    while start > 0 and tokens[start - 1].text not in (";", "{", "}", ":") and tokens[start - 1].kind != "directive":
        start -= 1
    while not tokens[start].is_code:
        start += 1
    end = index
    while end < len(tokens) - 1 and tokens[end].text != ";":
        end = matching(tokens, end) + 1 if tokens[end].text in ("(", "[", "{") else end + 1
    words: list[Token] = []
    alignment, dynamic, position = "", False, start
    while position < end:
        token = tokens[position]
        if token.text in _ALIGNMENTS:
            while tokens[position].text != "(":
                position += 1
            close = matching(tokens, position)
            alignment += token.text + "".join(part.text for part in tokens[position : close + 1]) + " "
            position = close
        elif token.is_code:
            dynamic = dynamic or token.text == "extern"
            if token.text not in _DROPPED:
                words.append(token)
        position += 1
    return Shared(start, end, alignment, tuple(words), dynamic)


def _split(words: Sequence[Token]) -> list[Sequence[Token]]:
    """Returns the declarators, separated at commas outside brackets; the type is still before the first."""
    parts, depth, begin = [], 0, 0
    for index, token in enumerate(words):
        depth += (token.text in ("(", "[", "{", "<")) - (token.text in (")", "]", "}", ">"))
        if token.text == "," and depth == 0:
            parts.append(words[begin:index])
            begin = index + 1
    return [*parts, words[begin:]]


def _declares(words: Sequence[Token]) -> bool:
    """Whether a name stands at the end or before the first bracket: anything else is the compiler's to refuse."""
    bracket = next((i for i, token in enumerate(words) if token.text == "["), len(words))
    return bracket > 0 and words[bracket - 1].kind == "word"


def _declarator(words: Sequence[Token]) -> tuple[Sequence[Token], Sequence[Token]]:
    """Returns the type and the declarator of a declaration with one variable."""
    depth, bracket = 0, len(words)
    for index, token in enumerate(words):
        if token.text == "[" and depth == 0:
            bracket = index
            break
        depth += (token.text in ("<", "(")) - (token.text in (">", ")"))
    start = bracket - 1
    while start > 0 and words[start - 1].text in ("*", "&", "__restrict__"):
        start -= 1
    return words[:start], words[start:]


def _checked(base: str, declarator: Sequence[Token]) -> str:
    bracket = next((i for i, token in enumerate(declarator) if token.text == "["), len(declarator))
    name = declarator[bracket - 1].text
    kind, store = f"umd_t_{name}", f"umd_s_{name}"
    return (
        f"typedef {base} {_joined(declarator[: bracket - 1])}{kind}{_joined(declarator[bracket:])}; "
        f"static umd::Shared<{kind}> {store}; "
        f'static umd::SharedName umd_n_{name}((void*)&{store}.value, sizeof({store}.value), "{name}"); '
        f"{kind}& {name} = {store}.value;"
    )


def _joined(words: Sequence[Token]) -> str:
    return " ".join(token.text for token in words)
