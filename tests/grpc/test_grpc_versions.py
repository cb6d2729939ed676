"""Whether generated code and installed packages fit together."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from umd_grpc.versions import NEEDED, check_versions

GENERATED = Path(__file__).parents[2] / "adapters" / "umd_grpc" / "_pb" / "umd"


def test_the_installed_versions_fit() -> None:
    check_versions()


def test_what_does_not_fit_is_named_with_the_cure() -> None:
    with pytest.raises(ImportError, match=r"pip install 'grpcio>=99.1' 'protobuf>=1'") as caught:
        check_versions({"grpcio": (99, 1), "protobuf": (1,)})
    assert "protobuf 7" not in str(caught.value)
    with pytest.raises(ImportError, match="no-such-package not installed"):
        check_versions({"no-such-package": (1,)})


def test_the_bounds_are_those_of_the_generator() -> None:
    for module in GENERATED.glob("*_pb2.py"):
        (version,) = re.findall(r"^# Protobuf Python Version: (\S+)$", module.read_text(encoding="utf-8"), re.MULTILINE)
        assert tuple(map(int, version.split("."))) == NEEDED["protobuf"]
    for module in GENERATED.glob("*_pb2_grpc.py"):
        (version,) = re.findall(r"^GRPC_GENERATED_VERSION = '(\S+)'$", module.read_text(encoding="utf-8"), re.MULTILINE)
        assert tuple(map(int, version.split("."))) == NEEDED["grpcio"]


def test_registering_the_backends_loads_no_grpc() -> None:
    code = "import sys, umd_grpc.plugin as p; p.umd_register_backends(); sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
