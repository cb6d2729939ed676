"""Model files of any kind as one thing that takes and gives arrays by name."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

if TYPE_CHECKING:
    from umd_core.commands import CommandBuffer
    from umd_core.device import Device
    from umd_core.ir import Array

Dims = Annotated[list[str] | None, typer.Option("--dim", help="NAME=SIZE of an open size; 1 without.")]
Shapes = Annotated[
    list[str] | None, typer.Option("--shape", help="NAME=1,3,224,224: an input's shape, whatever the model states.")
]
Shape = list[int | str | None]


@dataclass(frozen=True, slots=True)
class Takes:
    """An input: its NumPy element type, and its shape; names and None are open."""

    dtype: Any
    shape: Shape


class Runnable(Protocol):
    """A model on a device.

    Attributes:
        inputs: by name.
        sizes: what named extents are where nothing else is said.
        device: where it runs.
    """

    inputs: dict[str, Takes]
    sizes: dict[str, int]
    device: Device

    def prepare(self, arrays: Mapping[str, Array]) -> CommandBuffer | None:
        """Returns the program for inputs of these shapes, None when nothing is left to run."""
        ...

    def upload(self, arrays: Mapping[str, Array]) -> None:
        """Puts the weights of that program on the device."""
        ...

    def run(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """Returns the outputs by name."""
        ...

    def close(self) -> None:
        """Frees what the model has on the device."""
        ...


@dataclass
class _Umd:
    file: Path
    name: str
    inputs: dict[str, Takes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from umd_model import Session, load

        model = load(self.file)
        self._session = Session(model, self.name)
        self.device: Device = self._session.device
        for name, desc in model.inputs.items():
            axes = model.open_axes(name)
            self.inputs[name] = Takes(desc.dtype.numpy, [axes.get(a, e) for a, e in enumerate(desc.shape)])
        self.sizes = {size.name: size.base for size in model.sizes.sizes}

    def prepare(self, arrays: Mapping[str, Array]) -> CommandBuffer | None:
        return self._session.prepare(arrays)

    def upload(self, arrays: Mapping[str, Array]) -> None:
        self._session.upload()

    def run(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        return self._session.run(arrays)

    def close(self) -> None:
        self._session.close()


@dataclass
class _Onnx:
    file: Path
    name: str
    shapes: Mapping[str, Sequence[int]]
    dims: Mapping[str, int]
    inputs: dict[str, Takes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from onnx.helper import tensor_dtype_to_np_dtype

        from umd_onnx import load

        self._session = load(self.file, self.name, shapes=dict(self.shapes), dims=self.dims)
        self.device: Device = self._session.device
        graph = self._session.model.graph
        codes = {info.name: info.type.tensor_type.elem_type for info in graph.input}
        self.sizes: dict[str, int] = {}
        for argument in self._session.get_inputs():
            if argument.type.startswith("tensor"):
                self.inputs[argument.name] = Takes(tensor_dtype_to_np_dtype(codes[argument.name]), argument.shape)

    def prepare(self, arrays: Mapping[str, Array]) -> CommandBuffer | None:
        return self._session.prepare(arrays)

    def upload(self, arrays: Mapping[str, Array]) -> None:
        self._session.upload(arrays)

    def run(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        names = [output.name for output in self._session.get_outputs()]
        return dict(zip(names, self._session.run(None, arrays), strict=True))

    def close(self) -> None:
        self._session.close()


def is_onnx(file: Path) -> bool:
    """Returns whether a file is to be read as ONNX: our own model files are ZIP archives."""
    return not zipfile.is_zipfile(file)


def opened_model(file: Path, device: str, shapes: Mapping[str, Sequence[int]], dims: Mapping[str, int]) -> Runnable:
    """Returns a model on a device; `shapes` take the place of those that an ONNX model states.

    Raises:
        BadParameter: shapes are given for a file that fixes them, or a size that the model does not have.
        OSError, UmdError: the file or the device cannot be used.
    """
    if shapes and not is_onnx(file):
        raise typer.BadParameter("--shape is for ONNX models: this file says which of its sizes are open")
    model: Runnable = _Onnx(file, device, shapes, dims) if is_onnx(file) else _Umd(file, device)
    named = sorted({e for takes in model.inputs.values() for e in takes.shape if isinstance(e, str)})
    unknown = [name for name in dims if name not in named]
    if unknown:
        model.close()
        raise typer.BadParameter(f"--dim {unknown[0]}: the open sizes are {', '.join(named) or 'none'}")
    return model


def filled(model: Runnable, given: Sequence[str], dims: Mapping[str, int], *, random: bool) -> dict[str, Array]:
    """Returns arrays for all inputs: those of `given` (FILE.npy or NAME=FILE.npy), random ones for the rest.

    Raises:
        BadParameter: inputs are missing, or there are too many.
        OSError, DecodeError: a file cannot be read.
    """
    import numpy as np

    arrays: dict[str, Array] = {}
    for text in given:
        name, _, path = text.rpartition("=")
        rest = [wanted for wanted in model.inputs if wanted not in arrays]
        if not name and not rest:
            raise typer.BadParameter(f"--input {text}: the model takes {len(model.inputs)} inputs")
        arrays[name or rest[0]] = _loaded(path)
    missing = [name for name in model.inputs if name not in arrays]
    if missing and not random and arrays.keys() <= model.inputs.keys():  # a name that is none is told by the model
        named = " ".join(f"--input {name}=FILE.npy" for name in missing)
        raise typer.BadParameter(f"inputs are missing: {named}, or --random")
    chance = np.random.default_rng(0)
    for name in missing if random else ():
        arrays[name] = _random(name, model, dims, chance)
    return arrays


def _loaded(path: str) -> Array:
    import numpy as np

    from umd_core.errors import DecodeError

    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise DecodeError("npy", f"{path} is no .npy file: {error}", section="NPY") from error
    if not isinstance(array, np.ndarray):
        raise DecodeError("npy", f"{path} holds several arrays; one .npy file an input is wanted", section="NPY")
    return array


def _random(name: str, model: Runnable, dims: Mapping[str, int], chance: Any) -> Array:
    """Returns normal numbers, or 0 and 1 where the input is of integers or truths."""
    import numpy as np

    takes = model.inputs[name]
    known = {**model.sizes, **dims}
    extents = [1 if e is None else known.get(e, 1) if isinstance(e, str) else e for e in takes.shape]
    _check_size(name, extents)
    dtype = np.dtype(takes.dtype)
    if dtype.kind in "iub":
        return np.asarray(chance.integers(0, 2, extents)).astype(dtype)
    return np.asarray(chance.standard_normal(extents)).astype(dtype)


RANDOM_ELEMENTS = 1 << 30


def _check_size(name: str, extents: Sequence[int]) -> None:
    import math

    from umd_core.errors import LimitError

    count = math.prod(extents)
    if count > RANDOM_ELEMENTS:
        raise LimitError(f"elements of random input {name!r}", count, RANDOM_ELEMENTS)


def sizes(texts: Sequence[str]) -> dict[str, int]:
    """Returns NAME=SIZE pairs by name.

    Raises:
        BadParameter: one is not written so.
    """
    return {name: int(value) for name, value in (_pair(text, "--dim", "NAME=SIZE", r"\d+") for text in texts)}


def shapes(texts: Sequence[str]) -> dict[str, list[int]]:
    """Returns NAME=1,3,224,224 pairs by name.

    Raises:
        BadParameter: one is not written so.
    """
    pairs = (_pair(text, "--shape", "NAME=1,3,224,224", r"(\d+(,\d+)*)?") for text in texts)
    return {name: [int(part) for part in value.split(",") if part] for name, value in pairs}


def _pair(text: str, option: str, form: str, pattern: str) -> tuple[str, str]:
    import re

    name, equals, value = text.rpartition("=")
    if not name or not equals or not re.fullmatch(pattern, value):
        raise typer.BadParameter(f"{option} {text}: write it as {form}")
    return name, value
