"""Models on disk: a graph of ops, its weights and its program in one file, which runs without the framework."""

from __future__ import annotations

from umd_model.archive import load, save
from umd_model.model import Argument, Model
from umd_model.session import Session
from umd_model.sizes import Size, Sizes

__all__ = ["Argument", "Model", "Session", "Size", "Sizes", "load", "save"]
