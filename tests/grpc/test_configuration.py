"""Configuration files and flags: one table, every problem at once; the document says what is so."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from umd_cli.app import app
from umd_core.errors import ConfigError, UmdError, UnsupportedError
from umd_grpc.addresses import is_every, is_local, join_host, split_host
from umd_grpc.client.address import Address, split_address
from umd_grpc.config.arguments import from_arguments
from umd_grpc.config.fields import FIELDS, defaults
from umd_grpc.config.load import check_file, effective, show
from umd_grpc.config.units import read_duration, read_size, show_duration, show_size
from umd_grpc.limits import DEFAULT, Limits
from umd_grpc.server import Settings
from umd_grpc.server.identity import Quota
from umd_grpc.server.settings import TlsSettings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "umd.toml"


@given(st.integers(0, 2**60))
def test_sizes_come_back(size: int) -> None:
    assert read_size(show_size(size)) == size


@given(st.integers(0, 10**9).map(lambda n: n / 1000) | st.integers(0, 10**6).map(float))
def test_durations_come_back(seconds: float) -> None:
    assert read_duration(show_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GiB", 8 << 30), ("1.5KiB", 1536), ("10 MB", 10_000_000), (77, 77), ("78", 78), ("79B", 79), ("2TiB", 2 << 40)],
)
def test_sizes(text: Any, size: int) -> None:
    assert read_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("500ms", 0.5), (2, 2), (0.25, 0.25), ("5m", 300), ("1h", 3600), ("30d", 2592000)],
)
def test_durations(text: Any, seconds: float) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1", "8 GIB", "1e9", "8GiB ", "1.0000000001B", "0.5B", True, None, [1], "٣"]
)
def test_what_is_no_size(text: Any) -> None:
    with pytest.raises(ValueError, match=r"like|whole"):
        read_size(text)


def test_the_defaults_are_the_settings() -> None:
    assert Settings.of({}) == Settings()
    assert {f"limits.{f.name}" for f in fields(Limits)} == {key for key in FIELDS if key.startswith("limits.")}
    assert {f"quota.{f.name}" for f in fields(Quota)} == {key for key in FIELDS if key.startswith("quota.")}
    assert {f"tls.{f.name}" for f in fields(TlsSettings)} == {key for key in FIELDS if key.startswith("tls.")}
    assert {f.name: type(getattr(Settings.of({}).limits, f.name)) for f in fields(Limits)} == {
        f.name: type(getattr(DEFAULT, f.name)) for f in fields(Limits)
    }


def test_a_device_is_served_once() -> None:
    assert Settings.of({"devices": ("sim", "sim:1", "sim:0", "sim:1")}).devices == ("sim:0", "sim:1")


def test_each_field_is_used() -> None:
    """A value other than the default makes other settings."""
    other: dict[str, Any] = {"devices": ("sim:1",), "listen": ("127.0.0.1:1",), "unix_mode": 0o660, "tls.cert": "c",
                             "workers.use": "on"}  # fmt: skip
    for key, field in FIELDS.items():
        kind = field.kind.name
        value = (
            other.get(key) or {"true or false": True, "text": "x", "path": "x"}.get(kind) or (field.default or 0) + 1
        )
        assert Settings.of({key: value}) != Settings(), key


def test_what_is_shown_is_a_file_that_says_the_same(file: Path) -> None:
    values = {**defaults(), "quota.memory": 8 << 30, "tls.auto": True, "advertise": 'a"\\\n\x7f€', "grace": 0.5}
    file.write_text(show(values), encoding="utf-8")
    assert check_file(file) == []
    assert effective(file, {}) == values
    assert Settings.of(values).quota.memory == 8 << 30


def test_flags_override_the_file(file: Path) -> None:
    file.write_text('listen = ["127.0.0.1:7"]\ngrace = "9s"\n[limits]\nframe = "1MiB"\n', encoding="utf-8")
    found = from_arguments(["--config", str(file), "--grace", "1m", "--limits-waits", "5", "--quota-memory", "1GiB"])
    assert (found["listen"], found["grace"], found["limits.frame"]) == (("127.0.0.1:7",), 60, 1 << 20)
    assert (found["limits.waits"], found["quota.memory"]) == (5, 1 << 30)
    settings = Settings.of(found)
    assert (settings.limits.frame, settings.limits.waits) == (1 << 20, 5)


BROKEN = """listen = ["0.0.0.0:50051", "nowhere"]
graze = "30s"
unix_mode = "999"
devices = "sim"

[tls]
cert = "/nowhere/cert.pem"
auto = "yes"

[limits]
message = "8XB"
waits = -5
chunk = "512MiB"

[quota]
memory = 0
"""


def test_every_problem_at_once_with_its_line(file: Path) -> None:
    file.write_text(BROKEN, encoding="utf-8")
    problems = check_file(file)
    found = {place: [p.what for p in problems if p[:2] == place] for place in {p[:2] for p in problems}}
    expected = {
        (1, "listen"): "has no port",
        (2, "graze"): "did you mean grace?",
        (3, "unix_mode"): 'file mode like "600"',
        (4, "devices"): "list of texts",
        (7, "tls.cert"): "names no file",
        (8, "tls.auto"): "neither true nor false",
        (11, "limits.message"): '"8GiB"',
        (12, "limits.waits"): "outside 1 to",
        (13, "limits.chunk"): "less than limits.message",
        (16, "quota.memory"): "outside",
    }
    assert set(found) == set(expected)
    assert [what for place, what in expected.items() if what not in " and ".join(found[place])] == []
    assert "needs tls.key" in found[7, "tls.cert"]
    result = CliRunner().invoke(app, ["config", "check", str(file), "--json"])
    assert result.exit_code == 1
    assert len(json.loads(result.stdout)["problems"]) == len(problems)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (b"a = \n", 1, "not TOML"),
        (b"\n\nb = [1\n", 0, "end of document"),
        (b"a = \xff", 0, "not UTF-8"),
        (b"a = " + b"[" * 100_000, 0, "too deeply"),
        (b"limits = 3\n", 1, "unknown"),
        (b'[[tls]]\ncert = "x"\n', 0, "unknown"),
        (b'"limits.message" = 5\n', 0, "outside"),
    ],
)
def test_what_is_no_configuration(file: Path, text: bytes, line: int, says: str) -> None:
    file.write_bytes(text)
    (problem,) = check_file(file)
    assert (problem.line, says in problem.what) == (line, True)
    with pytest.raises(ConfigError):
        effective(file, {})


@given(text=st.text(max_size=80) | st.sampled_from(["[tls]\n", "[limits]\nmessage=", "listen=["]))
def test_any_text_is_checked(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(text, encoding="utf-8")
    problems = check_file(path)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError:
        document = {"not": "TOML"}
    assert bool(problems) or set(document) <= {key.partition(".")[0] for key in FIELDS}


def test_the_commands(file: Path) -> None:
    file.write_text("grace = 5\n", encoding="utf-8")
    runner = CliRunner()
    assert runner.invoke(app, ["config", "check", str(file)]).stdout == f"{file} is right\n"
    shown = runner.invoke(app, ["config", "show", str(file)])
    assert tomllib.loads(shown.stdout)["grace"] == "5s"
    assert runner.invoke(app, ["config", "check", str(file) + "x"]).exit_code == 4
    refused = runner.invoke(app, ["serve", "--config", str(file), "--limits-waits", "x", "--grace", "-1"])
    assert refused.exit_code == 16
    assert ["--grace is not an amount" in refused.stderr, "--limits-waits is not a whole" in refused.stderr] == [
        True
    ] * 2


def test_serve_takes_every_field() -> None:
    from umd_cli.commands.serve import serve

    assert set(inspect.signature(serve).parameters) == {f.parameter for f in FIELDS.values()} | {"config", "json"}
    text = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"}).stdout
    assert [option for f in FIELDS.values() for option in f.options if option not in text] == []


def test_the_document_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/service_docs.py"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout


def _suspects(path: Path) -> list[str]:
    """Returns what a module has that runs code which bytes bring."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call):
            names = [ast.unparse(node.func), *(f"{word.arg}={ast.unparse(word.value)}" for word in node.keywords)]
        else:
            continue
        found += [f"{path.relative_to(ROOT)}:{node.lineno}: {name}" for name in names if name in RUNS_CODE]
    return found


RUNS_CODE = {
    "pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle", "yaml", "eval", "exec", "__import__",
    "torch.load", "allow_pickle=True", "weights_only=False", "shell=True", "os.system",
}  # fmt: skip


def test_nothing_is_unpickled_or_evaluated() -> None:
    """What comes from outside is parsed by protobuf, struct, JSON and TOML; nothing that runs code reads bytes."""
    packages = [ROOT / "umd_core", *(ROOT / "adapters").glob("umd_*"), *(ROOT / "backends").glob("*/umd_*")]
    modules = [path for package in packages for path in package.rglob("*.py")]
    assert len(modules) > 100
    assert [suspect for path in modules for suspect in _suspects(path)] == []


# addresses


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("//h:1/sim:0", Address("h:1", "sim:0")),
        ("//h", Address("h:50051")),
        ("//[::1]/sim:0", Address("[::1]:50051", "sim:0")),
        ("//h:1/sim:0#sha256=" + "ab" * 32, Address("h:1", "sim:0", "ab" * 32)),
        ("//h:1#sha256=" + "AB:" * 31 + "AB&token=umdj_x-y", Address("h:1", "", "ab" * 32, "umdj_x-y")),
        ("//h:1#token=t", Address("h:1", token="t")),
        ("unix:/s#sim:0", Address("unix:/s", "sim:0")),
    ],
)
def test_names_of_devices(text: str, address: Address) -> None:
    assert split_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "h:1", "//", "///sim:0", "//h#sha256=12&token=secret", "//h#key=secret", "//h#token=secret&token=b",
             "//h#token=sec ret", "//h#token=secret\nx", "//" + "h" * 5000 + "#token=secret"],
)  # fmt: skip
def test_other_names_are_refused_without_their_secrets(text: str) -> None:
    with pytest.raises(UnsupportedError, match="write it as") as caught:
        split_address(text)
    assert "secret" not in str(caught.value)


@given(st.text(max_size=60))
def test_any_name_is_an_address_or_refused(text: str) -> None:
    try:
        found = split_address(f"//{text}")
    except UmdError:
        return
    assert found.target
    assert "#" not in found.target


@pytest.mark.parametrize(
    ("address", "parts", "every"),
    [
        ("127.0.0.1:5", ("127.0.0.1", "5"), False),
        ("[::1]:5", ("::1", "5"), False),
        ("[::]:5", ("::", "5"), True),
        ("[::1]", ("::1", ""), False),
        ("0.0.0.0:5", ("0.0.0.0", "5"), True),
        (":5", ("", "5"), True),
        ("host", ("host", ""), False),
    ],
)
def test_hosts_and_ports(address: str, parts: tuple[str, str], every: bool) -> None:
    assert split_host(address) == parts
    assert is_every(address) == every
    if all(parts):
        assert join_host(*parts) == address
    assert not (every and is_local(address))


def test_the_threat_model_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+\.py)`", text))
    assert len(named) >= 6
    assert named <= {path.name for path in ROOT.glob("tests/**/test_*.py")}
