"""CUDA C of elementwise chains: an interpreter of any program, or the text of one.

Both are made of the snippets of `umd_cuda.snippets`. The interpreter needs no compiler when a new program comes, a
program's own text runs as fast as memory allows; a device takes the first programs' text and interprets the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from umd_core.dtypes import DType
from umd_core.kernels import PRIMITIVES, KernelRecord, chain
from umd_cuda.snippets import HELPERS, TYPES, step_text, suffix_of

MOST_PROGRAMS = 256
"""Programs of which a GPU compiles the text; the others are interpreted. A processor interprets all: its compiler is
slow."""
_BEGIN, _END = "// the interpreter\n", "// what runs a program\n"


class Programs:
    """The programs whose text one device has compiled.

    Args:
        most: how many there may be.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._texts: set[str] = set()

    def text_for(self, text: str, record: KernelRecord, parameters: bytes) -> str:
        """Returns the source of a kernel for these parameters: a chain's with its program, while there is room."""
        if record.row.family != "chain":
            return text
        own = of_program(text, record, parameters)
        if own not in self._texts:
            if len(self._texts) >= self._most:
                return text
            self._texts.add(own)
        return own


def definition(record: KernelRecord) -> str:
    """Returns the text of `element` that interprets the program in the parameters, and the lists of operands."""
    return _BEGIN + _lists([f"x{i}" for i in range(chain.OPERANDS)]) + _interpreter(record.types[0]) + _END


def of_program(text: str, record: KernelRecord, parameters: bytes) -> str:
    """Returns the source of a chain with the interpreter replaced by the program in a parameter block."""
    first, count = record.index_of["program"]
    tokens = record.struct.unpack(parameters)[first : first + (count or 0)]
    before, _, rest = text.partition(_BEGIN)
    names = [f"x{number}" for number in chain.used_operands(tokens)]
    own = _lists(names) + _unrolled(record.types[0], names, chain.words(tokens))
    return before + own + rest.partition(_END)[2]


def _lists(names: Sequence[str]) -> str:
    inputs = " ".join(f"M({name})" for name in names)
    arguments = ", ".join((*(f"M({name})" for name in names), "args"))
    lists = {"OPERANDS(M)": f"{inputs} M(out)", "INPUTS(M)": inputs, "ARGUMENTS(M)": arguments}
    typedefs = "".join(f"typedef T {name}_t;\n" for name in (*names, "out"))
    return typedefs + "".join(f"#define {name} {text}\n" for name, text in lists.items())


def _helpers(dtype: DType, primitives: Sequence[str]) -> str:
    found = sorted({HELPERS.get((dtype.kind, name), "") for name in primitives})
    return "".join(found).replace("{f}", suffix_of(dtype))


def _unrolled(dtype: DType, names: Sequence[str], words: Sequence[str]) -> str:
    """Returns `element` as one statement a step."""
    lines = [f"const T_value v_{name} = {TYPES[dtype].load.format(name)};" for name in names]
    stack: list[str] = []
    steps = 0
    for word in words:
        if word not in PRIMITIVES:
            stack.append({"x": f"v_{word}", "t": word, "c": f"(T_value)args.constants[{word[1:]}]"}[word[0]])
            continue
        count = PRIMITIVES[word]
        arguments = [f"({text})" if text.startswith("(") else text for text in stack[-count:]]
        del stack[-count:]
        kind = "bool" if word in chain.TRUTHS else "T_value"
        lines.append(f"const {kind} t{steps} = {step_text(word, dtype, arguments)};")
        stack.append(f"t{steps}")
        steps += 1
    lines.append(f"return {TYPES[dtype].store.format(stack[0])};")
    parameters = ", ".join((*(f"T {name}" for name in names), "const Parameters& args"))
    body = "\n".join(f"  {line}" for line in lines)
    used = "" if any(word[0] == "c" and word not in PRIMITIVES for word in words) else "  (void)args;\n"
    return f"{_helpers(dtype, words)}\n__device__ __forceinline__ T element({parameters}) {{\n{used}{body}\n}}\n"


def _interpreter(dtype: DType) -> str:
    """Returns `element` as a loop over tokens: a case a primitive, truths as 1 and 0."""
    cases = []
    for name, code in chain.CODES.items():
        count = PRIMITIVES[name]
        arguments = ["a", "b", "c"][:count]
        if name == "select":
            arguments[0] = "(a != 0)"
        text = step_text(name, dtype, arguments)
        takes = "".join(
            f" {variable} = stack[depth - {count - at}];" for at, variable in enumerate(["a", "b", "c"][:count])
        )
        cases.append(f"      case {code}:{takes} depth -= {count}; r = (T_value)({text}); break;  // {name}\n")
    load = TYPES[dtype].load
    values = ", ".join(load.format(f"x{i}") for i in range(chain.OPERANDS))
    parameters = ", ".join((*(f"T x{i}" for i in range(chain.OPERANDS)), "const Parameters& args"))
    return f"""{_helpers(dtype, list(chain.CODES))}
__device__ __noinline__ T_value interpret(const T_value* x, const unsigned* program, const double* constants) {{
  T_value stack[{chain.DEPTH}], results[{chain.STEPS}], a, b, c, r = 0;
  int depth = 0, steps = 0;
  for (int at = 0; at < {chain.TOKENS} && program[at] != 0; ++at) {{
    const unsigned token = program[at], number = token & 0xff;
    if (token >= {chain.RESULT:#x}) {{
      stack[depth++] = results[number];
      continue;
    }}
    if (token >= {chain.OPERAND:#x}) {{
      stack[depth++] = token >= {chain.CONSTANT:#x} ? (T_value)constants[number] : x[number];
      continue;
    }}
    switch (token) {{
{"".join(cases)}    }}
    stack[depth++] = results[steps++] = r;
  }}
  return r;
}}

__device__ __forceinline__ T element({parameters}) {{
  const T_value values[{chain.OPERANDS}] = {{{values}}};
  return {TYPES[dtype].store.format("interpret(values, args.program, args.constants)")};
}}
"""
