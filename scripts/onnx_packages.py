"""Runs every ONNX file of installed packages on random inputs, beside onnxruntime, and prints a table.

python scripts/onnx_packages.py [--device NAME] [PACKAGE …]    without packages, those of models.txt
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from umd_core.errors import UmdError
from umd_onnx import InferenceSession
from umd_onnx.feeds import NodeArg
from umd_onnx.inspection import missing_ops

MODELS = Path(__file__).resolve().parent.parent / "models.txt"
SIZES = (64, 576, 1)
"""What open extents are, the first size that onnxruntime takes: sides of pictures, and what lies along the last axis.

576 samples are a frame of Silero's detector.
"""
TYPES = {"float": "f4", "float16": "f2", "double": "f8", "int64": "i8", "int32": "i4", "uint8": "u1", "bool": "?"}
Feeds = dict[str, NDArray[Any]]


def packages() -> list[str]:
    """Returns the names that models.txt pins."""
    return re.findall(r"^([\w-]+)==", MODELS.read_text(encoding="utf-8"), re.MULTILINE)


def found(package: str) -> Iterator[Path]:
    """Yields the ONNX files of an installed package."""
    try:
        for file in files(package) or []:
            if file.suffix == ".onnx":
                yield Path(str(file.locate()))
    except PackageNotFoundError:
        print(f"{package} is not installed")


def feeds_for(arguments: list[NodeArg], size: int) -> Feeds:
    """Returns random inputs: normal numbers, and 0 and 1 for integers; the rate of a recording is 16,000."""
    chance = np.random.default_rng(0)
    result: Feeds = {}
    for argument in arguments:
        rank = len(argument.shape)
        long = {rank - 1} if rank != 4 else {2, 3}
        extents = [e if isinstance(e, int) else size if axis in long else 1 for axis, e in enumerate(argument.shape)]
        dtype = np.dtype(TYPES[argument.type.removeprefix("tensor(").removesuffix(")")])
        if argument.name == "sr":
            result[argument.name] = np.full(extents, 16000, dtype)
        elif dtype.kind == "f":
            result[argument.name] = np.asarray(chance.standard_normal(extents)).astype(dtype)
        else:
            result[argument.name] = chance.integers(0, 2, extents).astype(dtype)
    return result


def theirs(path: Path) -> Any:
    """Returns a session of onnxruntime on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def timed(session: Any, feeds: Feeds) -> tuple[list[Any], float]:
    """Returns the results, and the milliseconds of the second run."""
    session.run(None, feeds)
    start = time.perf_counter()
    results = session.run(None, feeds)
    return list(results), 1e3 * (time.perf_counter() - start)


def row(path: Path, device: str) -> tuple[str, ...]:
    """Returns (file, missing ops, error, umd's milliseconds, onnxruntime's) for one model."""
    name = f"{path.parent.parent.name}/{path.name}"[-46:]
    try:
        with InferenceSession(path, device) as ours:
            missing = missing_ops(ours.model)
            if missing:
                return (name, ", ".join(missing), "", "", "")
            other = theirs(path)
            for size in SIZES:
                feeds = feeds_for(ours.get_inputs(), size)
                try:
                    wanted, beside = timed(other, feeds)
                except Exception as error:  # noqa: BLE001  # onnxruntime raises classes of its own
                    refused = str(error)
                    continue
                results, own = timed(ours, feeds)
                off = [np.abs(a.astype("f8") - b).max(initial=0) for a, b in zip(results, wanted, strict=True)]
                return (name, "", f"{max(off):.1e}", f"{own:.2f}", f"{beside:.2f}")
            return (name, "", f"onnxruntime: {refused[:50]}", "", "")
    except (UmdError, KeyError) as error:
        return (name, "", str(error)[:90], "", "")


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python scripts/onnx_packages.py")
    parser.add_argument("--device", default="sim:0")
    parser.add_argument("packages", nargs="*", default=packages())
    options = parser.parse_args()
    print(f"{'model':46}  {'largest error':14} {'ms':>9} {'onnxruntime':>12}  missing")
    for package in options.packages:
        for path in found(package):
            name, missing, error, own, beside = row(path, options.device)
            print(f"{name:46}  {error:14} {own:>9} {beside:>12}  {missing}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
