"""CuPy's RawKernel and RawModule over NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from umd_cuda.host.arguments import pack
from umd_cuda.host.checking import Report, run_checked
from umd_cuda.host.module import HostFunction, HostModule, Parameter
from umd_cuda.host.module import compile as compile_source

Dimensions = Sequence[int] | int


def _dimensions(value: Dimensions) -> tuple[int, ...]:
    return (int(value),) if isinstance(value, int | np.integer) else tuple(int(v) for v in value)


class RawModule:
    """A CUDA source whose kernels are called like CuPy's, with NumPy arrays; compiled when first used.

    Args:
        code: the source.
        options: NVRTC's options.
        name_expressions: instances of kernel templates: `("scale<float>", "scale<double>")`.
        name: how messages name the source.
        backend: accepted for CuPy's sake, without effect.
    """

    code: str
    options: tuple[str, ...]
    name: str
    backend: str

    def __init__(
        self,
        *,
        code: str,
        options: Sequence[str] = (),
        name_expressions: Sequence[str] | None = None,
        name: str = "kernel.cu",
        backend: str = "nvrtc",
    ) -> None:
        self.code, self.options, self.name, self.backend = code, tuple(options), name, backend
        self.name_expressions: tuple[str, ...] = tuple(name_expressions or ())
        self._modules: dict[bool, HostModule] = {}

    def compile(self, log_stream: object = None, *, checked: bool = False) -> HostModule:
        """Returns the compiled module. `log_stream` is accepted for CuPy's sake."""
        if checked not in self._modules:
            self._modules[checked] = compile_source(
                self.code, self.options, name=self.name, checked=checked, name_expressions=self.name_expressions
            )
        return self._modules[checked]

    def get_function(self, name: str) -> RawKernel:
        """Returns a kernel by name or by one of the name expressions.

        Raises:
            UnknownKernelError: there is none.
        """
        self.compile().function(name)
        return RawKernel.of_module(self, name)

    def get_global(self, name: str) -> npt.NDArray[np.uint8]:
        """Returns the bytes of a `__constant__` or `__device__` variable, to view as its dtype and read or write."""
        return np.frombuffer(self.compile().variable(name), np.uint8)


class RawKernel:
    """A kernel that is called like CuPy's: `kernel((8,), (256,), (x, y, n), shared_mem=0)`.

    Arrays must have the element type that the kernel's pointer has. A NumPy scalar must have the parameter's type; a
    Python number is converted to it, or refused where that would change what it means.
    """

    def __init__(
        self,
        code: str,
        name: str,
        options: Sequence[str] = (),
        backend: str = "nvrtc",
        *,
        source_name: str = "kernel.cu",
    ) -> None:
        self._module = RawModule(
            code=code, options=options, name_expressions=(name,), name=source_name, backend=backend
        )
        self.name = name

    @classmethod
    def of_module(cls, module: RawModule, name: str) -> RawKernel:
        """Returns a kernel of a module."""
        kernel = cls.__new__(cls)
        kernel._module, kernel.name = module, name
        return kernel

    @property
    def code(self) -> str:
        """The source."""
        return self._module.code

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The kernel's parameters, as the compiler sees them."""
        return self._function().parameters

    def compile(self, log_stream: object = None) -> None:
        """Compiles the source now.

        Raises:
            UnknownKernelError: it has no such kernel.
        """
        self._module.compile(log_stream).function(self.name)

    def _function(self, *, checked: bool = False) -> HostFunction:
        return self._module.compile(checked=checked).function(self.name)

    def __call__(
        self, grid: Dimensions, block: Dimensions, args: Sequence[Any], *, shared_mem: int = 0, seed: int = 0
    ) -> None:
        """Runs the kernel to its end. A `seed` other than 0 draws the order of blocks, warps and threads by chance."""
        function = self._function()
        packed = pack(function, tuple(args))
        function.launch(_dimensions(grid), _dimensions(block), shared_mem, packed, seed=seed)

    def check(
        self,
        grid: Dimensions,
        block: Dimensions,
        args: Sequence[Any],
        *,
        shared_mem: int = 0,
        outputs: Sequence[str | int] = (),
        orders: int = 0,
    ) -> Report:
        """Returns what the checked build finds; the arrays hold the kernel's results afterwards.

        Args:
            grid: blocks.
            block: threads in a block.
            args: the arguments.
            shared_mem: dynamic workgroup memory in bytes.
            outputs: parameters (names or positions) whose contents count as unset and must be written wholly.
            orders: how many random thread orders to run besides, and to compare.
        """
        function = self._function(checked=True)
        return run_checked(
            function, _dimensions(grid), _dimensions(block), tuple(args), shared_mem, outputs=outputs, orders=orders
        )
