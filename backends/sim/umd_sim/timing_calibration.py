"""Calibration: a profile rewritten from measurements of any device.

What is measured, in this order, each in terms of what is known by then:

1. what a launch takes that does nearly nothing;
2. bandwidths: a negation of ever more elements, from what fits into the smallest cache to what fits into none;
3. arithmetic, matrix products and functions, where their operands are near;
4. for each kernel family its own launch, and how its time compares with the roof;
5. whole programs that nothing was fitted to, beside their estimates: what the profile then says of its error.

A program repeats a launch so often that handing it over no longer matters; of several runs the quickest counts, so that
other work on the machine does not. How many processors a device has, and what they hold, is the base profile's.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from umd_core.commands import CommandBuffer, Dispatch
from umd_core.device import Binding, Device
from umd_core.dtypes import BY_NAME
from umd_core.errors import DTypeError, UnsupportedError
from umd_core.ir import Array, Graph
from umd_core.kernels.costs import Cost, cost
from umd_core.ops import op_template
from umd_core.translate import op_graph, translator
from umd_sim.timing import ENOUGH, estimate, fill, modelled
from umd_sim.timing_cases import CASES, FUNCTION_OPS, HELD_OUT, Case, chained, numbers, repeated
from umd_sim.timing_profile import ANY, UNKNOWN_ERROR, Cache, Profile

Clock = Callable[[], float]
COPIES = 32
"""Launches of a program whose launches are short."""
NEAR = 1 << 14
"""Float32 elements whose bytes are near any processor."""
SWEEP = tuple(1 << bits for bits in range(12, 26, 2))
"""Float32 elements of the launches that bandwidths come from: 16 KiB to 64 MiB, read and written."""
FASTER = 1.1
"""How many times as fast as the next larger memory a cache is, at least."""
SEEN = 1.5
"""How many launches long a command is at least for its work to be told from its launch."""
PRODUCT_TYPES = ("float32", "float64", "float16", "bfloat16", "int32")
LONG_ENOUGH = 0.004
"""Seconds that one matrix product takes at least when its rate is measured, unless it has `LARGEST_SIDE` rows."""
SMALLEST_SIDE, LARGEST_SIDE = 256, 8192


class Progress(NamedTuple):
    """A step of a calibration, done out of how many."""

    name: str
    done: int
    steps: int


class Calibration:
    """Measures a device.

    Args:
        device: what is measured.
        base: what is not measured is as it says.
        patience: seconds that each measurement goes on for.
        clock: tells seconds.
    """

    def __init__(
        self, device: Device, base: Profile, *, patience: float = 0.1, clock: Clock = time.perf_counter
    ) -> None:
        self._device, self._clock, self._patience = device, clock, patience
        self._translator = translator(device.caps())
        nothing: dict[str, float] = {}
        self.profile: Profile = replace(
            base, efficiency=nothing, launches=nothing, launch=0.0, memory=device.caps().memory
        )

    def run(self) -> Iterator[Progress]:
        """Measures step by step; `profile` has the result when the steps are over.

        Raises:
            UnsupportedError: the device lacks what every calibration needs: a negation, a sum, a product of matrices.
        """
        steps: list[tuple[str, Callable[[], None]]] = [
            ("launch", self._launch),
            ("bandwidth", self._bandwidths),
            ("arithmetic", self._arithmetic),
            ("matrix products", self._products),
            ("functions", self._functions),
            *((f"{case.family} kernels", functools.partial(self._family, case)) for case in CASES),
            ("programs beside their estimates", self._held_out),
        ]
        for number, (name, step) in enumerate(steps):
            yield Progress(name, number, len(steps))
            step()
        yield Progress("done", len(steps), len(steps))

    # the steps

    def _launch(self) -> None:
        one = self._translator.op("Add", [numbers(1), numbers(1)], {})
        self.profile = replace(self.profile, launch=self._seconds(one, [numbers(1), numbers(1)]))

    def _bandwidths(self) -> None:
        found: list[Cache] = []
        for count in SWEEP:
            array = numbers(count)
            buffer = self._translator.op("Neg", [array], {})
            moved = 2 * array.nbytes
            saturation = min(1.0, fill(_only(buffer).launch, self.profile).occupancy / ENOUGH)
            seconds = self._seconds(buffer, [array], COPIES if count <= NEAR << 4 else 1)
            if seconds >= SEEN * self.profile.launch or count == SWEEP[-1]:
                found.append(Cache(moved, moved / self._worked(seconds) / saturation))
        self.profile = replace(self.profile, bandwidth=found[-1].bandwidth, caches=_levels(found))

    def _arithmetic(self) -> None:
        rates: dict[str, float] = {}
        for dtype in ("float32", "float64"):
            with contextlib.suppress(UnsupportedError, DTypeError):  # the device lacks the type: float32's rate stands
                rates[dtype] = self._chain_rate(dtype)
        self.profile = replace(self.profile, arithmetic=rates or self.profile.arithmetic)

    def _chain_rate(self, dtype: str) -> float:
        """Returns simple operations a second in a fused chain, or in a sum where the device has no chains."""

        def make(count: int) -> tuple[CommandBuffer, Sequence[Array]]:
            graph, arrays = chained(count, dtype)
            buffer = self._translator.graph(graph)
            if len(buffer.commands) == 1:
                return buffer, arrays
            return self._translator.op("Add", arrays, {}), arrays

        return self._rate(make)

    def _products(self) -> None:
        rates: dict[str, float] = {}
        for dtype in PRODUCT_TYPES:
            with contextlib.suppress(UnsupportedError, DTypeError):  # the device lacks the type: float32's rate stands
                rates[dtype] = self._product_rate(dtype)
        self.profile = replace(self.profile, products=rates)

    def _product_rate(self, dtype: str) -> float:
        side = SMALLEST_SIDE
        while True:
            arrays: list[Array] = [numbers(side, side).astype(BY_NAME[dtype].numpy) for _ in range(2)]
            buffer = self._translator.op("MatMul", arrays, {})
            seconds = self._worked(self._seconds(buffer, arrays, 1))
            if seconds >= LONG_ENOUGH or side >= LARGEST_SIDE:
                return _asked(buffer).products / seconds / fill(_only(buffer).launch, self.profile).balance
            side *= 2

    def _functions(self) -> None:
        rates: dict[str, float] = {}
        for name, op in FUNCTION_OPS.items():
            with contextlib.suppress(UnsupportedError):  # what the device lacks goes at the rate of the others
                rates[name] = self._rate(functools.partial(self._function, op))
        middle = sorted(rates.values())[len(rates) // 2] if rates else self.profile.functions[ANY]
        self.profile = replace(self.profile, functions={ANY: middle, **rates})

    def _function(self, op: str, count: int) -> tuple[CommandBuffer, Sequence[Array]]:
        arrays = [numbers(count)] * len(op_template(op).inputs)
        return self._translator.op(op, arrays, {}), arrays

    def _family(self, case: Case) -> None:
        """Finds a family's own launch, and how it compares with its roof: a line through two sizes."""
        with contextlib.suppress(UnsupportedError):  # the device lacks the kernel, and runs others instead
            (quick, low), (slow, high) = self._main(case, case.small), self._main(case, case.large)
            efficiency = max(high - low, high / 2) / max(slow - quick, slow / 100)
            launch = max(0.0, quick - low / efficiency)
            self.profile = replace(
                self.profile,
                launches={**self.profile.launches, case.family: launch},
                efficiency={**self.profile.efficiency, case.family: efficiency},
            )

    def _main(self, case: Case, scale: int) -> tuple[float, float]:
        """Returns the seconds that the launches of the case's family take, and their roof; both for one launch.

        Raises:
            UnsupportedError: the device runs the op without such a kernel.
        """
        arrays = list(case.inputs(scale))
        graph = op_graph(case.op, arrays, case.attributes)
        buffer = self._translator.graph(graph)
        seconds = self._seconds(buffer, _arguments(arrays, graph), COPIES if scale == case.small else 4)
        roofs: list[float] = []
        for command in buffer.commands:
            if isinstance(command, Dispatch) and buffer.kernels[command.kernel].row.family == case.family:
                one = modelled(buffer.kernels[command.kernel], command.parameters, command.launch, self.profile)
                roofs.append(max(one.compute, one.memory))
            else:
                seconds -= self.profile.launch
        if not roofs:
            raise UnsupportedError("runs the op without it", kernel=case.family, device=self._device.name)
        return seconds / len(roofs), sum(roofs) / len(roofs)

    def _held_out(self) -> None:
        """Says how the estimates of programs that nothing was fitted to compare with their times."""
        found: list[str] = []
        for make in HELD_OUT:
            graph, arrays = make()
            with contextlib.suppress(UnsupportedError):  # the device cannot run it
                buffer = self._translator.graph(graph)
                ratio = estimate(buffer, self.profile).seconds / self._seconds(buffer, arrays, 1)
                found.append(f"{graph.name} {ratio:.2f}")
        told = f"estimate by measured time of programs that nothing was fitted to: {', '.join(found)}"
        self.profile = replace(self.profile, error=told if found else UNKNOWN_ERROR)

    # measuring

    def _rate(self, make: Callable[[int], tuple[CommandBuffer, Sequence[Array]]]) -> float:
        """Returns operations a second beyond the launch: of as many elements as it takes for these to be seen.

        `make` gives a program of one launch, and its arguments, for a number of elements.
        """
        count = NEAR
        while True:
            buffer, arrays = make(count)
            seconds = self._seconds(buffer, arrays, COPIES if count == NEAR else 4)
            if seconds >= SEEN * self.profile.launch or count >= SWEEP[-1]:
                balance = fill(_only(buffer).launch, self.profile).balance
                return _asked(buffer).operations / self._worked(seconds) / balance
            count *= 4

    def _worked(self, seconds: float) -> float:
        """Returns what is left of a command's time after its launch, a tenth of it at least."""
        return max(seconds - self.profile.launch, seconds / 10)

    def _seconds(self, buffer: CommandBuffer, arrays: Sequence[Array], copies: int = COPIES) -> float:
        """Returns the seconds of one pass through a program: the quickest of many runs, each of `copies` passes."""
        program = self._device.load(repeated(buffer, copies))
        made = [self._device.allocate(desc.byte_size) for desc in (*buffer.inputs, *buffer.outputs)]
        try:
            for target, array in zip(made, arrays, strict=False):
                self._device.write(target, 0, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
            bindings = [Binding(one, 0, one.size) for one in made]
            return min(self._runs(program, bindings)) / copies
        finally:
            for one in made:
                self._device.free(one)

    def _runs(self, program: Any, bindings: Sequence[Binding]) -> Iterator[float]:
        """Yields the seconds of runs, three at least, until patience ends; the first run is not counted."""
        self._device.submit(program, bindings).wait()
        begun, count = self._clock(), 0
        while count < 3 or self._clock() - begun < self._patience:
            start = self._clock()
            self._device.submit(program, bindings).wait()
            yield self._clock() - start
            count += 1


def calibrate(device: Device, base: Profile, *, patience: float = 0.1, clock: Clock = time.perf_counter) -> Profile:
    """Returns `base` rewritten from measurements of a device; see `Calibration`."""
    calibration = Calibration(device, base, patience=patience, clock=clock)
    for _ in calibration.run():
        pass
    return calibration.profile


def _only(buffer: CommandBuffer) -> Dispatch:
    """Returns the launch of a program that is one.

    Raises:
        UnsupportedError: the device runs the op as something else.
    """
    command = buffer.commands[0]
    if len(buffer.commands) != 1 or not isinstance(command, Dispatch):
        raise UnsupportedError(f"runs an op of one launch as {len(buffer.commands)} commands")
    return command


def _asked(buffer: CommandBuffer) -> Cost:
    command = _only(buffer)
    return cost(buffer.kernels[command.kernel], command.parameters)


def _arguments(arrays: Sequence[Array], graph: Graph) -> list[Array]:
    """Returns those inputs of an op that its program takes as arguments."""
    (node,) = graph.nodes
    return [array for array, name in zip(arrays, node.inputs, strict=False) if name in graph.inputs]


def _levels(found: Sequence[Cache]) -> tuple[Cache, ...]:
    """Returns the caches among bandwidths by size: each faster than what is larger."""
    levels: list[Cache] = []
    best = found[-1].bandwidth
    for cache in reversed(found[:-1]):
        if cache.bandwidth > FASTER * best:
            levels.append(cache)
            best = cache.bandwidth
    return tuple(reversed(levels))
