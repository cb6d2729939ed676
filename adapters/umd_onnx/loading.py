"""From a file to a checked model of the newest opset, with its functions inlined and its external data read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError as ProtobufDecodeError
from onnx import inliner, version_converter

from umd_core.errors import LimitError, UnsupportedError
from umd_core.ir import Array
from umd_onnx.contents import bad_model, check_contents, graphs_of, tensors_of
from umd_onnx.handlers.legacy import moved
from umd_onnx.weights import HEAVY_BYTES, byte_count, set_aside
from umd_onnx.wire import hollowed

OPSET = 28
"""The opset whose semantics the op table has."""
FILE_LIMIT = 2 << 30
EXTERNAL_LIMIT = 64 << 30
Source = str | Path | bytes | onnx.ModelProto


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model, checked, at opset 28, and its large weights.

    Attributes:
        model: its initializers that are in `weights` have a name, a type and extents, but no data.
        weights: by name; views of the file's bytes where these are known.
    """

    model: onnx.ModelProto
    weights: dict[str, Array]


def load_model(source: Source) -> onnx.ModelProto:
    """Returns a model, checked, at opset 28.

    Args:
        source: a path, the bytes of a file, or a model.

    Raises:
        OSError: the file cannot be read.
        DecodeError: it is no ONNX model, or a broken one.
        LimitError: it is larger than 2 GiB (external data not counted).
        UnsupportedError: its opset or domain is not known.
    """
    loaded = load_parts(source)
    for tensor in loaded.model.graph.initializer:
        if tensor.name in loaded.weights:
            tensor.raw_data = loaded.weights[tensor.name].tobytes()
    return loaded.model


def load_parts(source: Source) -> Loaded:
    """Returns a model and its large weights, whose bytes are not copied; see `load_model`."""
    model, taken = _parse(source)
    check_contents(model)
    _read_external(model, Path(source).parent if isinstance(source, (str, Path)) else None, taken)
    own_inputs = {info.name for info in model.graph.input}
    weights = set_aside(model, taken)
    _check(model)
    result = _converted(_inlined(model))
    inputs = [info for info in result.graph.input if info.name in own_inputs]
    del result.graph.input[:]
    result.graph.input.extend(inputs)
    for name, array in weights.items():
        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        result.graph.initializer.add(name=name, data_type=kind, dims=array.shape)
    return Loaded(result, weights)


def _parse(source: Source) -> tuple[onnx.ModelProto, dict[str, memoryview]]:
    """Returns a model, and the bytes of large tensors that were left out of it; see `Hollowed`."""
    if isinstance(source, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(source)
        return copy, {}
    name = "the model"
    if isinstance(source, (str, Path)):
        name = str(source)
        size = os.path.getsize(source)
        if size > FILE_LIMIT:
            raise LimitError(f"bytes of {name}", size, FILE_LIMIT)
        source = Path(source).read_bytes()
    hollow, taken = hollowed(source, HEAVY_BYTES)
    try:
        model = onnx.ModelProto.FromString(hollow)
    except ProtobufDecodeError as error:
        raise bad_model(f"{name} is no ONNX model: {error}") from error
    if not model.graph.node and not model.graph.output:
        raise bad_model(f"{name} is no ONNX model: it has no graph")
    return model, taken


def _read_external(model: onnx.ModelProto, folder: Path | None, taken: dict[str, memoryview]) -> None:
    """Reads tensors that lie in other files, in the model's folder or below it, into `taken`; see `Hollowed`.

    Raises:
        DecodeError: a file is missing, too short or elsewhere.
    """
    total = 0
    for number, tensor in enumerate(tensors_of(model)):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if folder is None:
            raise bad_model(f"tensor {tensor.name!r} lies in the file {location!r}: load the model by its path")
        wanted = byte_count(tensor)
        total += wanted
        if total > EXTERNAL_LIMIT:
            raise LimitError("bytes of external data", total, EXTERNAL_LIMIT)
        tensor.doc_string = f"{location}:{number}"
        taken[tensor.doc_string] = memoryview(_read_range(tensor.name, folder, location, entries, wanted))
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]


def _read_range(name: str, folder: Path, location: str, entries: dict[str, str], wanted: int) -> bytes:
    path = (folder / location).resolve()
    if not location or not path.is_relative_to(folder.resolve()):
        raise bad_model(f"tensor {name!r} lies in {location!r}, which is not below the model's folder")
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", wanted))
    except ValueError as error:
        raise bad_model(f"tensor {name!r}: {error}") from error
    if length != wanted or offset < 0:
        raise bad_model(f"tensor {name!r} has {wanted} bytes, its entry says {length} at {offset}")
    if not path.is_file():
        raise bad_model(f"tensor {name!r} lies in {location!r}, which is missing")
    if offset + length > path.stat().st_size:
        raise bad_model(f"tensor {name!r} lies beyond the end of {location!r}")
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def _check(model: onnx.ModelProto) -> None:
    """Checks a model by ONNX's own checker.

    Raises:
        UnsupportedError: ops or an opset that ONNX does not know; of ops, all are named.
        DecodeError: what else is wrong with it.
    """
    unknown = _unknown_ops(model)
    if unknown:
        raise UnsupportedError(f"ops that ONNX does not know: {', '.join(unknown)}", op=unknown[0])
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        text = str(error).splitlines()[0]
        if "No Op registered" in text or "Unrecognized" in text or "opset" in text.lower():
            raise UnsupportedError(text) from error
        raise bad_model(text) from error


def _unknown_ops(model: onnx.ModelProto) -> list[str]:
    """Returns the ops of ONNX's own domain that no version of it has, and that the model does not define."""
    own = {function.name for function in model.functions if function.domain in ("", "ai.onnx")}
    nodes = [node for graph in graphs_of(model.graph) for node in graph.node if node.domain in ("", "ai.onnx")]
    names = {node.op_type for node in nodes if node.op_type not in own}
    return sorted(name for name in names if not onnx.defs.has(name, ""))


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with its own functions taken apart."""
    if not model.functions:
        return model
    result: onnx.ModelProto = inliner.inline_local_functions(model)
    return result


def _converted(model: onnx.ModelProto) -> onnx.ModelProto:
    versions = {entry.domain: entry.version for entry in model.opset_import}
    version = versions.get("", versions.get("ai.onnx"))
    if version is None:
        return model
    if version > OPSET:
        raise UnsupportedError(f"opset {version} is newer than {OPSET}, the newest that umd knows")
    if version == OPSET:
        return model
    try:
        result: onnx.ModelProto = version_converter.convert_version(model, OPSET)
    except (RuntimeError, version_converter.ConvertError) as error:
        raise UnsupportedError(
            f"opset {version} cannot be converted to {OPSET}: {str(error).splitlines()[0]}"
        ) from error
    moved(list(graphs_of(result.graph)), version)
    return result
