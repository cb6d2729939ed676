"""pytest plugin (entry point `umd_cuda`): the fixture `cuda_cpu`, CUDA C kernels on this machine's CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from umd_cuda.host import RawKernel, RawModule, Report


class CudaCpu:
    """What the fixture `cuda_cpu` returns: CuPy's RawKernel and RawModule over NumPy arrays, and a checker."""

    def __init__(self, orders: int) -> None:
        from umd_cuda import host  # noqa: PLC0415  # pytest loads this plugin in every project

        self.RawKernel: type[RawKernel] = host.RawKernel
        self.RawModule: type[RawModule] = host.RawModule
        self.orders = orders

    def check(
        self,
        kernel: RawKernel,
        grid: Sequence[int] | int,
        block: Sequence[int] | int,
        args: Sequence[Any],
        *,
        shared_mem: int = 0,
        outputs: Sequence[str | int] = (),
        orders: int | None = None,
    ) -> Report:
        """Runs the kernel in the checked build and fails the test when anything is found.

        The arrays hold the results afterwards. `outputs` names the parameters that the kernel must write wholly;
        `orders` is how many random thread orders are compared (default: --cuda-orders).
        """
        __tracebackhide__ = True
        wanted = self.orders if orders is None else orders
        report = kernel.check(grid, block, args, shared_mem=shared_mem, outputs=outputs, orders=wanted)
        if not report:
            pytest.fail(str(report), pytrace=False)
        return report


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --cuda-orders."""
    group = parser.getgroup("umd_cuda", "CUDA kernels on a CPU")
    group.addoption(
        "--cuda-orders", type=int, default=2, metavar="N", help="random thread orders that cuda_cpu.check compares"
    )


@pytest.fixture
def cuda_cpu(request: pytest.FixtureRequest) -> CudaCpu:
    """Returns CUDA C on this CPU; the test is skipped where there is no C++ compiler."""
    from umd_cuda.host.errors import NoCompilerError  # noqa: PLC0415  # pytest loads this plugin in every project
    from umd_cuda.host.toolchain import find_compiler  # noqa: PLC0415  # loaded when a test asks for it

    try:
        find_compiler()
    except NoCompilerError:
        pytest.skip("no C++ compiler")
    return CudaCpu(int(str(request.config.getoption("--cuda-orders"))))
