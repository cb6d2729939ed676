"""`umd calibrate`: a profile from measurements of a device."""

from __future__ import annotations

import dataclasses
import datetime
import json as json_module
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from umd_core.errors import AttributeValueError
from umd_core.registry import open_device
from umd_sim.timing_calibration import Calibration, Clock
from umd_sim.timing_profile import SUFFIX, Profile, read_profile, write_profile

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def calibrate(
    output: Annotated[Path, typer.Option("--output", "-o", help=f"The profile to be written, a {SUFFIX} file.")],
    device: Annotated[str, typer.Option("--device", help="The device to be measured.")] = "sim:0",
    base: Annotated[
        str, typer.Option("--base", help="What is not measured (processors and what they hold): of this profile.")
    ] = "cpu",
    name: Annotated[str, typer.Option("--name", help="What the profile calls the device.")] = "",
    patience: Annotated[float, typer.Option("--patience", min=0, help="Seconds of each measurement.")] = 0.2,
    cpu_time: Annotated[
        bool, typer.Option("--cpu-time", help="Time this process's work: for a device on this processor, when busy.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Measure a device and write a profile of it, for `umd estimate --profile FILE.toml` and `sim:0?profile=FILE.toml`.

    Launches, copies, matrix products, functions and each kernel family are timed, then programs that nothing was
    fitted to: how their estimates compare with their times is what the profile says of its error.
    """
    if output.suffix != SUFFIX:
        wanted = f"{output.name}{SUFFIX}"
        raise AttributeValueError("calibrate", "--output", f"{output} is no {SUFFIX} file", wanted=wanted)
    clock = time.process_time if cpu_time else time.perf_counter
    profile = measured(device, read_profile(base), name, patience, clock)
    output.write_text(write_profile(profile), encoding="utf-8")
    found = {"device": device, "file": str(output), **dataclasses.asdict(profile)}
    typer.echo(json_module.dumps(found, indent=2) if json else f"{output}: {profile.name}; {profile.error}")


def measured(device: str, base: Profile, name: str, patience: float, clock: Clock) -> Profile:
    """Returns the profile of a device by name, with a bar on a terminal while it is measured.

    Raises:
        UnsupportedError: there is no such device, or it lacks what every calibration needs.
    """
    opened = open_device(device)
    try:
        calibration = Calibration(opened, base, patience=patience, clock=clock)
        with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
            task = bar.add_task("")
            for step in calibration.run():
                bar.update(task, description=step.name, completed=step.done, total=step.steps)
    finally:
        opened.close()
    source = f"measured on {device} by umd calibrate, {datetime.date.today()}"
    return dataclasses.replace(calibration.profile, name=name or device, source=source)
