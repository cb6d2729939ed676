"""UMD_CAPTURE=DIR: every device that the process opens writes a capture into a folder of its own under DIR."""

from __future__ import annotations

import atexit
import itertools
import os
import re
from pathlib import Path
from typing import Any

from umd_core.capture.device import OUTPUTS, CapturingDevice
from umd_core.capture.folder import LIMIT, Folder
from umd_core.errors import AttributeValueError

FOLDER, LIMIT_BYTES, RECORDED = "UMD_CAPTURE", "UMD_CAPTURE_LIMIT", "UMD_CAPTURE_OUTPUTS"
_numbers = itertools.count()


def captured(device: Any) -> CapturingDevice:
    """Returns the device, captured as the environment says: `UMD_CAPTURE` is set when this is called.

    Raises:
        AttributeValueError: `UMD_CAPTURE_LIMIT` is no number of bytes, or `UMD_CAPTURE_OUTPUTS` is unknown.
    """
    try:
        limit, outputs = _settings()
    except AttributeValueError:
        device.close()
        raise
    plain = re.sub(r"[^\w.-]+", "-", device.name).strip("-.")[:80]
    path = Path(os.environ[FOLDER]) / f"{plain}-{os.getpid()}-{next(_numbers)}"
    folder = Folder(path, device.name, limit)
    atexit.register(folder.close)  # few programs close their devices
    return CapturingDevice(device, folder, outputs)


def _settings() -> tuple[int, str]:
    """Returns how many bytes a capture may take, and what is recorded of results."""
    limit, outputs = os.environ.get(LIMIT_BYTES, str(LIMIT)), os.environ.get(RECORDED, OUTPUTS[0])
    if not limit.isdecimal():
        raise AttributeValueError("capture", LIMIT_BYTES, "is no number", value=limit, wanted="a number of bytes")
    if outputs not in OUTPUTS:
        raise AttributeValueError("capture", RECORDED, "is unknown", value=outputs, wanted=" or ".join(OUTPUTS))
    return int(limit), outputs
