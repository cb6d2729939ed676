"""The examples that train on real data, in short form, beside torch's own."""

from __future__ import annotations

import contextlib
import copy
import itertools
from types import ModuleType

import pytest
import torch

from tests.torch.test_torch_examples import module
from umd_torch.torch_private import without_mkldnn


@pytest.fixture(scope="module")
def characters() -> ModuleType:
    return module("examples/character_gpt.py")


def test_a_character_model_trains_as_torch_does(characters: ModuleType) -> None:
    """The losses differ by no more than ten times what torch's own runs differ by: with mkldnn, without, in float64."""
    ids, alphabet = characters.text()
    torch.manual_seed(0)
    first = characters.Gpt(len(alphabet))
    batches = list(characters.batches(ids, 30))
    torch_s = []
    for mkldnn, dtype in itertools.product((True, False), (torch.float32, torch.float64)):
        step = characters.by_torch(copy.deepcopy(first).to(dtype))
        with contextlib.nullcontext() if mkldnn else without_mkldnn():
            torch_s.append(torch.tensor([step(*batch).item() for batch in batches]))
    spread = max(float((a - b).abs().max()) for a, b in itertools.combinations(torch_s, 2))
    step = characters.on_device(first, "sim:0")
    ours = torch.tensor([step(*batch).item() for batch in batches])
    assert (ours - torch_s[0]).abs().max() <= 10 * max(spread, 1e-6)
    assert ours[-1] < 0.75 * ours[0]


def test_the_character_example(characters: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = characters.main("sim:0", 4)
    assert ours == pytest.approx(theirs, rel=1e-5)
    shown = capsys.readouterr().out
    assert "different ones" in shown
    assert f"{ours[-1]:.6f}" in shown


def test_the_tagging_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert module("examples/tag_sequences.py").main("sim:0", 60) > 0.9
    assert "right tags of new sequences" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")  # of transformers and of torch about it
def test_the_streaming_example(capsys: pytest.CaptureFixture[str]) -> None:
    module("examples/stream_text.py").main("sim:0", 20, 12)
    shown = capsys.readouterr().out
    assert "The statement " in shown
    assert "12 characters, 12 round trips, 2 programs" in shown
