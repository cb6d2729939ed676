"""`umd serve`: translate and execute for clients. Its options are the fields of the configuration."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from umd_cli.output import Json
from umd_grpc.config.fields import FIELDS, Field
from umd_grpc.config.units import SWITCH, TEXTS

_PANELS = {
    "": "Options", "tls": "TLS", "quota": "Quota of an identity", "weights": "Weights that are kept",
    "shared_memory": "Shared memory", "workers": "Workers", "keepalive": "Clients that are gone without a word",
    "limits": "Limits of a client",
}  # fmt: skip


def serve(**given: Any) -> None:
    """Translate and execute for clients, until SIGTERM or Ctrl-C.

    One JSON line on stdout says when it listens and where; its log, a line a second under load, goes to stderr.
    """
    from umd_grpc.config.load import effective
    from umd_grpc.server import Settings, serve

    fields = {field.parameter: key for key, field in FIELDS.items()}
    flags = {fields[name]: value for name, value in given.items() if name in fields and value not in (None, False)}
    serve(Settings.of(effective(given["config"], flags)))


def _parameter(field: Field) -> inspect.Parameter:
    """Returns a field as a parameter of a command. One that is not given is None, or False for a switch."""
    table = field.key.rpartition(".")[0]
    option = typer.Option(
        *field.options,
        help=f"{field.meaning[0].upper()}{field.meaning[1:]}.",
        metavar=None if field.kind is SWITCH else field.kind.name.upper(),
        rich_help_panel=_PANELS[table],
        show_default=False,
    )
    kind: Any = bool if field.kind is SWITCH else list[str] | None if field.kind is TEXTS else str | None
    default = False if field.kind is SWITCH else None
    return inspect.Parameter(
        field.parameter, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


_CONFIG = inspect.Parameter(
    "config",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[str | None, typer.Option("--config", "-c", help="A file of settings; options override it.")],
)
_JSON = inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json)
_PARAMETERS = [_CONFIG, *map(_parameter, FIELDS.values()), _JSON]
vars(serve)["__signature__"] = inspect.Signature(_PARAMETERS)
serve.__annotations__ = {parameter.name: parameter.annotation for parameter in _PARAMETERS}
