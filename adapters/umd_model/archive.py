"""The file: a ZIP whose members are stored, not compressed, so that weights can be read where they lie.

    manifest.json         what the arguments, results and open sizes are
    graph.pb              the graph, a message of protos/umd/graph.proto
    weights.safetensors   the weights
    programs/SHA256.umdcmd  the program for the stored sizes

Files of others are not trusted: names, sizes and counts are checked before anything is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import safetensors
from google.protobuf.message import DecodeError as ProtobufDecodeError
from safetensors.numpy import save as save_weights

from umd_core import dtypes
from umd_core.errors import DecodeError, LimitError, UmdError
from umd_core.ir import Array
from umd_grpc._pb.umd import graph_pb2
from umd_grpc.messages.graph_messages import read_graph, write_graph
from umd_model.model import Argument, Model
from umd_model.sizes import Size, Sizes

FORMAT, VERSION = "umd-model", 1
MANIFEST, GRAPH, WEIGHTS, PROGRAMS = "manifest.json", "graph.pb", "weights.safetensors", "programs/"
LIMITS = {MANIFEST: 32 << 20, GRAPH: 512 << 20, PROGRAMS: 256 << 20}
MEMBERS = 1024


def save(model: Model, path: str | Path) -> None:
    """Writes a model to a file. The file is there whole or not at all."""
    target = Path(path)
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
        try:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                _write(model, archive)
            file.flush()
            os.fsync(file.fileno())
            os.chmod(file.name, 0o644)
            os.replace(file.name, target)
        except BaseException:
            os.unlink(file.name)
            raise


def _write(model: Model, archive: zipfile.ZipFile) -> None:
    def member(name: str, data: bytes) -> None:
        archive.writestr(zipfile.ZipInfo(name), data)  # a fixed date: the same model gives the same file

    member(MANIFEST, json.dumps(_manifest(model), indent=1).encode())
    member(GRAPH, write_graph(model.graph).SerializeToString(deterministic=True))
    weights = {name: np.ascontiguousarray(w).reshape(w.shape) for name, w in model.weights.items()}
    member(WEIGHTS, save_weights(weights))
    for digest, program in model.programs.items():
        member(f"{PROGRAMS}{digest}.umdcmd", program)


def _manifest(model: Model) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "producer": model.producer,
        "arguments": [{"value": a.value, "name": a.name, "weight": a.weight} for a in model.arguments],
        "outputs": list(model.outputs),
        "updates": [list(update) for update in model.updates],
        "sizes": [{"name": s.name, "base": s.base, "least": s.least, "most": s.most} for s in model.sizes.sizes],
        "numbers": [
            [list(path), [[list(chosen), coefficient] for chosen, coefficient in number.items()]]
            for path, number in model.sizes.numbers.items()
        ],
        "programs": list(model.programs),
    }


def load(path: str | Path) -> Model:
    """Reads a model.

    Raises:
        OSError: the file cannot be opened.
        DecodeError: the file is no model, or damaged.
        LimitError: a member is larger than any model's.
    """
    with open(path, "rb") as file:
        return _load(file, path)


def _load(file: BinaryIO, path: str | Path) -> Model:
    try:
        with zipfile.ZipFile(file) as archive:
            return _read(archive)
    except UmdError:
        raise
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise _bad(f"{path} is no model file: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, safetensors.SafetensorError) as error:
        raise _bad(f"{path} is damaged: {type(error).__name__}: {error}") from error


def _read(archive: zipfile.ZipFile) -> Model:
    members = {info.filename: info for info in archive.infolist()}
    if len(members) > MEMBERS:
        raise LimitError("members of a model file", len(members), MEMBERS)
    manifest = json.loads(_member(archive, members, MANIFEST))
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _bad("the manifest is not that of a model")
    if manifest.get("version") != VERSION:
        raise _bad(f"version {manifest.get('version')} of the file; this library reads version {VERSION}")
    try:
        graph = read_graph(graph_pb2.Graph.FromString(_member(archive, members, GRAPH)))
    except ProtobufDecodeError as error:
        raise _bad(f"{GRAPH} is not a graph: {error}") from error
    model = Model(
        graph=graph,
        arguments=tuple(Argument(str(a["value"]), str(a["name"]), bool(a["weight"])) for a in manifest["arguments"]),
        weights=_weights(_member(archive, members, WEIGHTS)),
        outputs=tuple(map(str, manifest["outputs"])),
        updates=tuple((int(index), str(name)) for index, name in manifest["updates"]),
        sizes=_sizes(manifest),
        producer=str(manifest["producer"]),
        programs={digest: _program(archive, members, digest) for digest in manifest["programs"]},
    )
    _check(model)
    return model


def _member(archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], name: str) -> bytes:
    info = members.get(name)
    if info is None:
        raise _bad(f"{name} is missing")
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise _bad(f"{name} is compressed: members are stored")
    limit = LIMITS.get(name, LIMITS[PROGRAMS] if name.startswith(PROGRAMS) else None)
    if limit is not None and info.file_size > limit:
        raise LimitError(f"bytes of {name}", info.file_size, limit)
    return archive.read(info)


def _weights(raw: bytes) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for name, weight in _deserialize(raw):
        dtype = _SAFETENSORS.get(weight["dtype"])
        if dtype is None:
            raise _bad(f"weight {name!r} is of type {weight['dtype']}, which umd does not have")
        found[name] = np.frombuffer(weight["data"], dtype.numpy).reshape(weight["shape"])
    return found


_deserialize: Any = safetensors.deserialize  # pyright: ignore[reportUnknownMemberType]  # it has no types
_SAFETENSORS = {
    "F16": dtypes.float16, "BF16": dtypes.bfloat16, "F32": dtypes.float32, "F64": dtypes.float64,
    "I8": dtypes.int8, "I16": dtypes.int16, "I32": dtypes.int32, "I64": dtypes.int64,
    "U8": dtypes.uint8, "U16": dtypes.uint16, "U32": dtypes.uint32, "U64": dtypes.uint64, "BOOL": dtypes.bool_,
}  # fmt: skip


def _program(archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], digest: str) -> bytes:
    program = _member(archive, members, f"{PROGRAMS}{digest}.umdcmd")
    if hashlib.sha256(program).hexdigest() != digest:
        raise _bad(f"program {digest} has another hash")
    return program


def _sizes(manifest: Mapping[str, Any]) -> Sizes:
    sizes = tuple(Size(str(s["name"]), int(s["base"]), int(s["least"]), int(s["most"])) for s in manifest["sizes"])
    numbers = {
        tuple(p if isinstance(p, str) else int(p) for p in path): {
            tuple(map(int, chosen)): int(coefficient) for chosen, coefficient in number
        }
        for path, number in manifest["numbers"]
    }
    if any(not 0 <= i < len(sizes) for number in numbers.values() for chosen in number for i in chosen):
        raise _bad("a number depends on a size that is not there")
    return Sizes(sizes, numbers)


def _check(model: Model) -> None:
    """Checks that the parts of a model fit together."""
    if [a.value for a in model.arguments] != list(model.graph.inputs):
        raise _bad("the arguments are not the graph's inputs")
    for argument in model.arguments:
        desc = model.graph.inputs[argument.value]
        weight = model.weights.get(argument.name) if argument.weight else None
        if argument.weight and (weight is None or weight.shape != desc.shape or weight.dtype != desc.dtype.numpy):
            raise _bad(f"weight {argument.name!r} is missing, or not {desc.dtype.name}{list(desc.shape)}")
    names = [a.name for a in model.arguments if not a.weight]
    results = len(model.graph.outputs)
    if len(set(names)) != len(names) or len(model.outputs) > results:
        raise _bad("two inputs have one name, or there are more outputs than results")
    if any(not len(model.outputs) <= i < results or name not in model.weights for i, name in model.updates):
        raise _bad("an update is of no result or no weight")


def _bad(detail: str) -> DecodeError:
    return DecodeError("model-file", detail, section="MODEL")
