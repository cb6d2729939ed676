"""The Dockerfile, as far as it can be checked without Docker: what it names is there, and its command is right."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from umd_grpc.addresses import split_host
from umd_grpc.config.arguments import from_arguments
from umd_grpc.config.load import exposed
from umd_grpc.files import state_folder
from umd_grpc.server import Settings

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def lines(instruction: str) -> list[str]:
    """Returns what follows each instruction of a kind."""
    return re.findall(rf"^{instruction} (.*)$", TEXT, re.MULTILINE)


def environment() -> dict[str, str]:
    """Returns the variables that the image sets."""
    return dict(pair.split("=") for line in lines("ENV") for pair in line.split())


def settings() -> Settings:
    """Returns how the image's server is set up when nothing is added to its command."""
    program, command, *arguments = json.loads(*lines("ENTRYPOINT"))
    assert program in PROJECT["scripts"]
    assert command == "serve"
    values = from_arguments(arguments)
    assert exposed(values) == []
    return Settings.of(values)


def test_its_parts_are_extras_of_the_package() -> None:
    extras = {line.removeprefix("EXTRAS=") for line in lines("ARG")}
    (chosen,) = extras  # both stages install the same
    assert {"grpc", "cli"} < set(chosen.split(",")) <= set(PROJECT["optional-dependencies"])
    (others,) = re.findall(r"--build-arg EXTRAS=(\S+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    assert set(chosen.split(",")) < set(others.split(",")) <= set(PROJECT["optional-dependencies"])


def test_what_it_copies_is_there() -> None:
    assert "COPY . ." in TEXT
    left_out = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    for name in (*re.findall(r"-c (\S+\.txt)", TEXT), "pyproject.toml", PROJECT["readme"]):
        assert (ROOT / name).is_file()
        assert name not in left_out


def test_its_python_is_one_that_the_package_supports() -> None:
    versions = {line.split()[0] for line in lines("FROM")}
    (image,) = versions
    (version,) = re.findall(r"python:(\d+\.\d+)-slim", image)
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]


def test_its_server_listens_where_it_says() -> None:
    found = settings()
    assert found.tls.auto
    ports = {split_host(address)[1] for address in (*found.listen, found.metrics)}
    assert ports == {port for line in lines("EXPOSE") for port in line.split()}


def test_its_user_owns_the_state_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    (user,) = lines("USER")
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    folder = state_folder(settings().state_dir)
    assert lines("VOLUME") == [str(folder)]
    assert re.search(rf"useradd .*\b{user}\b", TEXT)
    assert f"install -d -o {user} {folder}" in TEXT
