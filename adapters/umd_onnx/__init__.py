"""ONNX models on umd's devices: a session shaped like onnxruntime's, over a graph of the core's ops."""

from __future__ import annotations

from umd_onnx.loading import Source, load_model
from umd_onnx.session import InferenceSession, load

__all__ = ["InferenceSession", "Source", "load", "load_model"]
