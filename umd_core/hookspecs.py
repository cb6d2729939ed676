"""The one plugin hook. A backend's module imports nothing but this until it is opened.

from umd_core.hookspecs import hookimpl

@hookimpl
def umd_register_backends() -> list[BackendInfo]:
    return [BackendInfo("mine", probe=probe, open=open_device)]
"""

from __future__ import annotations

import pluggy

from umd_core.device import BackendInfo

PROJECT = "umd"
hookspec: pluggy.HookspecMarker = pluggy.HookspecMarker(PROJECT)
hookimpl: pluggy.HookimplMarker = pluggy.HookimplMarker(PROJECT)


@hookspec
def umd_register_backends() -> list[BackendInfo]:  # type: ignore[empty-body]  # a specification
    """Returns the backends that this plugin brings."""
