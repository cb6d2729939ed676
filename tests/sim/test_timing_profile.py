"""Profile files: what they may say, what is said of wrong ones, and that what is written is what is read."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import umd_core as umd
from umd_core.errors import AttributeValueError, ConfigError, UmdError
from umd_core.kernels import KERNELS
from umd_core.kernels.costs import FUNCTIONS
from umd_sim.options import Options, parse
from umd_sim.timing_profile import UNKNOWN_ERROR, Cache, packaged, parse_profile, read_profile, write_profile

LEAST = """
name = "mine"
source = "my measurements"
[memory]
size = 1_000_000
bandwidth = 1e9
[launch]
seconds = 0
[processors]
count = 2
workgroups = 4
invocations = 1024
workgroup_memory = 4096
[products]
float32 = 1e12
[arithmetic]
float32 = 1e11
[functions]
any = 1e10
"""


def test_the_packaged_profiles_can_be_read() -> None:
    assert packaged() == ["a100", "cpu", "h200", "t4"]
    for name in packaged():
        assert read_profile(name) == read_profile(name.upper())


def test_the_least_that_a_profile_says() -> None:
    profile = parse_profile(LEAST, "mine.toml")
    assert (profile.memory, profile.bandwidth, profile.launch, profile.processors) == (1_000_000, 1e9, 0.0, 2)
    assert (profile.granule, profile.caches, profile.efficiency, profile.launches) == (1, (), {}, {})
    assert profile.error == UNKNOWN_ERROR


@pytest.mark.parametrize("name", packaged())
def test_what_is_written_is_what_is_read(name: str) -> None:
    profile = replace(read_profile(name), name='a "name" \\ of two\nlines', caches=(Cache(1024, 5e9), Cache(4096, 2e9)))
    again = parse_profile(write_profile(profile), "again.toml")
    assert again == replace(profile, name='a "name" \\ of two lines')


@pytest.mark.parametrize(
    ("line", "instead", "said"),
    [
        ("bandwidth = 1e9", "", "memory.bandwidth is missing: a number above 0 would be right"),
        ("bandwidth = 1e9", "bandwith = 1e9", "memory.bandwith is unknown; did you mean memory.bandwidth?"),
        ("bandwidth = 1e9", "bandwidth = 'fast'", "memory.bandwidth is 'fast': a number above 0 would be right"),
        ("bandwidth = 1e9", "bandwidth = inf", "memory.bandwidth is inf: a number above 0 would be right"),
        ("bandwidth = 1e9", "bandwidth = nan", "memory.bandwidth is nan: a number above 0 would be right"),
        ("size = 1_000_000", "size = 1.5", "memory.size is 1.5: a whole number above 0 would be right"),
        ("size = 1_000_000", "size = true", "memory.size is True: a whole number above 0 would be right"),
        ("seconds = 0", "seconds = -1", "launch.seconds is -1: a number of at least 0 would be right"),
        ("count = 2", "count = 0", "processors.count is 0: a whole number above 0 would be right"),
        ('name = "mine"', "name = 3", "name is 3: a text would be right"),
        ("float32 = 1e12", "float33 = 1e12", "products.float33 is unknown; did you mean products.float32?"),
        ("float32 = 1e12", "float16 = 1e12", "products.float32 is missing: a number above 0 would be right"),
        ("any = 1e10", "any = 0", "functions.any is 0: a number above 0 would be right"),
        ("any = 1e10", "any = 1e10\nexpp = 1e9", "functions.expp is unknown; did you mean functions.exp?"),
        (
            "any = 1e10",
            "any = 1e10\n[efficiency]\ngemn = 1",
            "efficiency.gemn is unknown; did you mean efficiency.gemm?",
        ),
        ("size = 1_000_000", "size = 1_000_000\ncaches = [{ size = 4 }]", "memory.caches is"),
        ("[launch]", "[launch]\n[zoo]\nlion = 1", "zoo.lion is unknown"),
        ("size = 1_000_000", "size = ", "is not TOML"),
    ],
)
def test_what_is_wrong_is_named(line: str, instead: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as raised:
        parse_profile(LEAST.replace(line, instead), "mine.toml")
    assert raised.value.file == "mine.toml"


def test_everything_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        parse_profile('name = "nothing else"', "mine.toml")
    wanted = {"source", "memory.size", "memory.bandwidth", "launch.seconds", "processors.count", "products.float32"}
    assert wanted <= {problem.partition(" ")[0] for problem in raised.value.problems}


@given(st.recursive(
    st.one_of(st.integers(-3, 3), st.floats(), st.booleans(), st.text("ab", max_size=2)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(["size", "any"]), inner)),
    max_leaves=4,
), st.sampled_from(["memory", "name", "products", "launch", "functions", "processors", "zoo"]))  # fmt: skip
def test_any_other_document_is_refused_with_a_typed_error(value: Any, key: str) -> None:
    def literal(item: Any) -> str:
        if isinstance(item, dict):
            return "{" + ", ".join(f"{name} = {literal(inner)}" for name, inner in item.items()) + "}"
        if isinstance(item, list):
            return "[" + ", ".join(map(literal, item)) + "]"
        return str(item).lower() if isinstance(item, bool) else f'"{item}"' if isinstance(item, str) else repr(item)

    with pytest.raises(ConfigError):
        parse_profile(f"{key} = {literal(value)}", "other.toml")


def test_names_that_are_no_profile(tmp_path: Path) -> None:
    with pytest.raises(AttributeValueError, match=r"there is no profile 't5'; a100, cpu, h200, t4 or the path"):
        read_profile("t5")
    with pytest.raises(FileNotFoundError):
        read_profile(str(tmp_path / "nothing.toml"))


def test_a_device_is_opened_with_a_profile(tmp_path: Path) -> None:
    assert parse("1?profile=t4&seed=2") == Options(ordinal=1, seed=2, profile="t4")
    file = tmp_path / "mine.toml"
    file.write_text(LEAST)
    assert umd.open_device(f"sim:0?profile={file}").caps().memory == 1_000_000
    assert umd.open_device(f"sim:0?strict=1&profile={file}").caps().memory == 1_000_000
    file.write_text("")
    for wrong in ("t5", str(file)):
        with pytest.raises(UmdError):
            umd.open_device(f"sim:0?profile={wrong}")


def test_keys_are_those_of_the_tables_in_the_code() -> None:
    cpu = read_profile("cpu")
    families = {row.family for row in KERNELS.values()}
    assert cpu.efficiency.keys() == cpu.launches.keys()
    assert cpu.efficiency.keys() <= families
    assert cpu.functions.keys() <= {*FUNCTIONS, "any"}


def test_the_examples_of_the_document_work() -> None:
    text = (Path(__file__).parents[2] / "docs" / "estimates.md").read_text(encoding="utf-8")
    (profile,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert parse_profile(profile, "estimates.md").name == "My accelerator"
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(code, {})
