"""From a file to a checked model of the newest opset, with its functions inlined and its external data read."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError as ProtobufDecodeError
from onnx import inliner, version_converter

from umd_core.errors import LimitError, UnsupportedError
from umd_onnx.contents import bad_model, check_contents, graphs_of, tensors_of
from umd_onnx.handlers.legacy import moved

OPSET = 28
"""The opset whose semantics the op table has."""
FILE_LIMIT = 2 << 30
EXTERNAL_LIMIT = 64 << 30
HEAVY_BYTES = 4096
"""Bytes of a weight from which on checker and converter do not see it."""
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
    check_contents(model)
    folder = Path(source).parent if isinstance(source, (str, Path)) else None
    _read_external(model, folder)
    own_inputs = {info.name for info in model.graph.input}
    heavy = _set_aside(model, own_inputs)
    _check(model)
    result = _converted(_inlined(model))
    inputs = [info for info in result.graph.input if info.name in own_inputs]
    del result.graph.input[:]
    result.graph.input.extend(inputs)
    result.graph.initializer.extend(heavy)
    return result


def _set_aside(model: onnx.ModelProto, known: Collection[str]) -> list[onnx.TensorProto]:
    """Takes the large weights out of a model and returns them: checker and converter copy a model several times.

    Meanwhile they are inputs beside the `known` ones. The converter looks at small tensors only: axes and the like.
    """
    tensors = list(model.graph.initializer)
    heavy = [tensor for tensor in tensors if _is_heavy(tensor)]
    heavy += _heavy_constants(model.graph)
    del model.graph.initializer[:]
    model.graph.initializer.extend(tensor for tensor in tensors if not _is_heavy(tensor))
    model.graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in heavy
        if tensor.name not in known
    )
    return heavy


def _heavy_constants(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    """Takes Constant nodes with large tensors out of a graph, and returns those as weights."""
    kept: list[onnx.NodeProto] = []
    found: list[onnx.TensorProto] = []
    for node in graph.node:
        is_constant = node.op_type == "Constant" and node.domain in ("", "ai.onnx") and len(node.output) == 1
        if is_constant and [a.name for a in node.attribute] == ["value"] and _is_heavy(node.attribute[0].t):
            node.attribute[0].t.name = node.output[0]
            found.append(node.attribute[0].t)
        else:
            kept.append(node)
    if found:
        del graph.node[:]
        graph.node.extend(kept)
    return found


def _is_heavy(tensor: onnx.TensorProto) -> bool:
    """Returns whether a tensor is so large that it is set aside; it is known to have the bytes that its shape says."""
    return tensor.HasField("raw_data") and _byte_count(tensor) == len(tensor.raw_data) > HEAVY_BYTES


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
        raise bad_model(f"{name} is no ONNX model: {error}") from error
    if not model.graph.node and not model.graph.output:
        raise bad_model(f"{name} is no ONNX model: it has no graph")
    return model


def _read_external(model: onnx.ModelProto, folder: Path | None) -> None:
    """Reads tensors that lie in other files; these lie in the model's folder, or below it.

    Raises:
        DecodeError: a file is missing, too short or elsewhere.
    """
    total = 0
    for tensor in tensors_of(model):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if folder is None:
            raise bad_model(f"tensor {tensor.name!r} lies in the file {location!r}: load the model by its path")
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
            raise bad_model(f"tensor {tensor.name!r} has extent {extent}")
        count *= extent
    try:
        dtype: Any = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except KeyError:
        raise bad_model(f"tensor {tensor.name!r} is of type {tensor.data_type}, which cannot lie in a file") from None
    return count * int(np.dtype(dtype).itemsize)


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
