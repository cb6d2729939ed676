"""A model: a graph, what its arguments are, and its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from umd_core.errors import AttributeValueError, ShapeError
from umd_core.ir import Array, Graph, TensorDesc
from umd_model.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of the graph.

    Attributes:
        value: the graph's name for it.
        name: the user's name for it, or the weight's.
        weight: whether it is one of the model's weights.
    """

    value: str
    name: str
    weight: bool


@dataclass(frozen=True, slots=True)
class Model:
    """A model that can be run with new inputs.

    Attributes:
        graph: for the stored sizes; its inputs are `arguments`, in order.
        weights: by name.
        outputs: names of the first results, as many as the user gets.
        updates: weights that a run changes: index of the result, and the weight's name.
        sizes: what the model leaves open.
        producer: what made the file.
        programs: encoded programs for the stored sizes, by SHA-256, in hexadecimal.
    """

    graph: Graph
    arguments: tuple[Argument, ...]
    weights: Mapping[str, Array]
    outputs: tuple[str, ...]
    updates: tuple[tuple[int, str], ...] = ()
    sizes: Sizes = field(default_factory=Sizes)
    producer: str = ""
    programs: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def inputs(self) -> dict[str, TensorDesc]:
        """The inputs that a run wants, by name, with the stored sizes."""
        return {a.name: self.graph.inputs[a.value] for a in self.arguments if not a.weight}

    def open_axes(self, name: str) -> dict[int, str]:
        """Returns which axes of an input are left open, and the names of their sizes."""
        (value,) = (a.value for a in self.arguments if a.name == name and not a.weight)
        rank = self.graph.inputs[value].rank
        found = {axis: self.sizes.extents(("input", value, "shape", axis)) for axis in range(rank)}
        return {axis: size for axis, size in found.items() if size is not None}

    def sizes_of(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """Returns the open sizes that inputs of these shapes have.

        Raises:
            AttributeValueError: inputs are missing or unknown.
            ShapeError: a shape does not fit, or two inputs disagree.
        """
        wanted = self.inputs
        for name in (*shapes, *wanted):
            if name not in wanted or name not in shapes:
                detail = "is missing" if name in wanted else "is not an input of the model"
                raise AttributeValueError(
                    "run", name, detail, value=tuple(shapes), wanted=f"inputs {', '.join(wanted)}"
                )
        found: dict[str, int] = {}
        for name, shape in shapes.items():
            desc, open_axes = wanted[name], self.open_axes(name)
            fits = len(shape) == desc.rank and all(
                axis in open_axes or extent == desc.shape[axis] for axis, extent in enumerate(shape)
            )
            for axis, size in open_axes.items():
                fits = fits and found.setdefault(size, shape[axis]) == shape[axis]
            if not fits:
                pattern = [open_axes.get(axis, extent) for axis, extent in enumerate(desc.shape)]
                detail = f"is {list(shape)}; [{', '.join(map(str, pattern))}] would be right"
                raise ShapeError("run", detail, input=name, shapes=[tuple(shape)])
        return found

    def graph_for(self, sizes: Mapping[str, int]) -> Graph:
        """Returns the graph for certain sizes."""
        return self.sizes.apply(self.graph, sizes) if sizes else self.graph
