"""Discovery of backends: fake installed packages on the path, good and bad."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.core.device_samples import HostDevice
from umd_core.device import Available, BackendInfo, CompositeDevice, Unavailable
from umd_core.errors import DeviceLostError, UnsupportedError
from umd_core.hookspecs import hookimpl
from umd_core.registry import Registry, split_names

Install = Callable[..., None]
GROUP = "umd.backends.test"
GOOD = """
from umd_core.device import Available, BackendInfo
from umd_core.hookspecs import hookimpl
@hookimpl
def umd_register_backends():
    return [BackendInfo("{name}", lambda: Available(("first", "second")), lambda rest: ("{name}", rest))]
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Returns a function that puts a module with an entry point on the path, as an installed package would."""
    monkeypatch.syspath_prepend(tmp_path)
    modules: list[str] = []

    def install(name: str, source: str, group: str = GROUP) -> None:
        (tmp_path / f"plugin_{name}.py").write_text(source)
        info = tmp_path / f"plugin_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: plugin-{name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = plugin_{name}\n")
        modules.append(f"plugin_{name}")

    yield install
    for module in modules:
        sys.modules.pop(module, None)


def plugin(*infos: BackendInfo) -> Any:
    return SimpleNamespace(umd_register_backends=hookimpl(lambda: list(infos)))


def info(name: str, probe: Any = lambda: Available(("one",)), opened: Any = None, **options: Any) -> BackendInfo:
    def open_it(rest: str) -> Any:
        return opened or (name, rest)

    return BackendInfo(name, probe, open_it, **options)


@pytest.fixture
def empty() -> Registry:
    return Registry("umd.backends.nobody")


def test_installed_plugins_are_found_and_opened(install: Install) -> None:
    install("good", GOOD.format(name="good"))
    registry = Registry(GROUP)
    assert "plugin_good" not in sys.modules
    assert list(registry.backends) == ["good"]
    assert [(d.name, d.detail, d.available, d.plugin) for d in registry.devices()] == [
        ("good:0", "first", True, "good"),
        ("good:1", "second", True, "good"),
    ]
    names = {"good:1": "1", "good://host:50051/x,y:0": "//host:50051/x,y:0"}
    for name, rest in names.items():
        opened: Any = registry.open(name)
        assert opened == ("good", rest)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise ImportError('no driver')", "ImportError: no driver"),
        ("import no_such_module_at_all", "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
        (
            GOOD.format(name="x").replace("    return [", "    raise ValueError('late')\n    return ["),
            "ValueError: late",
        ),
        (GOOD.format(name="x").replace("umd_register_backends", "umd_register_backend"), "unknown hook"),
    ],
)
def test_a_broken_plugin_is_shown_and_stops_nobody(install: Install, source: str, reason: str) -> None:
    install("bad", source)
    install("good", GOOD.format(name="good"))
    registry = Registry(GROUP)
    *good, bad = registry.devices()
    assert [d.name for d in good] == ["good:0", "good:1"]
    assert (bad.name, bad.available) == ("bad", False)
    assert reason in bad.detail
    with pytest.raises(UnsupportedError) as caught:
        registry.open("bad:0")
    assert reason in str(caught.value)


def test_failing_and_hanging_probes_are_kept(empty: Registry) -> None:
    release = threading.Event()

    def fails() -> Available:
        raise OSError("no such device")

    def hangs() -> Available:
        release.wait(30)
        return Available(())

    empty.register(
        plugin(
            info("fails", fails), info("hangs", hangs), info("absent", lambda: Unavailable("no card")), info("works")
        ),
        "many",
    )
    entries = {entry.backend: entry for entry in empty.devices(timeout=0.2)}
    release.set()
    assert entries["fails"].detail == "OSError: no such device"
    assert entries["hangs"].detail == "its probe took more than 0.2 s"
    assert entries["absent"].detail == "no card"
    assert [entries[name].available for name in ("fails", "hangs", "absent", "works")] == [False, False, False, True]


@pytest.mark.parametrize("api", [(2, 0), (1, 1), (0, 9)])
def test_other_plugin_interfaces_are_refused(empty: Registry, api: tuple[int, int]) -> None:
    empty.register(plugin(info("old", api=api), info("new")), "mixed")
    assert list(empty.backends) == ["new"]
    (failure,) = empty.failures
    assert failure.backend == "old"
    assert f"interface {api[0]}.{api[1]}, this umd has 1.0" in failure.detail


def test_the_second_backend_of_a_name_is_refused(empty: Registry) -> None:
    first = info("twice")
    empty.register(plugin(first), "one")
    empty.register(plugin(info("twice")), "two")
    assert empty.backends["twice"] is first
    assert "plugin 'one' already brings backend 'twice'" in empty.failures[0].detail


def test_unknown_backends_name_the_known(empty: Registry) -> None:
    empty.register(plugin(info("sim", priority=1), info("mine", priority=2)), "p")
    with pytest.raises(UnsupportedError) as caught:
        empty.open("simm:0")
    assert "no backend 'simm'; known: mine, sim" in str(caught.value)
    assert "'umd.backends.nobody'" in str(caught.value)


def test_the_default_is_the_available_device_of_highest_priority(empty: Registry) -> None:
    empty.register(
        plugin(info("low", priority=1), info("high", lambda: Unavailable("off"), priority=9), info("mid", priority=5)),
        "p",
    )
    assert empty.default() == "mid:0"


def test_no_device_at_all_says_why(empty: Registry) -> None:
    with pytest.raises(UnsupportedError, match="no backend is installed"):
        empty.default()
    empty.register(plugin(info("only", lambda: Unavailable("no card"))), "p")
    with pytest.raises(UnsupportedError, match="only: no card"):
        empty.default()


def test_what_goes_wrong_inside_open_is_typed(empty: Registry) -> None:
    def explode(rest: str) -> Any:
        raise RuntimeError(f"cannot reach {rest}")

    def lost(rest: str) -> Any:
        raise DeviceLostError(rest, "gone")

    always = lambda: Available(("x",))  # noqa: E731  # a probe
    empty.register(plugin(BackendInfo("explode", always, explode), BackendInfo("lost", always, lost)), "p")
    with pytest.raises(UnsupportedError, match="RuntimeError: cannot reach 7"):
        empty.open("explode:7")
    with pytest.raises(DeviceLostError):
        empty.open("lost:7")


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ("sim:0", ["sim:0"]),
        ("mine:0,sim:0", ["mine:0", "sim:0"]),
        ("mine:0, sim:0", ["mine:0", "sim:0"]),
        ("grpc://host:1/mine:0,sim:0", ["grpc://host:1/mine:0,sim:0"]),
        ("sim:0,grpc://host:1/a,b", ["sim:0", "grpc://host:1/a,b"]),
        ("", [""]),
    ],
)
def test_split_names(names: str, wanted: list[str]) -> None:
    assert split_names(names) == wanted


def test_a_list_opens_a_composite_and_closes_what_it_opened_on_failure(empty: Registry) -> None:
    first = HostDevice()
    remote = SimpleNamespace(close=lambda: None)
    empty.register(plugin(info("a", opened=first), info("b", opened=HostDevice()), info("remote", opened=remote)), "p")
    device = empty.open("a:0,b:0")
    assert isinstance(device, CompositeDevice)
    assert device.name == "host:0,host:0"
    with pytest.raises(UnsupportedError, match="cannot be part of a device list"):
        empty.open("a:0,remote:0")
    with pytest.raises(DeviceLostError):
        first.allocate(1)


def test_importing_the_registry_imports_no_backend() -> None:
    code = "import sys, umd_core.registry; print([m for m in ('umd_sim', 'umd_grpc', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
