"""A decoder in another language, written from docs/command-buffer.md alone, agrees with ours."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.core.chain_samples import PROGRAMS, WELL_FORMED, chained
from tests.core.random_buffers import command_buffers, damaged
from umd_core.commands import Command, CommandBuffer, Dispatch, Fill, Mark, Update, refs_of
from umd_core.encoding import decode, encode
from umd_core.errors import DecodeError

ROOT = Path(__file__).parents[2]
GOLDEN = sorted(path for path in (ROOT / "tests" / "golden").rglob("*.umdcmd") if path.name != "original.umdcmd")
EXAMPLES, MUTANTS = 250, 40


class NodeDecoder:
    """The decoder in a process of its own."""

    def __init__(self, node: str) -> None:
        command = [node, str(ROOT / "clients" / "node" / "tools" / "listing.mjs")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def read(self, raws: list[bytes]) -> list[Any]:
        """Returns what it says of each buffer."""
        to, answers = self._process.stdin, self._process.stdout
        assert to is not None
        assert answers is not None
        to.write(b"".join(len(raw).to_bytes(4, "little") + raw for raw in raws))
        to.flush()
        return [json.loads(answers.readline()) for _ in raws]

    def close(self) -> None:
        self._process.communicate(timeout=10)


@pytest.fixture(scope="module")
def decoder(node: str) -> Iterator[NodeDecoder]:
    decoder = NodeDecoder(node)
    yield decoder
    decoder.close()


def details(command: Command) -> list[Any]:
    if isinstance(command, Dispatch):
        return [command.kernel, list(command.launch), command.parameters.hex()]
    if isinstance(command, Fill):
        return [command.pattern.hex()]
    if isinstance(command, Update):
        return [command.data.hex()]
    return [command.id, command.label] if isinstance(command, Mark) else []


def listing(cb: CommandBuffer, raw: bytes) -> dict[str, Any]:
    """What the buffer holds, as the other decoder says it: numbers of 64 bits are texts."""
    kernels = [[k.row.name, k.row.abi, [t.code for t in k.types], list(k.sizes)] for k in cb.kernels]
    starts = patch_starts(cb)
    return {
        "version": int.from_bytes(raw[6:8], "little"),
        "flags": int(cb.flags),
        "compat": str(cb.compat),
        "kernels": kernels,
        "slots": [[*slot[:4], *map(str, slot[4:])] for slot in cb.slots],
        "commands": [
            [
                type(command).__name__.upper(),
                command.queue,
                list(command.deps),
                [[ref.slot, ref.access, str(ref.offset), str(ref.length)] for ref in refs_of(command)],
                *details(command),
            ]
            for command in cb.commands
        ],
        "events": [[event.signal, event.command] for event in cb.events],
        "patches": [[starts[p.command] + p.offset, int(p.kind), p.symbol, str(p.addend)] for p in cb.patches],
        "debug": [[d.op, d.node, d.source] for d in cb.debug],
    }


def patch_starts(cb: CommandBuffer) -> list[int]:
    """Where each command's data begins in DATA."""
    at, starts = sum(-(-len(constant) // 8) * 8 for constant in cb.constants), []
    for command in cb.commands:
        starts.append(at)
        at += -(-data_size(command) // 8) * 8
    return starts


def data_size(command: Command) -> int:
    if isinstance(command, Dispatch):
        return 32 + len(command.parameters)
    if isinstance(command, Fill):
        return 8
    if isinstance(command, Update):
        return len(command.data)
    return len(command.label.encode()) if isinstance(command, Mark) else 0


def verdict(raw: bytes) -> Any:
    """Our own decoder's answer; a refusal is told without its rule, for readers may check in another order."""
    try:
        return listing(decode(raw), raw)
    except DecodeError:
        return "refused"


def agree(decoder: NodeDecoder, raws: list[bytes]) -> int:
    """Compares both decoders, and returns how many buffers were refused."""
    refused = 0
    for raw, found in zip(raws, decoder.read(raws), strict=True):
        ours = verdict(raw)
        assert ("refused" if "refused" in found else found) == ours, (found, raw.hex())
        refused += ours == "refused"
    return refused


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_files(decoder: NodeDecoder, path: Path) -> None:
    assert agree(decoder, [path.read_bytes()]) == 0


def test_programs_of_chains(decoder: NodeDecoder) -> None:
    assert agree(decoder, [encode(chained(WELL_FORMED))]) == 0
    assert agree(decoder, [encode(chained(tokens)) for tokens, _ in PROGRAMS]) == len(PROGRAMS)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a mutant is small enough as it is
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(command_buffers(), st.data())
def test_random_buffers_and_mutants(decoder: NodeDecoder, cb: CommandBuffer, data: st.DataObject) -> None:
    raw = encode(cb)
    assert agree(decoder, [raw]) == 0
    agree(decoder, data.draw(st.lists(damaged(raw), min_size=MUTANTS, max_size=MUTANTS)))
