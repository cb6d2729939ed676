"""Orders in which a program's commands may run, and devices of several threads."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.core.device_samples import bound, contents, example_device
from tests.core.noting_device import negations
from umd_core.device import Program, SequentialDevice, legal_order
from umd_core.device.order import command_order
from umd_core.testing.programs import exact_rows, random_arguments, random_program, reference_run
from umd_core.testing.recording import Recording


@given(seed=st.integers(0, 2**32))
def test_other_legal_orders_give_the_same_result(seed: int) -> None:
    generator = np.random.default_rng(seed)

    class Shuffling(type(example_device())):  # type: ignore[misc]  # the example is imported by path
        pick = staticmethod(random.Random(seed).randrange)

        def order(self, program: Program) -> list[int]:
            return legal_order(program, self.pick)

    device: SequentialDevice = Shuffling("shuffling:0")
    program = random_program(generator, exact_rows(device.caps().supports), 12)
    arguments = random_arguments(generator, program)
    wanted = [array.tobytes() for array in reference_run(program, arguments)]
    bindings = bound(device, *arguments)
    device.submit(device.load(program), bindings).wait()
    assert [contents(device, binding) for binding in bindings] == wanted


def test_a_missing_dependency_shows_in_some_order() -> None:
    command_buffer = negations([(0, 1), (1, 2)], 3)
    command_buffer.commands[1] = command_buffer.commands[1]._replace(deps=())
    orders = {tuple(command_order(command_buffer.commands, random.Random(seed).randrange)) for seed in range(20)}
    assert orders == {(0, 1), (1, 0)}


def test_barriers_order_everything() -> None:
    recording = Recording()
    slots = [recording.argument() for _ in range(4)]
    for slot in slots[:2]:
        recording.fill((slot, 0, 8), b"a")
    recording.barrier()
    for slot in slots[2:]:
        recording.fill((slot, 0, 8), b"a")
    orders = [command_order(recording.commands, random.Random(seed).randrange) for seed in range(30)]
    assert {tuple(sorted(order[:2])) for order in orders} == {(0, 1)}
    assert {order[2] for order in orders} == {2}
    assert len({tuple(order) for order in orders}) == 4


def test_devices_of_many_threads_do_not_meet() -> None:
    """Each thread owns a device; what they share is only what the core caches."""

    def work(seed: int) -> bool:
        device = example_device(str(seed))
        generator = np.random.default_rng(seed)
        rows = exact_rows(device.caps().supports)
        for _ in range(4):
            program = random_program(generator, rows, 8)
            arguments = random_arguments(generator, program)
            wanted = [array.tobytes() for array in reference_run(program, arguments)]
            bindings = bound(device, *arguments)
            loaded = device.load(program)
            for _ in range(3):
                for binding, array in zip(bindings, arguments, strict=True):
                    device.write(binding.buffer, 0, array)
                device.submit(loaded, bindings).wait()
                if [contents(device, binding) for binding in bindings] != wanted:
                    return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))
