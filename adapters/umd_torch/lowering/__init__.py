"""One table: what each ATen overload becomes. Emitters hold no kernels and no shape rules; the core's ops do."""

from __future__ import annotations

from typing import Any

from umd_torch.lowering import (
    attention,
    bits,
    checks,
    convolution,
    creation,
    elementwise,
    grouped,
    indexing,
    layout,
    matrix,
    normalization,
    ordering,
    pooling,
    random,
    reductions,
)
from umd_torch.lowering.common import Emitter, Table

LOWERINGS: Table = {
    **creation.TABLE,
    **layout.TABLE,
    **elementwise.TABLE,
    **bits.TABLE,
    **checks.TABLE,
    **reductions.TABLE,
    **ordering.TABLE,
    **matrix.TABLE,
    **attention.TABLE,
    **grouped.TABLE,
    **convolution.TABLE,
    **pooling.TABLE,
    **normalization.TABLE,
    **indexing.TABLE,
    **random.TABLE,
}
"""OpOverload → emitter."""
BY_NAME = {**grouped.BY_NAME, **elementwise.BY_NAME}
"""Name of an overload that is not declared yet when this is imported → emitter."""


def lowering_of(target: Any) -> Emitter | None:
    """Returns the emitter of an overload, of a library's own op by its name; None when there is none."""
    return LOWERINGS.get(target) or BY_NAME.get(str(target))


__all__ = ["LOWERINGS", "Emitter", "lowering_of"]
