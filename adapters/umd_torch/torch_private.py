"""What the adapter uses of torch that torch does not promise to keep; for the version that pyproject.toml names."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd import descriptors
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._guards import TracingContext
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.node import _get_qualified_name as qualified_name
from torch.fx.node import map_aggregate
from torch.multiprocessing.reductions import StorageWeakRef

from umd_core.errors import UnsupportedError

VERSION = (2, 13)


def check_version() -> None:
    """Checks that this is the torch that the adapter was written for.

    Raises:
        UnsupportedError: it is another one; the message says how to get it.
    """
    found = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if found != VERSION:
        wanted = ".".join(map(str, VERSION))
        raise UnsupportedError(f"torch {torch.__version__} is not {wanted}: pip install 'torch=={wanted}.*'")


def unroll_recurrent_layers() -> None:
    """Lets Dynamo trace LSTM and GRU layers; it asks before it calls the backend, so this holds for the process."""
    torch._dynamo.config.allow_rnn = True


@contextlib.contextmanager
def without_mkldnn() -> Generator[None]:
    """Within the block, CPU tensors get plain ATen ops."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags warns about GPUs
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def storage_key(tensor: torch.Tensor) -> int:
    """Returns a number that belongs to a tensor's storage as long as it, or a weak reference to it, lives."""
    return int(tensor.untyped_storage()._cdata)


def weak_storage(tensor: torch.Tensor) -> Any:
    """Returns a weak reference to a tensor's storage, whose `expired()` says whether it is gone."""
    return StorageWeakRef(tensor.untyped_storage())


def note_optimizer_step(optimizer: torch.optim.Optimizer) -> None:
    """Tells learning-rate schedules that the optimizer has stepped; they warn otherwise."""
    optimizer._opt_called = True  # type: ignore[attr-defined]  # torch's own, undeclared


__all__ = [
    "TracingContext",
    "aot_autograd",
    "aot_export_joint_with_descriptors",
    "check_version",
    "core_aten_decompositions",
    "descriptors",
    "get_decompositions",
    "map_aggregate",
    "note_optimizer_step",
    "qualified_name",
    "run_and_save_rng_state",
    "run_with_rng_state",
    "storage_key",
    "unroll_recurrent_layers",
    "unset_fake_temporarily",
    "weak_storage",
    "without_mkldnn",
]
