"""`generate` of transformers with a compiled forward: tokens beside torch's, compiles, round trips, bytes a token."""

from __future__ import annotations

import copy
import functools
import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters as torch_counters

from umd_torch import counters, session

TOKENS, PROMPT, VOCABULARY = 64, 8, 99
DECODER = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"n_positions": 128, "n_embd": 32, "n_layer": 2, "n_head": 4}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", DECODER),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", DECODER),
}

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and of torch about it


@functools.cache
def built(name: str) -> Any:
    import transformers

    model, config, settings = MODELS[name]
    torch.manual_seed(0)
    # start and end tokens that nothing reaches, so that every run has as many tokens
    made = getattr(transformers, config)(vocab_size=VOCABULARY, bos_token_id=1, eos_token_id=None, **settings)
    return getattr(transformers, model)(made).eval()


def generate(model: Any, cache: str, tokens: int = TOKENS) -> torch.Tensor:
    ids = torch.arange(3, 3 + PROMPT)[None]
    keywords = {"cache_implementation": "static"} if cache == "static" else {}
    found: torch.Tensor = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, use_cache=True,
        pad_token_id=0, disable_compile=True, **keywords,
    )  # fmt: skip
    return found


@dataclass
class Traced:
    """What each call of a compiled forward took: round trips, bytes up, bytes down."""

    calls: list[tuple[int, int, int]] = field(default_factory=list)


def compiled(name: str, device: str) -> tuple[Any, Traced]:
    """Returns a copy of a model whose forward is compiled for a device, and what its calls take."""
    model, traced = copy.deepcopy(built(name)), Traced()
    forward: Any = torch.compile(model.forward, backend="umd", options={"device": device, "strict": True})

    def call(*args: Any, **kwargs: Any) -> Any:
        before = (counters.round_trips, counters.bytes_up, counters.bytes_down)
        result = forward(*args, **kwargs)
        after = (counters.round_trips, counters.bytes_up, counters.bytes_down)
        traced.calls.append(tuple(a - b for a, b in zip(after, before, strict=True)))  # type: ignore[arg-type]  # three each
        return result

    call.__signature__ = inspect.signature(model.forward)  # type: ignore[attr-defined]  # generate looks at it
    model.forward = call
    torch_counters.clear()
    return model, traced


@functools.cache
def wanted(name: str, cache: str) -> torch.Tensor:
    return generate(copy.deepcopy(built(name)), cache)


@pytest.mark.parametrize("cache", ["static", "dynamic"])
@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_torch_s(name: str, cache: str) -> None:
    model, traced = compiled(name, "sim:0")
    assert torch.equal(generate(model, cache), wanted(name, cache))
    assert len(traced.calls) == TOKENS
    assert {trips for trips, _, _ in traced.calls} == {1}
    assert torch_counters["stats"]["unique_graphs"] <= 3
    assert not counters.fallbacks
    assert not any(up for _, up, _ in traced.calls)  # the device sees host memory


@pytest.mark.parametrize("name", MODELS)
def test_a_static_cache_stays_on_the_device(name: str, plain: str) -> None:
    model, traced = compiled(name, plain)
    assert torch.equal(generate(model, "static"), wanted(name, "static"))
    assert counters.programs == 2  # one for the prompt, one for every token after it
    assert {trips for trips, _, _ in traced.calls} == {1}
    logits = 4 * VOCABULARY
    for _, up, down in traced.calls[3:]:
        assert up <= 256  # the token, its position, the mask
        assert down - logits <= 1024  # the token's own keys and values
    assert counters.stale == 0


@pytest.mark.parametrize("name", MODELS)
def test_a_dynamic_cache_stays_on_the_device(name: str, plain: str) -> None:
    """It grows with every token, and still only the token's own keys and values travel."""
    tokens = 16
    model, traced = compiled(name, plain)
    assert torch.equal(generate(model, "dynamic", tokens), wanted(name, "dynamic")[:, : PROMPT + tokens])
    assert torch_counters["stats"]["unique_graphs"] <= 3  # the prompt, the first token, every length after it
    assert counters.recompiles == torch_counters["stats"]["unique_graphs"] - 1
    assert {trips for trips, _, _ in traced.calls} == {1}
    logits = 4 * VOCABULARY
    for _, up, down in traced.calls[2:]:
        assert up <= 256
        assert down - logits <= 1024
    assert counters.returned == 4 * (tokens - 2)  # keys and values of two layers
    assert counters.stale == 0
    programs = counters.programs
    generate(model, "dynamic", tokens)
    # lengths that were there before are not translated again, but for the first token's, which had a graph of its own
    assert counters.programs <= programs + 1


def test_a_dynamic_cache_that_the_host_changed_is_sent_again(plain: str) -> None:
    from transformers import DynamicCache

    found: list[list[torch.Tensor]] = []
    for model in (compiled("llama", plain)[0], copy.deepcopy(built("llama"))):
        cache = DynamicCache(config=model.config)
        ids = torch.arange(3, 3 + PROMPT)[None]
        logits: list[torch.Tensor] = []
        with torch.no_grad():
            for step in range(8):
                counters.reset()
                logits.append(model(ids, past_key_values=cache, use_cache=True).logits[:, -1])
                ids = logits[-1][:, None].argmax(-1)
                if step == 4:
                    layers: Any = cache.layers
                    layers[0].keys[..., 0] *= 2
                    layers[1].values.numpy()[...] += 1
        found.append(logits)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def remote() -> Iterator[str]:
    """The name of a device of a server in another process."""
    command = [sys.executable, "-m", "umd_grpc.server", "--device", "sim:0", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        name = f"grpc://{json.loads(process.stdout.readline())['listen'][0]}/sim:0"
        yield name
        session._SESSIONS.pop(name).device.close()
        process.terminate()


@pytest.mark.parametrize("cache", ["static", "dynamic"])
def test_through_a_server(cache: str, remote: str) -> None:
    model, traced = compiled("llama", remote)
    assert torch.equal(generate(model, cache), wanted("llama", cache))
    assert {trips for trips, _, _ in traced.calls} == {1}
    assert sum(up for _, up, _ in traced.calls[3:]) < 256 * TOKENS
    assert sum(down for _, _, down in traced.calls[3:]) < 1500 * TOKENS


def test_the_host_s_cache_is_what_torch_s_is(plain: str) -> None:
    """Whoever looks at the cache between tokens sees the keys and values of all of them."""
    from transformers import StaticCache

    caches: list[Any] = []
    for model in (compiled("llama", plain)[0], copy.deepcopy(built("llama"))):
        cache = StaticCache(config=model.config, max_cache_len=24)
        ids = torch.arange(3, 3 + PROMPT)[None]
        with torch.no_grad():
            for _ in range(6):
                logits = model(ids, past_key_values=cache, use_cache=True).logits
                ids = logits[:, -1:].argmax(-1)
        caches.append(cache)
    for mine, theirs in zip(caches[0].layers, caches[1].layers, strict=True):
        torch.testing.assert_close(mine.keys, theirs.keys, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(mine.values, theirs.values, rtol=1e-5, atol=1e-6)
        assert torch.equal(mine.cumulative_length, theirs.cumulative_length)


Check = Callable[[torch.Tensor, torch.Tensor], Any]


def test_a_cache_that_the_host_changed_is_sent_again(plain: str) -> None:
    def append(cache: torch.Tensor, new: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(1, at, new)
        return cache.sum(1)

    function: Any = torch.compile(append, backend="umd", options={"device": plain, "strict": True})
    mine, theirs = torch.zeros(2, 16, 64), torch.zeros(2, 16, 64)
    with torch.no_grad():
        for step in range(5):
            if step == 3:
                for cache in (mine, theirs):
                    cache[:, 0] += 1
            counters.reset()
            new, at = torch.randn(2, 1, 64), torch.tensor([step])
            torch.testing.assert_close(function(mine, new, at), append(theirs, new, at))
            assert torch.equal(mine, theirs)
            assert counters.uploads == (step in (0, 3))
            assert counters.bytes_down < 1200  # the result, and nothing of the cache: the host has what went in
