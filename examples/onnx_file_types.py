"""Names the types of files with Magika's model, on any device.

Run `python examples/onnx_file_types.py [--device NAME] FILE…`.

The model comes with a package: pip install --no-deps magika==1.0.3
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path

import numpy as np

import umd_onnx

LENGTH, PADDING = 2048, 256


def described(content: bytes) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Returns (2048,) int32: the first and the last 1024 bytes of a file, without the blanks around it."""
    first, last = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
    found = np.full(LENGTH, PADDING, np.int32)
    found[: len(first)] = list(first)
    found[LENGTH - len(last) :] = list(last)
    return found


def main() -> None:
    """Prints a line a file: its type, and how sure the model is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="sim:0")
    parser.add_argument("files", nargs="+", type=Path)
    options = parser.parse_args()
    spec = importlib.util.find_spec("magika")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the model is missing: pip install --no-deps magika==1.0.3")
    folder = Path(spec.submodule_search_locations[0]) / "models" / "standard_v3_3"
    labels = json.loads((folder / "config.min.json").read_text(encoding="utf-8"))["target_labels_space"]
    contents = np.stack([described(file.read_bytes()) for file in options.files])
    with umd_onnx.load(folder / "model.onnx", device=options.device) as session:
        (scores,) = session.run(None, {"bytes": contents})
    for file, row in zip(options.files, scores, strict=True):
        print(f"{file}: {labels[row.argmax()]} ({row.max():.3f})")


if __name__ == "__main__":
    main()
