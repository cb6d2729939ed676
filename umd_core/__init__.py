"""umd: a user-mode driver for tensors. Ops in, compact command buffers out, any backend runs them.

Example:
    >>> import umd_core as umd
    >>> dev = umd.open_device("sim:0")
    >>> cb = umd.translate("Add", [x, y])
    >>> raw = bytes(cb)
    >>> z, = dev.run(cb, [x, y])
"""

from umd_core.commands import CommandBuffer
from umd_core.dtypes import DType, dtype
from umd_core.errors import Status, UmdError
from umd_core.ir import Graph, Node, TensorDesc
from umd_core.registry import devices, open_device
from umd_core.translate import translate

__all__ = [
    "CommandBuffer",
    "DType",
    "Graph",
    "Node",
    "Status",
    "TensorDesc",
    "UmdError",
    "devices",
    "dtype",
    "open_device",
    "translate",
]
