"""One table: what each ATen overload becomes. Emitters hold no kernels and no shape rules; the core's ops do."""

from __future__ import annotations

from umd_torch.lowering import (
    convolution,
    creation,
    elementwise,
    indexing,
    layout,
    matrix,
    normalization,
    pooling,
    reductions,
)
from umd_torch.lowering.common import Emitter, Table

LOWERINGS: Table = {
    **creation.TABLE,
    **layout.TABLE,
    **elementwise.TABLE,
    **reductions.TABLE,
    **matrix.TABLE,
    **convolution.TABLE,
    **pooling.TABLE,
    **normalization.TABLE,
    **indexing.TABLE,
}
"""OpOverload → emitter."""

__all__ = ["LOWERINGS", "Emitter"]
