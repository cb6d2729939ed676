"""`umd run`: execute a model that is in a file."""

from __future__ import annotations

import importlib.util
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from umd_cli.exits import Exit
from umd_cli.models import Dims, Runnable, Shapes, filled, is_onnx, opened_model, shapes, sizes
from umd_cli.output import Json, note, show, table
from umd_cli.progress import Bar, Steps, shown

if TYPE_CHECKING:
    from umd_core.ir import Array

PEERS = ("onnxruntime",)


def run(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The model: ONNX, or saved by umd.")],
    inputs: Annotated[list[str] | None, typer.Option("--input", help="An input: FILE.npy, or NAME=FILE.npy.")] = None,
    random: Annotated[bool, typer.Option("--random", help="Random inputs for those that are not given.")] = False,
    dim: Dims = None,
    shape: Shapes = None,
    device: Annotated[str, typer.Option("--device", help="Where to run; the first device by default.")] = "",
    output: Annotated[Path | None, typer.Option("--output", help="Folder for the results, one .npy each.")] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="How often; the median time is told.")] = 1,
    compare: Annotated[str, typer.Option("--compare", help="onnxruntime: run it there too, and compare.")] = "",
    rtol: Annotated[float, typer.Option("--rtol", min=0, help="Relative difference that passes.")] = 1e-3,
    atol: Annotated[float, typer.Option("--atol", min=0, help="Absolute difference that passes.")] = 1e-5,
    json: Json = False,
) -> None:
    """Run a model file with new inputs, without the framework that it is from. Exits with 1 if a comparison differs."""
    if compare and (compare not in PEERS or not is_onnx(file)):
        raise typer.BadParameter(f"--compare {compare}: ONNX models are compared, with {', '.join(PEERS)}")
    if compare and importlib.util.find_spec(compare) is None:
        raise typer.BadParameter(f"--compare {compare}: it is not installed: pip install {compare}")
    steps = Steps()
    with steps.step("load"):
        model = opened_model(file, device, shapes(shape or []), sizes(dim or []))
    try:
        arrays = filled(model, inputs or [], sizes(dim or []), random=random)
        results, median = _run(model, arrays, repeat, steps, again=repeat > 1 or bool(compare))
        name = model.device.name
    finally:
        model.close()
    if output is not None:
        _write(results, output)
    found: dict[str, Any] = {
        "device": name,
        "milliseconds": median,
        "steps": steps.milliseconds,
        "outputs": {n: _described(value, numbers=json and output is None) for n, value in results.items()},
    }
    if compare:
        found["compared"] = _compared(file, arrays, results, repeat, rtol, atol)
    show(found, json, lambda: _render(found))
    if compare and not all(row["within"] for row in found["compared"]["outputs"].values()):
        note(f"results differ from {compare}'s beyond rtol {rtol:g}, atol {atol:g}")
        raise typer.Exit(Exit.FOUND)


def _run(
    model: Runnable, arrays: Mapping[str, Array], repeat: int, steps: Steps, *, again: bool
) -> tuple[dict[str, Any], float]:
    """Returns the outputs of the first run, and its milliseconds or, when run again, the median of those after it."""
    with steps.step("translate"):
        model.prepare(arrays)
    with steps.step("upload"):
        model.upload(arrays)
    with steps.step("first run"):
        results = model.run(arrays)
    if not again:
        return results, steps.milliseconds["first run"]
    with steps.step("next runs", repeat) as bar:
        median = _median(lambda: model.run(arrays), repeat, bar)
    return results, median


def _median(work: Callable[[], object], repeat: int, bar: Bar) -> float:
    """Returns the median milliseconds of a call."""
    taken: list[float] = []
    for number in range(repeat):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
        bar.advance(f"{number + 1} of {repeat}")
    return round(sorted(taken)[repeat // 2] * 1e3, 3)


def _compared(
    file: Path, arrays: Mapping[str, Array], results: Mapping[str, Any], repeat: int, rtol: float, atol: float
) -> dict[str, Any]:
    """Returns how far onnxruntime's results are, and the median of its times on one thread.

    Raises:
        UnsupportedError: onnxruntime cannot run the model.
    """
    import onnxruntime

    from umd_core.errors import UnsupportedError

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        with shown(PEERS[0]):
            values: Sequence[Any] = session.run(None, dict(arrays))
    except Exception as error:  # its errors have no other base: a model that only umd runs is no fault of umd
        raise UnsupportedError(f"{PEERS[0]} does not run this model: {error}") from error
    with shown(PEERS[0], repeat) as bar:
        median = _median(lambda: session.run(None, dict(arrays)), repeat, bar)
    wanted = dict(zip((output.name for output in session.get_outputs()), values, strict=True))
    return {
        "with": "onnxruntime, one thread",
        "milliseconds": median,
        "outputs": {name: _difference(results[name], value, rtol, atol) for name, value in wanted.items()},
    }


def _difference(result: Any, wanted: Any, rtol: float, atol: float) -> dict[str, Any]:
    """Returns the largest absolute and relative difference, and whether all is within the tolerance.

    The relative one is that of values above `atol`: nearer to zero it says nothing. NaN and infinities have neither,
    but have to be where they should.
    """
    import numpy as np

    if not isinstance(wanted, np.ndarray) or not isinstance(result, np.ndarray) or wanted.dtype.kind not in "fiub":
        return {"within": type(result) is type(wanted) and bool(np.all(np.asarray(result) == np.asarray(wanted)))}
    if result.shape != wanted.shape:
        return {"within": False, "shape": list(wanted.shape)}
    found, right = result.astype("f8"), wanted.astype("f8")
    finite = np.isfinite(found) & np.isfinite(right)
    off, size = np.abs(found[finite] - right[finite]), np.abs(right[finite])
    relative = off[size > atol] / size[size > atol]
    return {
        "within": bool(np.allclose(found, right, rtol, atol, equal_nan=True)),
        "absolute": float(off.max(initial=0)),
        "relative": float(relative.max(initial=0)),
    }


def _write(results: Mapping[str, Any], folder: Path) -> None:
    """Writes results. Their names are the model's: what is no letter, digit, dot or dash does not get into a path."""
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    for name, value in results.items():
        safe = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
        items = (
            {f"{safe}.{place}": item for place, item in enumerate(value)} if isinstance(value, list) else {safe: value}
        )
        for own, array in items.items():
            if array.dtype.kind == "O":
                raise typer.BadParameter(f"--output: {name} holds texts, which .npy cannot")
            known = array if array.dtype.kind in "fiub" else array.astype(np.float32)  # .npy knows no bfloat16
            np.save(folder / f"{own}.npy", known, allow_pickle=False)


def _described(value: Any, *, numbers: bool) -> dict[str, Any]:
    import numpy as np

    if not isinstance(value, np.ndarray):
        return {"dtype": "sequence" if isinstance(value, list) else "none", "shape": [len(value or [])]}
    described: dict[str, Any] = {"dtype": str(value.dtype), "shape": list(value.shape)}
    if value.size and value.dtype.kind not in "bOSU":
        wide = value.astype("float64")
        with np.errstate(invalid="ignore"):  # the mean of both infinities is NaN, which says it
            described |= {"min": float(wide.min()), "mean": float(wide.mean()), "max": float(wide.max())}
    if numbers:
        described["values"] = value.tolist()
    return described


def _render(found: dict[str, Any]) -> list[Any]:
    compared = found.get("compared", {"outputs": {}})
    rows = [
        (
            name,
            f"{o['dtype']}[{','.join(map(str, o['shape']))}]",
            *(f"{o[k]:.6g}" if k in o else "" for k in ("min", "mean", "max")),
            *(
                f"{row[k]:.3g}" if k in row else ""
                for row in [compared["outputs"].get(name, {})]
                for k in ("absolute", "relative")
            ),
        )
        for name, o in found["outputs"].items()
    ]
    steps = ", ".join(f"{name} {ms:g} ms" for name, ms in found["steps"].items())
    beside = f"  beside {compared['milliseconds']} ms of {compared['with']}" if "with" in compared else ""
    headings = ("output", "", ">min", ">mean", ">max", *((">max difference", ">relative") if beside else ("", "")))
    return [f"{found['device']}  {found['milliseconds']} ms{beside}  ({steps})", table(headings, rows)]
