"""`umd run`: execute a model that was saved to a file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from umd_cli.output import Json, show, table

if TYPE_CHECKING:
    from umd_core.ir import Array
    from umd_model import Model


def run(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The model.")],
    inputs: Annotated[list[str] | None, typer.Option("--input", help="An input: FILE.npy, or NAME=FILE.npy.")] = None,
    random: Annotated[bool, typer.Option("--random", help="Random inputs for those that are not given.")] = False,
    dim: Annotated[
        list[str] | None, typer.Option("--dim", help="NAME=SIZE of an open size, for random inputs.")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="Where to run; the first device by default.")] = "",
    output: Annotated[Path | None, typer.Option("--output", help="Folder for the results, one .npy each.")] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="How often; the median time is told.")] = 1,
    json: Json = False,
) -> None:
    """Run a model file with new inputs, without the framework that it is from."""
    from umd_model import Session, load

    model = load(file)
    arrays = _inputs(model, inputs or [], random, dict(_pair(text, "--dim", int) for text in dim or []))
    with Session(model, device) as session:
        seconds = []
        for _ in range(repeat):
            start = time.perf_counter()
            results = session.run(arrays)
            seconds.append(time.perf_counter() - start)
        name = session.device.name
    if output is not None:
        _write(results, output)
    found = {
        "device": name,
        "milliseconds": round(sorted(seconds)[len(seconds) // 2] * 1e3, 3),
        "outputs": {n: _described(array, numbers=json and output is None) for n, array in results.items()},
    }
    show(found, json, lambda: _render(found))


def _inputs(model: Model, given: list[str], random: bool, sizes: dict[str, int]) -> dict[str, Array]:
    """Returns the inputs by name."""
    import numpy as np

    wanted = list(model.inputs)
    arrays: dict[str, Array] = {}
    for text in given:
        name, _, path = text.rpartition("=")
        rest = [w for w in wanted if w not in arrays]
        if not name and not rest:
            raise typer.BadParameter(f"--input {text}: the model takes {len(wanted)} inputs")
        arrays[name or rest[0]] = np.load(path, allow_pickle=False)
    missing = [name for name in wanted if name not in arrays]
    if missing and not random:
        named = " ".join(f"--input {name}=FILE.npy" for name in missing)
        raise typer.BadParameter(f"inputs are missing: {named}, or --random")
    chance = np.random.default_rng(0)
    for name in missing:
        arrays[name] = _random(model, name, sizes, chance)
    return arrays


def _random(model: Model, name: str, sizes: dict[str, int], chance: Any) -> Array:
    import numpy as np

    desc, axes = model.inputs[name], model.open_axes(name)
    shape = [sizes.get(axes.get(axis, ""), extent) for axis, extent in enumerate(desc.shape)]
    if desc.dtype.is_float:
        return np.asarray(chance.standard_normal(shape)).astype(desc.dtype.numpy)
    return np.asarray(chance.integers(0, 2, shape)).astype(desc.dtype.numpy)


def _pair(text: str, option: str, kind: type[int]) -> tuple[str, int]:
    name, _, value = text.partition("=")
    try:
        return name, kind(value)
    except ValueError:
        raise typer.BadParameter(f"{option} {text}: write it as NAME=SIZE") from None


def _write(results: dict[str, Array], folder: Path) -> None:
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    for name, array in results.items():
        known = array if array.dtype.kind in "fiub" else array.astype(np.float32)  # .npy knows no bfloat16
        np.save(folder / f"{name}.npy", known, allow_pickle=False)


def _described(array: Array, *, numbers: bool) -> dict[str, Any]:
    described: dict[str, Any] = {"dtype": str(array.dtype), "shape": list(array.shape)}
    if array.size and array.dtype.kind != "b":
        wide = array.astype("float64")
        described |= {"min": float(wide.min()), "mean": float(wide.mean()), "max": float(wide.max())}
    if numbers:
        described["values"] = array.tolist()
    return described


def _render(found: dict[str, Any]) -> list[Any]:
    rows = [
        (
            name,
            f"{o['dtype']}[{','.join(map(str, o['shape']))}]",
            *(f"{o[k]:.6g}" if k in o else "" for k in ("min", "mean", "max")),
        )
        for name, o in found["outputs"].items()
    ]
    return [
        f"{found['device']}  {found['milliseconds']} ms",
        table(("output", "", ">min", ">mean", ">max"), rows),
    ]
