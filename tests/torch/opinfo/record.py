"""Runs every entry, compares the outcome with the ledger, and writes the counts that docs/pytorch.md shows.

python -m tests.torch.opinfo.record [--runner RUN] [--samples N] [--shard I/N] [--only NAMES] [--write]
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch

from tests.torch.opinfo import ledger
from tests.torch.opinfo.examine import RUNNERS, examine, names
from tests.torch.opinfo.judge import Outcome

RECORD = Path(__file__).parent / "record.json"
SAMPLES = 6
"""Samples of an entry without --samples; what the ledger's numbers were found with."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.torch.opinfo.record")
    parser.add_argument("--runner", choices=(*RUNNERS, "layers", "optimizers"), default="direct")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="samples of each entry, spread over all of them")
    parser.add_argument("--shard", default="0/1", help="I/N: every Nth entry from number I on")
    parser.add_argument("--only", help="entries, with commas between them")
    parser.add_argument("--write", action="store_true", help="write the counts to record.json")
    return parser.parse_args()


def counts(runner: str, outcomes: Mapping[str, Outcome]) -> dict[str, object]:
    """Returns what the documentation shows of a run."""
    kinds = Counter(f.kind for name, f in ledger.failures(runner).items() if name in outcomes)
    differentiable = [o for o in outcomes.values() if o.gradients]
    return {
        "torch": torch.__version__.split("+")[0],
        "entries": len(outcomes),
        "samples": sum(o.samples for o in outcomes.values()),
        "forward": sum(not o.forward for o in outcomes.values()),
        "differentiable": len(differentiable),
        "backward": sum(not o.forward and not o.backward for o in differentiable),
        "by_shape": sum(not o.first for name, o in outcomes.items() if name in ledger.shapes()),
        "kinds": dict(sorted(kinds.items())),
    }


def main() -> int:
    """Runs, prints what differs from the ledger, and returns 1 if anything does."""
    arguments = _arguments()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    start, step = map(int, arguments.shard.split("/"))
    chosen = arguments.only.split(",") if arguments.only else names(arguments.runner)[start::step]
    outcomes, differing = {}, 0
    for name in chosen:
        outcomes[name] = examine(arguments.runner, name, arguments.samples)
        said = ledger.difference(arguments.runner, name, outcomes[name])
        differing += bool(said)
        if said:
            print(said, flush=True)
    found = counts(arguments.runner, outcomes)
    print(json.dumps(found, indent=2))
    if arguments.write and not differing:
        before = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
        RECORD.write_text(json.dumps(before | {arguments.runner: found}, indent=2) + "\n", encoding="utf-8")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
