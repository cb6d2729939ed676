"""`umd ops`, `umd kernels`, `umd translate`: what they print, as tables and as JSON, and their exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import umd_core as umd
from umd_cli.app import COMMANDS, GROUPS, app
from umd_core.errors import Status
from umd_core.kernels import KERNELS
from umd_core.ops import OPS


def umd_command(*arguments: str, input: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=input)


def as_json(*arguments: str, code: int = 0, input: str | None = None) -> Any:
    result = umd_command(*arguments, "--json", input=input)
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_help_names_every_command_and_what_it_does() -> None:
    result = umd_command("--help")
    assert result.exit_code == 0
    for name in COMMANDS:
        assert name in result.stdout
        own = umd_command(name, "--help")
        assert own.exit_code == 0
        assert "--json" in own.stdout


def test_help_names_the_commands_of_a_group() -> None:
    for group, (meaning, commands) in GROUPS.items():
        result = umd_command(group, "--help")
        assert meaning in result.stdout
        for name in commands:
            assert name in result.stdout
            assert "--json" in umd_command(group, name, "--help").stdout


def test_ops_lists_the_whole_table() -> None:
    listed = as_json("ops")
    assert {row["name"] for row in listed} == set(OPS)
    assert all(row["doc"] for row in listed)
    table = umd_command("ops").stdout
    assert all(name in table for name in OPS)


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_op_can_be_described(name: str) -> None:
    found = as_json("ops", name)
    assert [a["name"] for a in found["attributes"]] == [a.name for a in OPS[name].attributes]
    assert umd_command("ops", name).stdout.startswith(f"{name} (")


def test_kernels_lists_the_whole_table() -> None:
    assert {(row["name"], row["abi"]) for row in as_json("kernels")} == set(KERNELS)


@pytest.mark.parametrize("name", sorted({name for name, _ in KERNELS}))
def test_every_kernel_can_be_described(name: str) -> None:
    found = as_json("kernels", name)
    assert [p["name"] for p in found["parameters"]] == [n for n, _ in KERNELS[name, found["abi"]].field_types()]
    assert umd_command("kernels", name).exit_code == 0


def test_translate_writes_what_the_library_would(tmp_path: Path) -> None:
    file = tmp_path / "add.umdcmd"
    found = as_json("translate", "Add", "-i", "f32[2,3]", "--input", "float32[3]", "-o", str(file))
    expected = bytes(umd.translate("Add", [umd.TensorDesc("f32", (2, 3)), umd.TensorDesc("f32", (3,))]))
    assert file.read_bytes() == expected
    assert found["bytes"] == len(expected)
    assert found["kernels"] == ["elementwise_add_kernel"]
    assert found["outputs"] == [{"dtype": "float32", "shape": [2, 3]}]


def test_translate_reads_attributes_of_every_spelling(tmp_path: Path) -> None:
    buffers = []
    for number, spelling in enumerate(("1,0", "[1, 0]", "(1, 0)")):
        file = tmp_path / f"{number}.umdcmd"
        result = umd_command("translate", "Transpose", "-i", "f32[2,3]", "-a", f"perm={spelling}", "-o", str(file))
        assert result.exit_code == 0, result.output
        buffers.append(file.read_bytes())
    assert buffers == [bytes(umd.translate("Transpose", [umd.TensorDesc("f32", (2, 3))], perm=(1, 0)))] * 3


@pytest.mark.parametrize("shape", ["i64[2]=3,2", "int64[2]=[3, 2]"])
def test_translate_takes_values_where_they_matter(tmp_path: Path, shape: str) -> None:
    file = tmp_path / "reshape.umdcmd"
    found = as_json("translate", "Reshape", "-i", "f32[2,3]", "-i", shape, "-o", str(file))
    assert found["outputs"] == [{"dtype": "float32", "shape": [3, 2]}]
    wanted = umd.translate("Reshape", [umd.TensorDesc("f32", (2, 3)), np.array([3, 2])])
    assert file.read_bytes() == bytes(wanted)
    by_name = as_json("translate", "Reshape", "-i", "f32[2,3]", "-a", "shape=3,2")
    assert by_name["outputs"] == found["outputs"]


def test_translate_takes_a_request_in_json(tmp_path: Path) -> None:
    request = {
        "op": "Concat",
        "inputs": ["f32[2,3]", {"dtype": "float32", "shape": [2, 1], "strides": [1, 1]}],
        "attributes": {"axis": 1},
    }
    file = tmp_path / "request.json"
    file.write_text(json.dumps(request), encoding="utf-8")
    from_file = as_json("translate", "--request", str(file))
    from_stdin = as_json("translate", "--request", "-", input=json.dumps(request))
    assert from_file["outputs"] == from_stdin["outputs"] == [{"dtype": "float32", "shape": [2, 4]}]


def test_translate_writes_the_original_format(tmp_path: Path) -> None:
    file = tmp_path / "add.umdcmd"
    assert (
        umd_command("translate", "Add", "-i", "f32[600]", "-i", "f32[600]", "--legacy", "-o", str(file)).exit_code == 0
    )
    name = b"elementwise_add_kernel"
    numbers = b"".join(n.to_bytes(8, "little") for n in (600, 3, 256))
    assert file.read_bytes() == b"UMDCMD" + len(name).to_bytes(4, "little") + name + numbers


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["Ad", "-i", "f32[2]", "-i", "f32[2]"], Status.UNKNOWN_OP, "did you mean"),
        (["Add", "-i", "f32[2]"], Status.INPUT_COUNT, "takes 2 inputs, got 1"),
        (["Add", "-i", "f32[2,3]", "-i", "f32[4]"], Status.SHAPE, "[2, 3] and [4]"),
        (["Add", "-i", "f32[2]", "-i", "f99[2]"], Status.DTYPE, "one of float16"),
        (["Add", "-i", "f32[2]", "-i", "i32[2]"], Status.DTYPE, "one of float32"),
        (["Relu", "-i", "f32[-2]"], Status.SHAPE, "negative"),
        (["Relu", "-i", "f32[2]", "-a", "slope=1"], Status.ATTRIBUTE, "slope"),
        (["Transpose", "-i", "f32[2,2]", "-a", "perm=what"], Status.ATTRIBUTE, "kind ints"),
        (["Relu", "-i", "f32[1,1,1,1,1,1,1,1,1]"], Status.LIMIT, "limit is 8"),
        (["Relu", "-i", "f32[4294967296,4294967296]"], Status.LIMIT, "limit"),
        (["Relu", "-i", "f32[2]", "--device", "nothing:0"], Status.UNSUPPORTED, "sim"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
def test_bad_requests_are_one_line_and_a_documented_code(arguments: list[str], status: Status, says: str) -> None:
    result = umd_command("translate", *arguments)
    assert result.exit_code == 10 + status
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    error = as_json("translate", *arguments, code=10 + status)["error"]
    assert (error["status"], error["status_name"], error["exit_code"]) == (status, status.name, 10 + status)
    assert error["message"] == result.stderr.removeprefix("error: ").removesuffix("\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name an op"),
        (["Add", "-i", "what"], "write it as"),
        (["Add", "-i", "i64[2]=1,2,3"], "3 values for 2"),
        (["Add", "-i", "i64[2]=a,b"], "could not convert"),
        (["Add", "-a", "axis"], "write it as"),
        (["Add", "--request", "-"], "leave out the op"),
        (["--request", "-"], "not JSON"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_wrong_calls_say_how_it_is_written(arguments: list[str], says: str) -> None:
    result = umd_command("translate", *arguments, input="{")
    assert result.exit_code == 2
    assert says in " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize("document", ["[]", "{}", '{"op": "Add", "input": []}', '{"op": "Add", "inputs": [3]}'])
def test_wrong_requests_say_what_is_wanted(document: str) -> None:
    result = umd_command("translate", "--request", "-", input=document)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_unknown_names_suggest_the_nearest() -> None:
    assert umd_command("ops", "Conca").exit_code == 10 + Status.UNKNOWN_OP
    assert "Concat" in umd_command("ops", "Conca").stderr
    kernel = umd_command("kernels", "gem_kernel")
    assert kernel.exit_code == 10 + Status.UNSUPPORTED
    assert "gemm_kernel" in kernel.stderr
    assert umd_command("opps").exit_code == 2


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.json")
    result = umd_command("translate", "--request", missing)
    assert (result.exit_code, result.stderr) == (4, f"error: {missing}: No such file or directory\n")
    assert umd_command("translate", "Relu", "-i", "f32[2]", "-o", str(tmp_path)).exit_code == 4


def test_an_unforeseen_error_is_still_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, "Broken", object())
    result = umd_command("ops", "Broken")
    assert result.exit_code == 10 + Status.INTERNAL
    assert result.stderr.count("\n") == 1
    assert "report it" in result.stderr
    assert "Traceback" in umd_command("--traceback", "ops", "Broken").stderr


def run_without(*packages: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs `umd` in a process where the packages cannot be imported."""
    code = f"import sys; sys.modules.update(dict.fromkeys({packages!r})); import umd_cli.main as m; m.main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=120
    )


def test_help_and_the_core_commands_need_no_extra() -> None:
    missing = ("grpc", "google.protobuf", "torch", "onnx", "sklearn", "hypothesis", "pytest")
    for arguments in (["--help"], ["ops", "--json"], ["translate", "Relu", "-i", "f32[2]"]):
        result = run_without(*missing, arguments=arguments)
        assert result.returncode == 0, result.stderr


def test_without_its_own_extra_the_command_says_what_to_install() -> None:
    result = run_without("typer", arguments=["ops"])
    assert (result.returncode, result.stdout) == (3, "")
    assert result.stderr == "error: `umd` needs typer: pip install 'umd-runtime[cli]'\n"


def test_a_missing_extra_is_named_with_its_command() -> None:
    result = run_without("grpc", arguments=["serve"])
    assert result.returncode == 3
    assert result.stderr == "error: this needs grpc, which is not installed: pip install 'umd-runtime[grpc]'\n"


def test_the_documented_exit_codes_are_the_real_ones() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (\d+) \| ([A-Z_]+)", text, flags=re.MULTILINE)
    assert [(int(code), int(status), name) for code, status, name in rows] == [
        (10 + status, int(status), status.name) for status in Status if status
    ]
    assert {f"`umd {name}" for name in (*COMMANDS, *GROUPS)} == set(
        re.findall(r"^\| (`umd \w+)", text, flags=re.MULTILINE)
    )
