"""`umd cuda …`: commands about CUDA C kernels on a CPU."""

from __future__ import annotations

import dataclasses
import json as json_module
import re
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from umd_core import dtypes
from umd_core.errors import AttributeValueError
from umd_cuda.host.checking import Report
from umd_cuda.host.module import HostModule
from umd_cuda.host.raw import RawModule

app: typer.Typer = typer.Typer(
    help="CUDA C kernels on this machine's CPU.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_ARGUMENT = re.compile(r"(?P<type>[a-z]\w*)(?:\[(?P<shape>[\d,x ]*)\])?(?:=(?P<value>.*))?$")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)$")
_FORM = "f32[1024], f32[8,300]=out, i32[64]=0..9, f32[16]=0, f32[16]=data.npy, i32=300 or 300"


@app.callback()
def options() -> None:
    """Keeps `check` a subcommand."""


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A CUDA C source.", exists=True, dir_okay=False)],
    grid: Annotated[str, typer.Option(help="Blocks: 8 or 8,4 or 8,4,2.")] = "1",
    block: Annotated[str, typer.Option(help="Threads in a block: 256 or 16,16.")] = "1",
    arg: Annotated[list[str] | None, typer.Option("--arg", help=f"An argument, in order: {_FORM}.")] = None,
    kernel: Annotated[str, typer.Option(help="The kernel, where the source has several; scale<float> works.")] = "",
    shared: Annotated[int, typer.Option(help="Dynamic workgroup memory in bytes.")] = 0,
    orders: Annotated[int, typer.Option(help="Random thread orders to compare.", min=0)] = 3,
    option: Annotated[list[str] | None, typer.Option("--option", help="An option of NVRTC: -DN=4, -Iinclude.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Runs a kernel on the CPU and prints what is wrong with it; the exit code is 1 when anything is."""
    settings = (*(option or ()), f"-I{file.parent}")
    expressions = (kernel,) if kernel else ()
    module = RawModule(code=file.read_text(), options=settings, name_expressions=expressions, name=file.name)
    name = kernel or _only_kernel(module.compile(checked=True))
    values, outputs = read_arguments(arg or [])
    report = module.get_function(name).check(
        read_dimensions(grid), read_dimensions(block), values, shared_mem=shared, outputs=outputs, orders=orders
    )
    typer.echo(json_module.dumps(as_json(report), indent=2) if json else str(report))
    raise typer.Exit(0 if report else 1)


def _only_kernel(module: HostModule) -> str:
    if len(module.kernels) != 1:
        wanted = ", ".join(module.kernels) or "a source with a kernel"
        raise AttributeValueError("umd cuda check", "--kernel", "the source has not just one kernel", wanted=wanted)
    return module.kernels[0]


def read_dimensions(text: str) -> tuple[int, ...]:
    """Returns the numbers of `8`, `8,4` or `8x4`."""
    parts = re.split(r"[,x]", text)
    if not all(part.strip().isdigit() for part in parts) or len(parts) > 3:
        raise AttributeValueError("umd cuda check", "--grid/--block", "not 1 to 3 numbers", value=text, wanted="8,4")
    return tuple(int(part) for part in parts)


def read_arguments(texts: list[str]) -> tuple[list[Any], list[int]]:
    """Returns the values of `--arg` in order, and the positions of those that are outputs."""
    random = np.random.default_rng(0)
    values = [_argument(text, random) for text in texts]
    return values, [i for i, text in enumerate(texts) if text.endswith("=out")]


def _argument(text: str, random: np.random.Generator) -> Any:
    if re.fullmatch(r"[-+]?\d+", text):
        return int(text)
    if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text):
        return float(text)
    match = _ARGUMENT.match(text)
    if match is None:
        raise _bad(text)
    kind = dtypes.dtype(match["type"]).numpy
    if match["shape"] is None:
        if not match["value"]:
            raise _bad(text)
        return np.asarray(float(match["value"]) if kind.kind not in "iu" else int(match["value"])).astype(kind)[()]
    shape = tuple(int(part) for part in re.split(r"[,x]", match["shape"].replace(" ", "")) if part)
    return _array(text, kind, shape, match["value"], random)


def _array(
    text: str, kind: np.dtype[Any], shape: tuple[int, ...], value: str | None, random: np.random.Generator
) -> npt.NDArray[Any]:
    if value is None:
        whole = kind.kind in "iub"
        return (random.integers(0, 2, shape) if whole else random.standard_normal(shape)).astype(kind)
    if value == "out":
        return np.zeros(shape, kind)
    span = _RANGE.match(value)
    if span:
        return random.integers(int(span[1]), int(span[2]) + 1, shape).astype(kind)
    if value.endswith(".npy"):
        return np.ascontiguousarray(np.load(value).astype(kind, casting="safe").reshape(shape))
    try:
        return np.full(shape, float(value)).astype(kind)
    except ValueError as error:
        raise _bad(text) from error


def _bad(text: str) -> AttributeValueError:
    return AttributeValueError("umd cuda check", "--arg", "not an argument", value=text, wanted=_FORM)


def as_json(report: Report) -> dict[str, Any]:
    """Returns a report as plain data."""
    findings = [{**dataclasses.asdict(finding), "kind": str(finding.kind)} for finding in report.findings]
    return {"kernel": report.kernel, "source": report.source, "orders": report.orders, "findings": findings}
