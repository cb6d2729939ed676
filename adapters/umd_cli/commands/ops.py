"""`umd ops`: the op table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType

from umd_cli.output import Json, show, table

if TYPE_CHECKING:
    from umd_core.attributes import Attribute
    from umd_core.template import Input, OpTemplate, Result


def ops(
    name: Annotated[str | None, typer.Argument(help="An op, to see its signature and attributes.")] = None,
    json: Json = False,
) -> None:
    """List the ops that can be translated, or describe one."""
    from umd_core.ops import OPS, op_template

    if name is None:
        rows = [_summary(template) for template in sorted(OPS.values(), key=lambda t: (t.domain, t.name))]
        show(rows, json, lambda: [_listing(rows)])
    else:
        found = _details(op_template(name))
        show(found, json, lambda: _page(found))


def _summary(template: OpTemplate) -> dict[str, Any]:
    return {
        "name": template.name,
        "domain": template.domain,
        "inputs": [_port(port) for port in template.inputs],
        "outputs": [_port(port) for port in template.results],
        "attributes": [attribute.name for attribute in template.attributes],
        "doc": template.doc,
    }


def _port(port: Input | Result) -> str:
    """Returns a name with what may vary: `B?` may be left out, `inputs…` may be many, `shape!` is known early."""
    static = "!" if getattr(port, "static", False) else ""
    return f"{port.name}{static}{'?' if port.optional else ''}{'…' if port.variadic else ''}"


def _details(template: OpTemplate) -> dict[str, Any]:
    return {
        **_summary(template),
        "inputs": [{"name": _port(i), "type": i.type, "static": i.static} for i in template.inputs],
        "outputs": [{"name": _port(o), "type": o.type} for o in template.results],
        "types": {name: [d.name for d in allowed] for name, allowed in template.types.items()},
        "attributes": [_attribute(a) for a in template.attributes],
        "source": template.source,
    }


def _attribute(attribute: Attribute) -> dict[str, Any]:
    return {
        "name": attribute.name,
        "kind": attribute.kind,
        "required": attribute.required,
        "default": attribute.default,
        "choices": list(attribute.choices),
    }


def _listing(rows: list[dict[str, Any]]) -> RenderableType:
    return table(
        ("op", "inputs", "outputs", "attributes", "what it does"),
        ((r["name"], " ".join(r["inputs"]), " ".join(r["outputs"]), " ".join(r["attributes"]), r["doc"]) for r in rows),
    )


def _page(found: dict[str, Any]) -> Iterable[RenderableType]:
    yield f"{found['name']} ({found['domain']}): {found['doc']}"
    if found["source"]:
        yield found["source"]
    ports = [("input", port) for port in found["inputs"]] + [("output", port) for port in found["outputs"]]
    yield ""
    yield table(("", "name", "type"), ((kind, port["name"], port["type"]) for kind, port in ports))
    yield ""
    yield table(("type", "may be"), ((name, " ".join(allowed)) for name, allowed in found["types"].items()))
    if found["attributes"]:
        yield ""
    yield table(
        ("attribute", "kind", "default", "one of"),
        (
            (a["name"], a["kind"], "(required)" if a["required"] else a["default"], " ".join(map(str, a["choices"])))
            for a in found["attributes"]
        ),
    )
    yield ""
    yield "? may be left out   … may be many   ! its value must be known when the op is translated"
