"""umd.Assert: it runs though nobody reads it, and its error names the node."""

from __future__ import annotations

import numpy as np
import pytest

import umd_core as umd
from umd_core.dtypes import bool_, float32
from umd_core.encoding import decode
from umd_core.errors import IndexRangeError
from umd_core.ir import Graph, TensorDesc
from umd_core.passes import optimise

DEVICE = umd.open_device("sim:0")


def asserting(shape: tuple[int, ...] = ()) -> Graph:
    """Returns a graph that doubles y and asserts x."""
    graph = Graph("asserting")
    x, y = graph.input("x", TensorDesc(bool_, shape)), graph.input("y", TensorDesc(float32, (2,)))
    graph.add("Neg", [y])  # which nobody reads
    graph.add("umd.Assert", [x], {"message": "not so"}, name="assertion: not so", source="model.py:7")
    graph.output(graph.add("Add", [y, y]))
    return graph


@pytest.mark.parametrize("cleaned", [True, False])
def test_it_runs_though_nobody_reads_it(cleaned: bool) -> None:
    graph = asserting((2, 3))
    program = umd.translate(optimise(graph).graph if cleaned else graph)
    assert "assertion: not so" in {info.node for info in decode(bytes(program)).debug}
    assert sorted(k.row.name for k in program.kernels)[:2] == ["elementwise_add_kernel", "elementwise_select_kernel"]
    condition, y = np.ones((2, 3), np.bool_), np.ones(2, np.float32)
    assert DEVICE.run(program, [condition, y])[0].numpy().tolist() == [2, 2]
    condition[1, 2] = False
    with pytest.raises(IndexRangeError, match=r"node 'assertion: not so' from model\.py:7") as caught:
        DEVICE.run(program, [condition, y])
    facts = caught.value.facts()
    assert (facts["value"], facts["extent"], facts["node"], facts["source"]) == (
        1,
        1,
        "assertion: not so",
        "model.py:7",
    )


def test_the_condition_comes_out_as_it_was() -> None:
    for shape in ((), (3,), (0, 2)):
        (result,) = DEVICE.run(umd.translate("umd.Assert", [TensorDesc(bool_, shape)]), [np.ones(shape, np.bool_)])
        assert result.numpy().shape == shape
        assert result.numpy().all()


def test_an_index_whose_sign_was_cleared_has_it_again() -> None:
    signless = np.iinfo(np.int64).max
    for index, bounds in ((-1, "[0, 3)"), (-3, "[0, 3)"), (-4, "[-3, 3)"), (3, "[-3, 3)"), (-(2**62), "[-3, 3)")):
        given = np.array([index & signless if index < 0 else index])
        program = umd.translate("Gather", [np.zeros(3, np.float32), given])
        with pytest.raises(IndexRangeError) as caught:
            DEVICE.run(program, [np.zeros(3, np.float32), given])
        assert (caught.value.value, caught.value.extent) == (index, 3)
        assert f"index {index} is outside {bounds}" in str(caught.value)
