"""Tensors and attributes as people type them: `f32[1,3,8,8]`, `i64[2]=3,2`, `strides=1,1`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from umd_core.ir import TensorDesc

_TENSOR = re.compile(r"(?P<dtype>[\w.]+)\[(?P<shape>[-\d\s,x]*)\](?:=(?P<values>.*))?", re.DOTALL)
WANTED = "write it as f32[1,3,8,8], or i64[2]=3,2 where the values matter"


def tensor(text: str) -> TensorDesc | NDArray[Any] | None:
    """Returns the description that the text gives, an array where it gives the values too, None for "-" (left out).

    Raises:
        BadParameter: it is not written so.
        DTypeError, ShapeError, LimitError: what it says is no tensor.
    """
    from umd_core.ir import TensorDesc

    if text.strip() == "-":
        return None
    match = _TENSOR.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a tensor; {WANTED}")
    extents = [int(part) for part in re.split(r"[,x\s]+", match["shape"].strip()) if part]
    desc = TensorDesc(match["dtype"], extents)
    return desc if match["values"] is None else _filled(desc, match["values"], text)


def _filled(desc: TensorDesc, values: str, text: str) -> NDArray[Any]:
    import numpy as np

    parts = [part for part in re.split(r"[,\s]+", values.strip("[]() ")) if part]
    try:
        flat = np.array([_number(part) for part in parts])
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: {error}; {WANTED}") from error
    if flat.size not in (1, desc.element_count):
        raise typer.BadParameter(f"{text!r} has {flat.size} values for {desc.element_count} elements")
    return np.broadcast_to(flat.astype(desc.dtype.numpy).reshape(-1), (desc.element_count,)).reshape(desc.shape)


def _number(text: str) -> float | int | bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text, 0)
    except ValueError:
        return float(text)


def attributes(pairs: Sequence[str]) -> dict[str, Any]:
    """Returns `name=value` pairs by name; a value may be JSON, other text stays text for the op's schema to read.

    Raises:
        BadParameter: a pair has no "=".
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{pair!r} is not an attribute; write it as strides=1,1")
        found[name.strip()] = _value(value.strip())
    return found


def _value(text: str) -> Any:
    """Returns JSON's value, numbers joined by commas as a list, or the text itself."""
    for candidate in (text, f"[{text}]"):
        try:
            return json.loads(candidate)
        except json.JSONDecodeError:
            continue
    return text


def request(document: Any) -> tuple[str, list[TensorDesc | NDArray[Any] | None], dict[str, Any]]:
    """Returns (op, inputs, attributes) of a request in JSON.

    `{"op": "Conv", "inputs": ["f32[1,3,8,8]", {"dtype": "float32", "shape": [4, 3, 3, 3]}],
    "attributes": {"strides": [1, 1]}}`

    Raises:
        BadParameter: it is something else.
    """
    if not isinstance(document, dict) or not isinstance(document.get("op"), str):
        raise typer.BadParameter('the request is not an object like {"op": "Add", "inputs": ["f32[2]", "f32[2]"]}')
    unknown = set(document) - {"op", "inputs", "attributes"}
    if unknown:
        raise typer.BadParameter(f"unknown members {sorted(unknown)}; op, inputs and attributes are known")
    given = document.get("attributes", {})
    if not isinstance(given, dict):
        raise typer.BadParameter("attributes is not an object")
    return document["op"], [_described(item) for item in document.get("inputs", [])], given


def _described(item: Any) -> TensorDesc | NDArray[Any] | None:
    from umd_core.ir import TensorDesc

    if item is None:
        return None
    if isinstance(item, str):
        return tensor(item)
    if isinstance(item, dict) and "dtype" in item and "shape" in item:
        desc = TensorDesc(item["dtype"], item["shape"], item.get("strides"), item.get("element_offset", 0))
        if "values" in item:
            return _filled(desc, ",".join(map(str, item["values"])), json.dumps(item))
        return desc
    raise typer.BadParameter(f"input {item!r} has no dtype and shape; {WANTED}")


def described(desc: TensorDesc) -> dict[str, Any]:
    """Returns a description as data; strides and offset only where it is not row-major."""
    found: dict[str, Any] = {"dtype": desc.dtype.name, "shape": list(desc.shape)}
    if not desc.is_contiguous:
        found |= {"strides": list(desc.strides), "element_offset": desc.element_offset}
    return found


def short(described: dict[str, Any]) -> str:
    """Returns what `described` returned as text, like float32[2,3]."""
    strides = f" strides {described['strides']} from {described['element_offset']}" if "strides" in described else ""
    return f"{described['dtype']}[{','.join(map(str, described['shape']))}]{strides}"
