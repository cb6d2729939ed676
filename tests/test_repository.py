"""The repository itself: what is exported and packaged, what an import loads, that the documents are true."""

from __future__ import annotations

import collections
import importlib
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.requirements import Requirement

import umd_core as umd
from umd_core.ops import OPS
from umd_core.translate import Translator
from umd_torch import demo

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "umd_core": ROOT / "umd_core",
    "umd_cuda": ROOT / "backends/cuda/umd_cuda",
    "umd_sim": ROOT / "backends/sim/umd_sim",
    "umd_grpc": ROOT / "adapters/umd_grpc",
    "umd_model": ROOT / "adapters/umd_model",
    "umd_onnx": ROOT / "adapters/umd_onnx",
    "umd_torch": ROOT / "adapters/umd_torch",
    "umd_cli": ROOT / "adapters/umd_cli",
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("changelog.d/*.md")])
NO_FOR_THE_CORE = ("grpc", "google.protobuf", "torch", "onnx", "cupy", "typer", "rich", "hypothesis", "umd_sim")


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments, "-c", code], capture_output=True, text=True, check=False, timeout=120, cwd=ROOT
    )


def test_importing_the_core_loads_no_framework() -> None:
    code = "import sys, umd_core; print(*sorted(sys.modules))"
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    loaded = set(result.stdout.split())
    assert "umd_core.translate" in loaded
    assert loaded.isdisjoint(NO_FOR_THE_CORE)


def test_discovering_backends_loads_no_framework() -> None:
    code = "import sys, umd_core.registry as r; r.devices; import umd_sim.plugin; print(*sorted(sys.modules))"
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    assert set(result.stdout.split()).isdisjoint({"grpc", "torch", "onnx", "cupy"})


@pytest.mark.parametrize("package", PACKAGES)
def test_exported_names_exist_and_are_sorted(package: str) -> None:
    module = importlib.import_module(package)
    exported = list(getattr(module, "__all__", []))
    assert [name for name in exported if not hasattr(module, name)] == []
    assert len(exported) == len(set(exported))


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_typed_and_real(package: str) -> None:
    assert (PACKAGES[package] / "py.typed").is_file()
    assert (PACKAGES[package] / "__init__.py").is_file()
    assert Path(str(importlib.import_module(package).__file__)).parent == PACKAGES[package]


def test_the_wheel_holds_every_module_of_every_package(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT, check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("umd_runtime-*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {
        f"{package}/{path.relative_to(folder).as_posix()}"
        for package, folder in PACKAGES.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == sources


def test_entry_points_load() -> None:
    declared = distribution("umd-runtime").entry_points
    assert {(e.group, e.name) for e in declared} >= {
        ("console_scripts", "umd"),
        ("umd.backends", "cuda"),
        ("umd.backends", "sim"),
        ("umd.backends", "grpc"),
        ("torch_dynamo_backends", "umd"),
        ("pytest11", "umd"),
    }
    for entry in declared:
        assert entry.load() is not None


def test_pins_lie_in_the_declared_ranges() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [Requirement(text) for texts in (PROJECT["project"]["dependencies"], *extras.values()) for text in texts]
    unpinned = {r.name for r in wanted} - set(pins) - {"umd-runtime", "cupy-cuda13x"}
    assert unpinned == set()
    assert [str(r) for r in wanted if r.name in pins and not r.specifier.contains(pins[r.name])] == []


def test_test_files_have_unique_names() -> None:
    names = collections.Counter(path.name for path in ROOT.glob("tests/**/test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_changelog_fragments_are_named_and_filled() -> None:
    kinds = "|".join(kind["directory"] for kind in PROJECT["tool"]["towncrier"]["type"])
    for path in (ROOT / "changelog.d").iterdir():
        if path.name == "README.md":
            continue
        assert re.fullmatch(rf"(\+[a-z0-9-]+|\d+)\.({kinds})\.md", path.name), path.name
        assert path.read_text(encoding="utf-8").strip(), path.name


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [t for t in re.findall(r"\]\(([^)\s]+)\)", text) if not t.startswith(("http:", "https:", "#"))]
    assert [t for t in targets if not (path.parent / t.partition("#")[0]).exists()] == []


def test_commands_that_documents_name_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    for path in DOCUMENTS:
        named = set(re.findall(r"`make ([a-z-]+)", path.read_text(encoding="utf-8")))
        assert named <= targets, path


def python_blocks(name: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """Address of `umd serve`, as the README starts it but on a free port."""
    assert "umd serve --backend sim --listen 127.0.0.1:50051" in (ROOT / "README.md").read_text(encoding="utf-8")
    with demo.served() as address:
        yield address


@pytest.mark.parametrize("name", ["README.md", "docs/library.md"])
def test_the_blocks_of_a_document_run_in_order(name: str, served: str) -> None:
    blocks = python_blocks(name)
    assert len(blocks) >= 3
    code = "\n".join(blocks).replace("127.0.0.1:50051", served)
    result = run_python(code, "-W", "error")
    assert result.returncode == 0, result.stderr


def test_the_op_of_the_guide_works(monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = python_blocks("CONTRIBUTING.md")
    namespace: dict[str, Any] = {}
    exec(block, namespace)
    (template,) = namespace["TEMPLATES"]
    monkeypatch.setitem(OPS, template.name, template)
    x = np.linspace(-5, 5, 33, dtype=np.float32)
    y = umd.open_device("sim:0").run(Translator().op(template.name, [x]), [x])[0].numpy()
    np.testing.assert_allclose(y, x / (1 + np.exp(-1.702 * x)), rtol=1e-6, atol=1e-7)
    assert len(block.splitlines()) <= 25
