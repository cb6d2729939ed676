"""Writes the golden files of the current format version: bytes, text dump and sha256 of each sample.

Golden files are kept for ever, so a file that is there already is never written again.

    python scripts/make_golden.py [FOLDER]
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.core.encoding_samples import SAMPLES, encoded  # noqa: E402  # found through the line above
from umd_core.disassemble import disassemble  # noqa: E402  # the path is set above
from umd_core.encoding import VERSION, encode_original  # noqa: E402  # the path is set above

FOLDER = ROOT / "tests" / "golden" / f"v{VERSION[0]}.{VERSION[1]}"


def contents() -> dict[str, bytes]:
    """Returns the bytes of every golden buffer by name."""
    return {**{name: encoded(name) for name in SAMPLES}, "original": encode_original("elementwise_add_kernel", 1000)}


def main(folder: Path) -> int:
    """Writes the files; returns the exit code."""
    wanted: dict[Path, bytes] = {}
    for name, raw in contents().items():
        wanted[folder / f"{name}.umdcmd"] = raw
        wanted[folder / f"{name}.txt"] = disassemble(raw).encode()
        wanted[folder / f"{name}.sha256"] = f"{hashlib.sha256(raw).hexdigest()}  {name}.umdcmd\n".encode()
    present = [path for path in wanted if path.exists()]
    if present:
        print(f"{present[0]} and {len(present) - 1} more are there already; golden files are never overwritten")
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    for path, data in wanted.items():
        path.write_bytes(data)
    print(f"wrote {len(wanted)} files to {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))
