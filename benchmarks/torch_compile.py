"""What a compiled call costs around its kernels, and how compiled models compare with torch eager. One thread each."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import statistics
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from measure import interleaved, report
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from umd_core.commands import SlotKind
from umd_core.device import Ticket
from umd_torch import close_sessions, counters, train_step
from umd_torch.compiled import boxed
from umd_torch.demo import served
from umd_torch.session import session_for
from umd_torch.torch_private import aot_autograd

DEVICE = "sim:0"
HEADER = ("call", "µs", "µs above a backend that does nothing")
SPEED = ("forward", "ms", "beside torch eager")
MEMORY = ("training step", "torch, bytes", "arena, bytes", "beside torch")
TEXT = ("generation", "tokens/s", "ms a token", "ms more than in process", "beside in process")
VIEWS = ("call", "bytes of messages", "bytes of tensors", "bytes of the base")
TOKENS = 64


class Done:
    """The ticket of work that was never to be done."""

    def done(self) -> bool:
        """Returns True."""
        return True

    def wait(self, timeout: float | None = None) -> None:
        """Returns at once."""


@contextlib.contextmanager
def without_kernels(device: Any) -> Iterator[None]:
    """Within the block submissions run nothing, so that what is left of a call is what surrounds them."""
    ticket: Ticket = Done()
    device.submit = lambda *_: ticket
    try:
        yield
    finally:
        del device.submit


def nothing(module: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Returns torch's machinery around a graph that hands out the same results every time."""

    def compiler(graph: Any, examples: Sequence[Any]) -> Callable[..., Any]:
        values = [n.meta["val"] for n in graph.graph.output_node().args[0]]
        results = [torch.empty(tuple(v.shape), dtype=v.dtype) for v in values]

        def call(arguments: list[Any]) -> list[Any]:
            arguments.clear()
            return results

        return boxed(call)

    found: Callable[..., Any] = aot_autograd(fw_compiler=compiler, inference_compiler=compiler)(module, inputs)
    return found


def mlp() -> tuple[nn.Module, dict[str, Any]]:
    """Returns three layers and their input."""
    layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 10))
    return layers, {"input": torch.randn(4, 16)}


def bert() -> tuple[nn.Module, dict[str, Any]]:
    """Returns a BERT of 12 layers, narrow so that the kernels are short, and its inputs."""
    from transformers import BertConfig, BertForSequenceClassification  # noqa: PLC0415  # takes seconds

    config = BertConfig(
        vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=12, num_attention_heads=4,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForSequenceClassification(config), {
        "input_ids": torch.randint(0, 99, (2, 8)), "attention_mask": torch.ones(2, 8, dtype=torch.int64),
    }  # fmt: skip


def cpu_time(works: Mapping[str, Callable[[], object]], number: int, repeat: int = 21) -> dict[str, float]:
    """Returns the median seconds of CPU time a call, measured in turn: what a call costs on a machine of its own."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeat):
        for name, work in works.items():
            start = time.process_time()
            for _ in range(number):
                work()
            times[name].append((time.process_time() - start) / number)
    return {name: statistics.median(values) for name, values in times.items()}


def overhead() -> None:
    """Prints µs of a compiled call without its kernels, beside a backend that does nothing."""
    device = session_for(DEVICE).device
    rows = []
    for name, build, number in (("MLP forward", mlp, 300), ("BERT forward", bert, 60)):
        model, inputs = build()
        model.eval()
        works: dict[str, Callable[[], object]] = {}
        given: Any
        for label, backend, given in (("nothing", nothing, None), ("umd", "umd", {"device": DEVICE, "strict": True})):
            compiled = torch.compile(model, backend=backend, options=given)
            works[label] = functools.partial(compiled, **inputs)
            works[label]()
        with without_kernels(device):
            times = cpu_time(works, number)
        rows += [(f"{name}, {label}", 1e6 * t, 1e6 * (t - times["nothing"])) for label, t in times.items()]
    report("torch_overhead", "CPU time of a compiled call without its kernels, in process", HEADER, rows)


def zoo() -> Any:
    """Returns the module of the tests' models."""
    spec = importlib.util.spec_from_file_location("zoo", Path(__file__).parents[1] / "tests" / "torch" / "zoo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["zoo"] = module
    spec.loader.exec_module(module)
    return module


def models(zoo: Any) -> dict[str, tuple[nn.Module, torch.Tensor, Callable[[Any, torch.Tensor], torch.Tensor]]]:
    """Returns ResNet-18 and a GPT in sizes at which kernels decide, with an input and a loss."""
    ids = torch.randint(0, 99, (8, 64))
    return {
        "ResNet-18": (zoo.ResNet18(32), torch.randn(4, 3, 64, 64), lambda y, _: y.square().mean()),
        "GPT": (
            zoo.Gpt(99, 64, 128, 4), ids,
            lambda y, x: functional.cross_entropy(y.flatten(0, 1), x.flatten()),
        ),
    }  # fmt: skip


def forward(zoo: Any) -> None:
    """Prints ms of a compiled forward, beside torch eager."""
    rows = []
    for name, (model, x, _) in models(zoo).items():
        model.eval()
        compiled = torch.compile(model, backend="umd", options={"device": DEVICE, "strict": True})
        works = {"torch eager": functools.partial(model, x), "umd": functools.partial(compiled, x)}
        times = interleaved(works, repeat=21)
        rows += [(f"{name}, {label}", 1e3 * t, t / times["torch eager"]) for label, t in times.items()]
    report("torch_forward", "Forward on sim:0 in process", SPEED, rows)


class Live(TorchDispatchMode):
    """Counts the bytes of storages that torch makes within the block, while they live.

    Attributes:
        peak: the most at a time.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.now = self.peak = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in given and storage not in self._known:
                    self._known.add(storage)
                    self.now += storage.nbytes()
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self._gone, storage.nbytes())
        return result

    def _gone(self, size: int) -> None:
        self.now -= size


def memory(zoo: Any) -> None:
    """Prints the arena of a whole training step beside the bytes that torch has live at most in one."""
    rows = []
    for name, (model, x, loss) in models(zoo).items():
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        with torch.enable_grad(), Live() as live:
            loss(model(x), x).backward()
            optimizer.step()
        optimizer.zero_grad()
        program = train_step(model, loss, optimizer, device=DEVICE).program(x, x)
        arena = max(slot.length for slot in program.command_buffer.slots if slot.kind == SlotKind.ARENA)
        rows.append((name, live.peak, arena, arena / live.peak))
    report("torch_memory", "Transient bytes of a training step", MEMORY, rows)


def views() -> None:
    """Prints the bytes that a remote call sends of a view, and how many its whole tensor has."""
    rows = []
    base = torch.randn(25_000_000)
    with served() as address:
        device = f"grpc://{address}/sim:0"
        double: Any = torch.compile(lambda x: x * 2, backend="umd", options={"device": device, "strict": True})
        for name, view in (("base[:250]", base[:250]), ("base[::100000]", base[::100_000])):
            remote: Any = session_for(device).device
            double(view)
            before = remote.bytes_up, counters.bytes_up
            double(view)
            rows.append((name, remote.bytes_up - before[0], counters.bytes_up - before[1], 4 * base.numel()))
        close_sessions()
    report("torch_views", "What a call sends through gRPC  [goal: 8,192]", VIEWS, rows)


def llama() -> Any:
    """Returns a Llama of 4 layers, 256 wide."""
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415  # takes seconds

    config = LlamaConfig(
        vocab_size=99, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, eos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def gpt2() -> Any:
    """Returns GPT-2 in the size of its smallest published model, 124 million parameters, with random ones."""
    from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415  # takes seconds

    return GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=None))


GENERATED: Mapping[str, tuple[Callable[[], Any], int]] = {"Llama, 256 wide": (llama, 9), "GPT-2, 124M": (gpt2, 5)}
"""By name: what makes a model, and how often its generation is measured."""


def generating(build: Callable[[], Any], device: str) -> Callable[[], object]:
    """Returns what generates greedily with a static cache, once it has been compiled."""
    torch.manual_seed(0)
    model = build()
    model.eval()
    call: Any = torch.compile(model.forward, backend="umd", options={"device": device, "strict": True})

    def run(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    run.__signature__ = inspect.signature(model.forward)  # type: ignore[attr-defined]  # generate looks at it
    model.forward = run
    ids = torch.arange(3, 11)[None]
    generate = functools.partial(
        model.generate, ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False,
        pad_token_id=0, cache_implementation="static", disable_compile=True,
    )  # fmt: skip
    generate()
    return generate


def generation() -> None:
    """Prints tokens a second in process and through a server, and what the way through it adds to a token."""
    rows: list[tuple[Any, ...]] = []
    for name, (build, repeat) in GENERATED.items():
        with contextlib.ExitStack() as stack:
            remote = f"grpc://{stack.enter_context(served())}/sim:0"
            works = {label: generating(build, device) for label, device in (("in process", DEVICE), ("gRPC", remote))}
            times = interleaved(works, repeat=repeat)
            device: Any = session_for(remote).device
            round_trip = interleaved({"": device.synchronize}, number=50, repeat=9)[""]
            close_sessions()
        near = times["in process"]
        rows += [
            (f"{name}, {label}", TOKENS / t, 1e3 * t / TOKENS, 1e3 * (t - near) / TOKENS, near / t)
            for label, t in times.items()
        ]
        rows.append((f"{name}, a round trip with nothing in it", "", 1e3 * round_trip, "", ""))
    report("torch_generation", f"Greedy generation, static cache, {TOKENS} tokens  [goal: 0.95]", TEXT, rows)


PARTS: Mapping[str, Callable[[], None]] = {
    "overhead": overhead,
    "forward": lambda: forward(zoo()),
    "memory": lambda: memory(zoo()),
    "views": views,
    "generation": generation,
}


def main() -> None:
    """Prints every table, or those that are named."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with torch.no_grad():
        for name, part in PARTS.items():
            if name in (sys.argv[1:] or PARTS):
                part()


if __name__ == "__main__":
    main()
