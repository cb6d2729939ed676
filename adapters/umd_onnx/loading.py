"""From a file to a checked model of the newest opset, with its functions inlined and its external data read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError as ProtobufDecodeError
from onnx import inliner, version_converter

from umd_core.errors import DecodeError, LimitError, UnsupportedError

OPSET = 28
"""The opset whose semantics the op table has."""
FILE_LIMIT = 2 << 30
EXTERNAL_LIMIT = 64 << 30
Source = str | Path | bytes | onnx.ModelProto


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
    model = _parse(source)
    folder = Path(source).parent if isinstance(source, (str, Path)) else None
    _read_external(model, folder)
    _check(model)
    return _converted(_inlined(model))


def _parse(source: Source) -> onnx.ModelProto:
    if isinstance(source, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(source)
        return copy
    name = "the model"
    if isinstance(source, (str, Path)):
        name = str(source)
        size = os.path.getsize(source)
        if size > FILE_LIMIT:
            raise LimitError(f"bytes of {name}", size, FILE_LIMIT)
        source = Path(source).read_bytes()
    try:
        model = onnx.ModelProto.FromString(source)
    except ProtobufDecodeError as error:
        raise _bad(f"{name} is no ONNX model: {error}") from error
    if not model.graph.node and not model.graph.output:
        raise _bad(f"{name} is no ONNX model: it has no graph")
    return model


def _tensors(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    """Returns the tensors of a graph and of the graphs in it."""
    found = list(graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            found += [attribute.t] if attribute.HasField("t") else []
            found += attribute.tensors
            for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                found += _tensors(inner)
    return found


def _read_external(model: onnx.ModelProto, folder: Path | None) -> None:
    """Reads tensors that lie in other files; these lie in the model's folder, or below it.

    Raises:
        DecodeError: a file is missing, too short or elsewhere.
    """
    total = 0
    for tensor in _tensors(model.graph):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if folder is None:
            raise _bad(f"tensor {tensor.name!r} lies in the file {location!r}: load the model by its path")
        wanted = _byte_count(tensor)
        total += wanted
        if total > EXTERNAL_LIMIT:
            raise LimitError("bytes of external data", total, EXTERNAL_LIMIT)
        tensor.raw_data = _read_range(tensor.name, folder, location, entries, wanted)
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]


def _byte_count(tensor: onnx.TensorProto) -> int:
    count = 1
    for extent in tensor.dims:
        if extent < 0:
            raise _bad(f"tensor {tensor.name!r} has extent {extent}")
        count *= extent
    try:
        dtype: Any = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except KeyError:
        raise _bad(f"tensor {tensor.name!r} is of type {tensor.data_type}, which cannot lie in a file") from None
    return count * int(np.dtype(dtype).itemsize)


def _read_range(name: str, folder: Path, location: str, entries: dict[str, str], wanted: int) -> bytes:
    path = (folder / location).resolve()
    if not location or not path.is_relative_to(folder.resolve()):
        raise _bad(f"tensor {name!r} lies in {location!r}, which is not below the model's folder")
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", wanted))
    except ValueError as error:
        raise _bad(f"tensor {name!r}: {error}") from error
    if length != wanted or offset < 0:
        raise _bad(f"tensor {name!r} has {wanted} bytes, its entry says {length} at {offset}")
    if not path.is_file():
        raise _bad(f"tensor {name!r} lies in {location!r}, which is missing")
    if offset + length > path.stat().st_size:
        raise _bad(f"tensor {name!r} lies beyond the end of {location!r}")
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def _check(model: onnx.ModelProto) -> None:
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        text = str(error).splitlines()[0]
        if "No Op registered" in text or "Unrecognized" in text or "opset" in text.lower():
            raise UnsupportedError(text) from error
        raise _bad(text) from error


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with its own functions taken apart."""
    if not model.functions:
        return model
    result: onnx.ModelProto = inliner.inline_local_functions(model)
    return result


def _converted(model: onnx.ModelProto) -> onnx.ModelProto:
    versions = {entry.domain: entry.version for entry in model.opset_import}
    version = versions.get("", versions.get("ai.onnx", 1))
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
    return result


def _bad(detail: str) -> DecodeError:
    return DecodeError("onnx-model", detail, section="ONNX")
