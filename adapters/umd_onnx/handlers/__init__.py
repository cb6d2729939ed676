"""Ops that are settled while importing, or need more than the op table: by name, other domains before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from umd_onnx.handlers import control, legacy, narrow, random, selection, sequences, shapes, training

if TYPE_CHECKING:
    from umd_onnx.importer import Handler

HANDLERS: Mapping[str, Handler] = {
    **shapes.HANDLERS,
    **control.HANDLERS,
    **sequences.HANDLERS,
    **random.HANDLERS,
    **narrow.HANDLERS,
    **selection.HANDLERS,
    **training.HANDLERS,
    **legacy.HANDLERS,
}
