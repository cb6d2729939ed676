"""CUDA C source → C++ for the host compiler: what CUDA has and C++ lacks is rewritten, the rest stays as it is.

Lines keep their numbers. Kernels and variables are listed in a table at the end of the unit; each entry is guarded by
a macro that stands beside the definition, so what an #if leaves out is left out of the table too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from umd_cuda.host import refusals
from umd_cuda.host.calls import Calls
from umd_cuda.host.shared import Shared
from umd_cuda.host.tokens import Token, matching, tokenise

_ORDERED = re.compile(r"atomic|__threadfence|volatile")


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A kernel as the source declares it. `fibers`: its threads synchronise, so they cannot run as a plain loop."""

    name: str
    parameters: tuple[str, ...]
    line: int
    template: bool
    fibers: bool


@dataclass(slots=True)
class Unit:
    """A translation unit for the host compiler."""

    text: str
    kernels: list[KernelSource] = field(default_factory=list)


@dataclass(slots=True)
class _Found:
    """Kernels and variables by the number of their guard; alternatives in an #if have one name and one guard."""

    kernels: dict[int, KernelSource] = field(default_factory=dict)
    variables: dict[int, str] = field(default_factory=dict)

    def add_kernel(self, kernel: KernelSource) -> int:
        number = next((n for n, known in self.kernels.items() if known.name == kernel.name), self._next())
        self.kernels.setdefault(number, kernel)
        return number

    def add_variable(self, variable: str) -> int:
        number = next((n for n, known in self.variables.items() if known == variable), self._next())
        self.variables[number] = variable
        return number

    def _next(self) -> int:
        return len(self.kernels) + len(self.variables)


def transform(source: str, name: str, *, checked: bool = False, expressions: Iterable[str] = ()) -> Unit:
    """Returns the translation unit of a CUDA source; `expressions` name further kernels (`scale<float>`)."""
    tokens = tokenise(source)
    calls = Calls(tokens)
    texts = [refusals.rewrite(token) for token in tokens]
    found = _find(tokens, texts, name, calls)
    for statement in Shared.statements(tokens):
        newlines = sum(token.text.count("\n") for token in tokens[statement.start : statement.end + 1])
        texts[statement.start : statement.end + 1] = [""] * (statement.end + 1 - statement.start)
        texts[statement.start] = statement.text(checked) + "\n" * newlines
    listed = [kernel for kernel in found.kernels.values() if not kernel.template]
    extra = [_expression(text, found, calls) for text in dict.fromkeys(expressions)]
    macros = any(token.kind == "directive" and "__global__" in token.text for token in tokens)
    extra = [kernel for kernel in extra if all(kernel.name != known.name for known in listed)]
    extra = [kernel for kernel in extra if kernel.line or macros]  # else there is no such kernel
    independent = (
        "#define UMD_INDEPENDENT\n" if any(_ORDERED.search(t.text) for t in tokens if t.kind != "comment") else ""
    )
    head = f'{independent}#include "umd_host.hpp"\n#line 1 "{_quoted(name)}"\n'
    return Unit(head + "".join(texts) + _exports(found, extra, checked), listed + extra)


def _quoted(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"')


def _find(tokens: Sequence[Token], texts: list[str], name: str, calls: Calls) -> _Found:
    """Returns kernels and variables, and puts a guard before each."""
    found = _Found()
    for index, scope in _scoped(tokens):
        word = tokens[index].text
        if word not in ("__global__", "__constant__", "__device__") or scope is None:
            continue
        kernel = _kernel(tokens, index, scope, calls) if word == "__global__" else None
        variable = None if word == "__global__" else _variable(tokens, index, scope)
        if kernel is not None:
            guard = found.add_kernel(kernel)
        elif variable is not None:
            guard = found.add_variable(variable)
        else:
            continue
        texts[index] = f'\n#define UMD_HAS_{guard}\n#line {tokens[index].line} "{_quoted(name)}"\n' + texts[index]
    return found


def _scoped(tokens: Sequence[Token]) -> Iterable[tuple[int, str | None]]:
    """Yields each word with the namespace it stands in (`a::b::`), or None inside functions and classes."""
    scopes: list[str | None] = []
    header: list[str] = []
    for index, token in enumerate(tokens):
        if not token.is_code:
            continue
        if token.text == "{":
            scopes.append(_scope_name(header))
            header = []
        elif token.text == "}":
            if scopes:
                scopes.pop()
            header = []
        elif token.text == ";":
            header = []
        else:
            header.append(token.text)
            if token.kind == "word":
                yield index, None if None in scopes else "".join(scope for scope in scopes if scope)
    return


def _scope_name(header: Sequence[str]) -> str | None:
    if "namespace" in header:
        return "".join(header[header.index("namespace") + 1 :]) + "::" if header[-1] != "namespace" else ""
    return "" if header == ["extern", '"C"'] else None


def _declarator(tokens: Sequence[Token], start: int) -> tuple[str, int]:
    """Returns the declared name after an attribute, and the index of the mark behind it."""
    last, index = "", start + 1
    while index < len(tokens):
        token = tokens[index]
        if token.text == "(":
            if last not in (
                "__launch_bounds__",
                "__align__",
                "alignas",
                "__attribute__",
                "__maxnreg__",
                "__cluster_dims__",
            ):
                return last, index
            index = matching(tokens, index)
        elif token.text == "<":
            index = matching(tokens, index)
        elif token.kind == "mark" and token.text in "[;={":
            return last, index
        elif token.kind == "word":
            last = token.text
        index += 1
    return "", index


def _kernel(tokens: Sequence[Token], start: int, scope: str, calls: Calls) -> KernelSource | None:
    name, mark = _declarator(tokens, start)
    if mark >= len(tokens) or tokens[mark].text != "(":
        return None
    end = matching(tokens, mark)
    after = next((token.text for token in tokens[end + 1 :] if token.is_code), ";")
    if after != "{":
        return None
    names, template = _parameter_names(tokens[mark + 1 : end]), _is_template(tokens, start)
    return KernelSource(scope + name, names, tokens[start].line, template, calls.synchronises(name))


def _is_template(tokens: Sequence[Token], start: int) -> bool:
    before = start
    while before > 0 and tokens[before - 1].text not in (";", "{", "}") and tokens[before - 1].kind != "directive":
        before -= 1
    return any(token.text == "template" for token in tokens[before:start])


def _parameter_names(tokens: Sequence[Token]) -> tuple[str, ...]:
    names: list[str] = []
    depth, last, default = 0, "", False
    for token in tokens:
        depth += (token.text in ("(", "[", "<", "{")) - (token.text in (")", "]", ">", "}"))
        if depth == 0 and token.text == ",":
            names.append(last)
            last, default = "", False
        elif depth == 0 and token.text == "=":
            default = True
        elif depth == 0 and token.kind == "word" and not default:
            last = token.text
    return (*names, last) if names or last else ()


def _variable(tokens: Sequence[Token], start: int, scope: str) -> str | None:
    name, mark = _declarator(tokens, start)
    if mark >= len(tokens) or tokens[mark].text == "(" or name in ("", "operator") or _is_template(tokens, start):
        return None
    words = {token.text for token in tokens[start:mark]}
    return None if words & {"__global__", "struct", "class", "using", "typedef", "__shared__"} else scope + name


def _expression(text: str, found: _Found, calls: Calls) -> KernelSource:
    base = text.split("<", 1)[0].strip().removeprefix("::")
    known = next((kernel for kernel in found.kernels.values() if kernel.name == base), None)
    fibers = calls.synchronises(*re.findall(r"\w+", text)) if known else calls.any_synchronises
    return KernelSource(text, known.parameters if known else (), known.line if known else 0, True, fibers)


def _exports(found: _Found, extra: Sequence[KernelSource], checked: bool) -> str:
    def entry(kernel: KernelSource) -> str:
        fibers = "true" if kernel.fibers or checked else "false"
        return f'UMD_KERNEL("{_quoted(kernel.name)}", {fibers}, {kernel.name})\n'

    lines = ['\n#line 1 "exports"\nUMD_EXPORT umd::Kernel umd_kernels[] = {\n']
    for guard, kernel in found.kernels.items():
        if not kernel.template:
            lines.append(f"#ifdef UMD_HAS_{guard}\n{entry(kernel)}#endif\n")
    lines += [entry(kernel) for kernel in extra]
    lines.append("umd::Kernel{}};\nUMD_EXPORT umd::Variable umd_variables[] = {\n")
    for guard, name in found.variables.items():
        lines.append(f'#ifdef UMD_HAS_{guard}\n{{"{name}", (void*)&{name}, sizeof({name})}},\n#endif\n')
    return "".join([*lines, "umd::Variable{}};\n"])
