"""The standard's own test cases, and what umd makes of each on a device.

python -m umd_onnx.suite [--device NAME] [PATTERN …]    one line a case that does not pass, then the counts
"""

from __future__ import annotations

import argparse
import enum
import functools
import glob
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from umd_core.device import Device
from umd_core.errors import UmdError
from umd_core.registry import open_device
from umd_onnx.session import InferenceSession

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
ORDINARY = frozenset({1, 6, 7, 9})
"""float32, int32, int64 and bool: cases with these inputs and outputs alone are counted on their own."""


class Class(enum.StrEnum):
    """Who computed the results of a case, or why there are none."""

    DEVICE = "device"
    HOST = "host"
    REFERENCE = "reference"
    REFUSED = "refused"
    WRONG = "wrong"


MEANINGS = {
    Class.DEVICE: "a program ran on the device",
    Class.HOST: "nothing was left to run: umd settled everything while importing",
    Class.REFERENCE: "ONNX's reference evaluator computed an op while importing, because umd has none such",
    Class.REFUSED: "a typed error says what is missing",
    Class.WRONG: "results differ",
}


@dataclass(frozen=True, slots=True)
class Case:
    """A model with inputs and the outputs that the standard wants of it.

    Attributes:
        data: (inputs, outputs) of each run.
        rtol, atol: how far a result may be off.
    """

    kind: str
    name: str
    model: onnx.ModelProto
    data: tuple[tuple[list[Any], list[Any]], ...]
    rtol: float
    atol: float

    @property
    def family(self) -> str:
        """The op that the case is about, or the set that it is from."""
        nodes = self.model.graph.node
        if self.kind != "node" or not nodes:
            return self.kind
        return nodes[0].op_type if len(nodes) == 1 else "expanded and others"

    @property
    def is_ordinary(self) -> bool:
        """Whether the case is of ONNX's own domain, and takes and gives float32, int32, int64 and bool tensors."""
        infos = [*self.model.graph.input, *self.model.graph.output]
        own = all(entry.domain in ("", "ai.onnx") for entry in self.model.opset_import)
        return own and all(i.type.HasField("tensor_type") and i.type.tensor_type.elem_type in ORDINARY for i in infos)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case: `detail` is the error, or the ops that the reference computed."""

    result: Class
    detail: str = ""

    @property
    def passes(self) -> bool:
        """Whether the results are right, whoever computed them."""
        return self.result in (Class.DEVICE, Class.HOST, Class.REFERENCE)


@functools.cache
def cases(kind: str = "node") -> tuple[Case, ...]:
    """Returns the cases of one of KINDS; those of "node" are computed by ONNX, which takes some seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite overflows on purpose while it makes its data
        from onnx.backend.test.loader import load_model_tests  # noqa: PLC0415  # it brings the whole suite

        tests: list[Any] = load_model_tests(kind=kind)
        return tuple(_in_memory(test) if kind == "node" else _in_folder(kind, test) for test in tests)


def _in_memory(test: Any) -> Case:
    data = tuple((list(map(_array, inputs)), list(map(_array, outputs))) for inputs, outputs in test.data_sets)
    return Case("node", test.name, test.model, data, test.rtol, test.atol)


def _in_folder(kind: str, test: Any) -> Case:
    folder = Path(test.model_dir)
    model = onnx.load(folder / "model.onnx")
    data = tuple(
        (_read(model.graph.input, sets, "input"), _read(model.graph.output, sets, "output"))
        for sets in sorted(folder.glob("test_data_set_*"))
    )
    return Case(kind, test.name, model, data, test.rtol, test.atol)


def _read(infos: Sequence[onnx.ValueInfoProto], folder: Path, what: str) -> list[Any]:
    count = len(glob.glob(f"{what}_*.pb", root_dir=folder))
    found: list[Any] = []
    for index, info in zip(range(count), infos, strict=False):
        raw = (folder / f"{what}_{index}.pb").read_bytes()
        if info.type.HasField("sequence_type"):
            found.append(numpy_helper.to_list(onnx.SequenceProto.FromString(raw)))
        else:
            found.append(numpy_helper.to_array(onnx.TensorProto.FromString(raw)))
    return found


def _array(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, onnx.SequenceProto):
        return numpy_helper.to_list(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def outcome(case: Case, device: Device) -> Outcome:
    """Runs a case on a device."""
    try:
        session = InferenceSession(case.model, device, seed=0)
    except UmdError as error:
        return Outcome(Class.REFUSED, str(error))
    found = Class.HOST
    referenced: set[str] = set()
    for inputs, wanted in case.data:
        feeds = dict(zip([argument.name for argument in session.get_inputs()], inputs, strict=False))
        try:
            results = session.run(None, feeds)
            imported = session.imported(feeds)
        except UmdError as error:
            return Outcome(Class.REFUSED, str(error))
        difference = _difference(results, wanted, case)
        if difference:
            return Outcome(Class.WRONG, difference)
        referenced |= imported.referenced
        found = Class.DEVICE if imported.graph.outputs else found
    return Outcome(Class.REFERENCE, ", ".join(sorted(referenced))) if referenced else Outcome(found)


def _difference(results: Sequence[Any], wanted: Sequence[Any], case: Case) -> str:
    """Returns what is wrong with results, "" when they are right; the comparison is the standard's own."""
    from onnx.backend.test.runner import Runner  # noqa: PLC0415  # it brings unittest

    if _lengths(results) != _lengths(wanted):
        return f"sequences of {_lengths(results)} tensors, not {_lengths(wanted)}"
    try:
        Runner.assert_similar_outputs(_flat(wanted), _flat(results), case.rtol, case.atol)
    except AssertionError as error:
        return " ".join(str(error).split())
    return ""


def _lengths(values: Sequence[Any]) -> list[int]:
    return [len(value) if isinstance(value, list) else -1 for value in values]


def _flat(values: Sequence[Any]) -> list[Any]:
    """Returns the tensors in values that may be sequences: the standard's comparison fails on 0-d items of those."""
    return [np.asarray(item) for value in values for item in (value if isinstance(value, list) else [value])]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs cases and prints those that do not pass."""
    parser = argparse.ArgumentParser(prog="python -m umd_onnx.suite", description="ONNX's test cases on a device.")
    parser.add_argument("--device", default="sim:0")
    parser.add_argument("patterns", nargs="*", default=["*"])
    options = parser.parse_args(arguments)
    counts: Counter[Class] = Counter()
    device = open_device(options.device)
    for case in (case for kind in KINDS for case in cases(kind)):
        if any(fnmatch(case.name, pattern) for pattern in options.patterns):
            found = outcome(case, device)
            counts[found.result] += 1
            if not found.passes:
                sys.stdout.write(f"{case.name}: {found.result}: {found.detail[:200]}\n")
    for result in Class:
        sys.stdout.write(f"{counts[result]:5} {result}: {MEANINGS[result]}\n")
    device.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
