"""Writes docs/service-configuration.md from the table of settings.

python scripts/service_docs.py            exit 1 when the document differs
python scripts/service_docs.py --write    write it
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from umd_grpc.config.fields import FIELDS, Field
from umd_grpc.config.units import SWITCH, TEXTS

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "service-configuration.md"
LEAD = """# Configuration of `umd serve`

Generated from the table of settings by `python scripts/service_docs.py --write`; do not edit.

Every setting has a place in a file (`umd serve --config FILE`, TOML) and a flag; a flag overrides the file.
`umd config check FILE` says everything that is wrong with a file, with the lines, and ends with code 1 when something
is. `umd config show [FILE]` prints every setting as a file. Unknown keys are errors.

A size is `"8GiB"`, `"64MiB"`, `"10MB"` or a number of bytes; a duration `"30s"`, `"500ms"`, `"1h"`, `"30d"` or a number
of seconds; a file mode `"600"`. Text is quoted, a list is `["a", "b"]`; as flags, a list's flag may be repeated.
`python -m umd_grpc.server` takes the same flags.

    devices = ["cuda:0", "cuda:1"]
    listen = ["0.0.0.0:50051", "unix:/run/umd.sock"]
    advertise = "gpu7.example.org"

    [tls]
    auto = true

    [quota]
    memory = "16GiB"
    ops_per_second = 50_000
"""
_TABLES = {
    "": ("At the top of the file", ""),
    "tls": ("`[tls]`", "A unix socket has no TLS. What TLS is for, and who may call: [service.md](service.md)."),
    "quota": (
        "`[quota]`",
        "What one identity may use over all of its sessions, unless its token says otherwise. Nothing said: no limit.",
    ),
    "weights": ("`[weights]`", 'Off unless a folder is named. See "Bulk data" in [service.md](service.md).'),
    "shared_memory": ("`[shared_memory]`", "For clients on the same host and of the same user; the same page."),
    "workers": ("`[workers]`", 'Devices in processes of their own; see "Workers" in [service.md](service.md).'),
    "keepalive": (
        "`[keepalive]`",
        'How a client is noticed that is gone without a word; see "For operators" in [service.md](service.md).',
    ),
    "limits": ("`[limits]`", "What one client may ask for, whoever it is; beyond it is status 8."),
}


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in lines)


def _row(field: Field) -> tuple[str, str, str, str, str]:
    value = "" if field.kind is SWITCH else " TEXT" if field.kind is TEXTS else f" {field.kind.name.upper()}"
    default = field.show(field.default)
    return (
        f"`{field.key.rpartition('.')[2]}`",
        field.kind.name,
        f"`{default}`" if default else "none",
        f"`{field.options[0]}{value}`",
        field.meaning,
    )


def document() -> str:
    """Returns the whole document."""
    parts = [LEAD.rstrip()]
    for name, (title, text) in _TABLES.items():
        own = [field for field in FIELDS.values() if field.key.rpartition(".")[0] == name]
        parts += [f"## {title}", *([text] if text else [])]
        parts.append(table(("key", "type", "default", "flag", "what it does"), map(_row, own)))
    return "\n\n".join(parts) + "\n"


def main() -> int:
    """Writes or compares the document."""
    text = document()
    if "--write" in sys.argv[1:]:
        DOCUMENT.write_text(text, encoding="utf-8")
        return 0
    same = DOCUMENT.exists() and DOCUMENT.read_text(encoding="utf-8") == text
    print(f"docs/{DOCUMENT.name} is up to date" if same else f"docs/{DOCUMENT.name} differs: run with --write")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
