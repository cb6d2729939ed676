"""Compiles every kernel for NVIDIA's GPUs, without one: no warning, no spill, registers and memory as recorded.

python scripts/cuda_check.py            every kernel and class of types for sm_75, sm_80, sm_90, sm_100: 5 to 10 minutes
python scripts/cuda_check.py --write    the same, and rewrite tests/cuda/nvrtc.json
python scripts/cuda_check.py --missing  only what is not recorded yet, added to the records; what is gone is removed
python scripts/cuda_check.py --all      every type, array length and width of positions; takes an hour
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from umd_core import dtypes
from umd_core.dtypes import DType
from umd_core.errors import UmdError
from umd_core.kernels import KERNELS, KernelRecord, KernelRow
from umd_cuda import nvrtc
from umd_cuda.sources import source_for

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100")
RECORDS = Path(__file__).resolve().parent.parent / "tests" / "cuda" / "nvrtc.json"
CLASSES = {
    "half": dtypes.float16, "float": dtypes.float32, "double": dtypes.float64,
    "int": dtypes.int32, "long": dtypes.int64, "bool": dtypes.bool_,
}  # fmt: skip
"""Types whose kernels compile to much the same, and the one that stands for them."""
REGISTERS, THREADS = 65536, 256
"""Registers of a multiprocessor, and the most threads of one of our workgroups."""

Records = dict[str, dict[str, tuple[int, int, int]]]
"""By "kernel class …", by architecture: registers, bytes of workgroup memory, bytes of stack."""


class Job(NamedTuple):
    """A kernel to compile; `label` names kernel and classes, or types and lengths."""

    label: str
    arch: str
    record: KernelRecord
    wide: bool


def representatives(row: KernelRow) -> Iterator[tuple[str, KernelRecord]]:
    """Returns the row with the types that stand for their classes and its greatest array lengths, each with a label."""
    sizes = [allowed[-1] for _, allowed in row.sizes]
    names = [[name for name, dtype in CLASSES.items() if dtype in allowed] for _, allowed in row.types]
    for chosen in itertools.product(*names):
        yield " ".join((row.name, *chosen)), row.record([CLASSES[name] for name in chosen], sizes)


def recorded_jobs(architectures: Iterable[str], widths: Iterable[bool] = (False, True)) -> list[Job]:
    """Returns the compilations whose results are recorded; the greater need of the two widths of positions is."""
    rows = sorted(KERNELS.values(), key=lambda row: row.name)
    found = [(label, record) for row in rows for label, record in representatives(row)]
    return [
        Job(label, arch, record, wide)
        for arch in architectures
        for label, record in found
        for wide in widths
        if source_for(record, wide) is not None
    ]


def all_jobs(architectures: Iterable[str]) -> list[Job]:
    """Returns every type, array length and width of every kernel."""
    jobs = []
    for row in KERNELS.values():
        types: list[tuple[DType, ...]] = list(itertools.product(*(allowed for _, allowed in row.types)))
        for kinds, sizes, wide in itertools.product(
            types, itertools.product(*(s for _, s in row.sizes)), (False, True)
        ):
            record = row.record(kinds, sizes)
            if source_for(record, wide) is not None:
                label = f"{row.name}<{', '.join(t.name for t in kinds)}> {list(sizes)}{' wide' if wide else ''}"
                jobs += [Job(label, arch, record, wide) for arch in architectures]
    return jobs


def compile_job(job: Job) -> tuple[Job, nvrtc.Compiled | str]:
    """Returns what a kernel needs, or why it does not compile."""
    source = source_for(job.record, job.wide)
    assert source is not None
    try:
        return job, nvrtc.compile(source.text, job.arch, source.options)
    except UmdError as error:
        return job, str(error)


def run(jobs: Iterable[Job], workers: int) -> tuple[Records, list[str]]:
    """Returns what was compiled, the greatest of each label and architecture, and what is wrong with it."""
    records: Records = {}
    faults = []
    with ThreadPoolExecutor(workers) as pool:
        for job, result in pool.map(compile_job, jobs):
            faults += [f"{job.label} {job.arch}: {text}" for text in wrong(result)]
            if not isinstance(result, str):
                own = records.setdefault(job.label, {})
                least = own.get(job.arch, (0, 0, 0))
                found = (result.registers, result.shared, result.stack)
                own[job.arch] = (max(found[0], least[0]), max(found[1], least[1]), max(found[2], least[2]))
    return records, faults


def wrong(result: nvrtc.Compiled | str) -> list[str]:
    """Returns what is wrong with a compilation, whatever is recorded."""
    if isinstance(result, str):
        return [result]
    found = list(result.warnings)
    if result.spilled:
        found.append(f"{result.spilled} bytes of registers are spilled")
    if result.registers * THREADS > REGISTERS:
        found.append(f"{result.registers} registers are too many for a workgroup of {THREADS}")
    return found


def beyond(found: Records, bounds: Mapping[str, Mapping[str, Iterable[int]]]) -> list[str]:
    """Returns where what was compiled needs more than is recorded, or is not recorded at all."""
    faults = []
    for label, by_arch in found.items():
        for arch, needs in by_arch.items():
            bound = bounds.get(label, {}).get(arch)
            if bound is None:
                faults.append(f"{label} {arch}: not recorded")
            else:
                for what, need, most in zip(("registers", "bytes shared", "bytes of stack"), needs, bound, strict=True):
                    if need > most:
                        faults.append(f"{label} {arch}: {need} {what}, {most} are recorded")
    return faults


def read() -> tuple[str, dict[str, dict[str, list[int]]]]:
    """Returns NVRTC's version and the records of the committed file."""
    data = json.loads(RECORDS.read_text(encoding="utf-8"))
    return data["nvrtc"], data["kernels"]


def text_of(version: str, records: Mapping[str, Mapping[str, Sequence[int]]]) -> str:
    """Returns the file's text: a line a kernel and class, so that a change is a line of a review."""
    lines = [f"  {json.dumps(label)}: {json.dumps(records[label])}" for label in sorted(records)]
    return f'{{"nvrtc": "{version}",\n "needs": ["registers", "bytes shared", "bytes of stack"],\n "kernels": {{\n' + (
        ",\n".join(lines) + "\n}}\n"
    )


def main() -> int:
    """Compiles and compares; returns 1 when something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="rewrite the records")
    parser.add_argument("--missing", action="store_true", help="record what is not recorded, and compile nothing else")
    parser.add_argument("--all", action="store_true", help="every type and array length; nothing is recorded")
    parser.add_argument("--arch", action="append", choices=ARCHITECTURES, help="only this architecture")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    architectures = arguments.arch or ARCHITECTURES
    make: Callable[[Iterable[str]], list[Job]] = all_jobs if arguments.all else recorded_jobs
    jobs = make(architectures)
    if arguments.missing:
        known = {label: needs for label, needs in read()[1].items() if label in {job.label for job in jobs}}
        jobs = [job for job in jobs if job.label not in known]
    records, faults = run(jobs, arguments.workers)
    if arguments.missing and not arguments.arch:
        RECORDS.write_text(text_of(nvrtc.version(), {**known, **records}), encoding="utf-8")
    elif arguments.write and not arguments.all and not arguments.arch:
        RECORDS.write_text(text_of(nvrtc.version(), records), encoding="utf-8")
    elif not arguments.all:
        bounds = read()[1]
        faults += beyond(records, bounds)
        faults += [
            f"{label}: recorded, but there is no such kernel" for label in sorted(bounds.keys() - records.keys())
        ]
    print(*faults, f"{len(jobs)} compilations by NVRTC {nvrtc.version()}, {len(faults)} faults", sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
