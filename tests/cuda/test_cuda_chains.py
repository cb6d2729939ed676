"""Elementwise chains as CUDA C: a program's own text and the interpreter, compiled for the processor."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cuda import kernel_runs
from tests.cuda.kernel_runs import disagreements, has_compiler, launches_of, with_sizes
from tests.cuda.kernel_runs import run as run_launch
from tests.cuda.test_nvrtc import needs_nvrtc
from umd_core import dtypes
from umd_core.dtypes import DType
from umd_core.kernels import chain
from umd_core.testing.chains import random_program
from umd_core.testing.launches import Launch, Plan, build
from umd_cuda import chains, nvrtc, sources
from umd_cuda.sources import KernelSource, source_for

needs_compiler = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")


def own_text(launch: Launch) -> KernelSource:
    """Returns the source of a launch with its program in it."""
    source = source_for(launch.record)
    assert source is not None
    return source._replace(text=chains.of_program(source.text, launch.record, launch.parameters))


@needs_compiler
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16], ids=str)
def test_a_program_s_own_text_computes_what_the_interpreter_does(dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    row = with_sizes(chain.ROW, [1])
    for launch in launches_of(row, [dtype], seed=8, count=3):
        interpreted, _ = run_launch(launch)
        source = own_text(launch)
        monkeypatch.setattr(kernel_runs, "source_for", lambda *_, source=source: source)
        unrolled, _ = run_launch(launch)
        monkeypatch.undo()
        assert not disagreements(launch, interpreted)
        assert not disagreements(launch, unrolled)


def fixed(tokens: tuple[int, ...], dtype: DType = dtypes.float32) -> Launch:
    program = {"program": chain.padded(tokens), "constants": (0.5,) * chain.CONSTANTS}
    return build(np.random.default_rng(0), with_sizes(chain.ROW, [1]), [dtype], Plan(fields=program))


X, C, T = chain.OPERAND, chain.CONSTANT, chain.RESULT
GELU = (X + 1, C, chain.CODES["mul"], X + 1, chain.CODES["tanh"], X + 3, chain.CODES["add"], chain.CODES["mul"], T,
        chain.CODES["max"])  # fmt: skip


def test_a_program_s_own_text_is_a_statement_a_step() -> None:
    text = own_text(fixed(GELU)).text
    body = text[text.index("__device__ __forceinline__ T element(") :].partition("\n}\n")[0]
    assert body.splitlines() == [
        "__device__ __forceinline__ T element(T x1, T x3, const Parameters& args) {",
        "  const T_value v_x1 = (x1);",
        "  const T_value v_x3 = (x3);",
        "  const T_value t0 = v_x1 * ((T_value)args.constants[0]);",
        "  const T_value t1 = tanhf(v_x1);",
        "  const T_value t2 = t1 + v_x3;",
        "  const T_value t3 = t0 * t2;",
        "  const T_value t4 = t3 != t3 || t3 > t0 ? t3 : t0;",
        "  return ((float)(t4));",
    ]
    assert "M(x1) M(x3) M(out)" in text
    assert "switch (token)" not in text


@needs_nvrtc
@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=str)
def test_own_texts_compile_for_a_gpu_without_warnings(dtype: DType) -> None:
    random = np.random.default_rng(dtype.code)
    for _ in range(3):
        launch = build(random, chain.ROW, [dtype], Plan(fields=random_program(random)))
        found = nvrtc.compile(own_text(launch).text, "sm_90")
        assert (found.warnings, found.spilled) == ((), 0)


def test_a_device_compiles_so_many_programs_and_interprets_the_others() -> None:
    known = chains.Programs(2)
    launches = [fixed((X, chain.CODES[name])) for name in ("neg", "abs", "exp", "neg")]
    source = sources.source_for(launches[0].record)
    assert source is not None
    texts = [known.text_for(source.text, launch.record, launch.parameters) for launch in launches]
    assert [text == source.text for text in texts] == [False, False, True, False]
    assert texts[0] == texts[3] != texts[1]


def test_constants_are_no_part_of_the_text() -> None:
    one, other = fixed((X, C, chain.CODES["add"])), fixed((X, C, chain.CODES["add"]))
    values = other.record.unpack(other.parameters) | {"constants": (7.0,) * chain.CONSTANTS}
    values.pop("rank")
    changed = other.record.pack(**values)
    assert changed != one.parameters
    source = sources.source_for(one.record)
    assert source is not None
    assert chains.of_program(source.text, one.record, changed) == own_text(one).text
