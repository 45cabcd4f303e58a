"""The commands for OpenAPI documents: `ferrule openapi show|add`."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from ferrule.cli import show
from ferrule.cli.arguments import read_pairs
from ferrule.cli.session import USAGE, Session, fail
from ferrule.cli.terminal import say
from ferrule.errors import FerruleError
from ferrule.executors.openapi.operation import Api, Operation
from ferrule.sources.openapi_document import is_url
from ferrule.sources.openapi_tool import read_openapi
from ferrule.spec import Tool

openapi_app = typer.Typer(help="Use web APIs that have an OpenAPI document.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Source = Annotated[str, typer.Argument(help="The document: a file or a URL.")]
Name = Annotated[str | None, typer.Option("--name", help="What to call the tool; else the document's title.")]
Server = Annotated[
    str | None, typer.Option("--server", help="A URL, or the description of a server that the document lists.")
]
Only = Annotated[list[str] | None, typer.Option("--operation", help="Take only this operation; may be repeated.")]
Without = Annotated[list[str] | None, typer.Option("--exclude", help="Leave this operation out; may be repeated.")]
ServerVariable = Annotated[
    list[str] | None, typer.Option("--variable", metavar="NAME=VALUE", help="A variable of the server's URL.")
]
Credential = Annotated[
    list[str] | None,
    typer.Option("--credential", metavar="SCHEME=VARIABLE", help="The environment variable of a security scheme."),
]


@openapi_app.command("show")
def show_document(
    context: typer.Context,
    source: Source,
    name: Name = None,
    server: Server = None,
    variable: ServerVariable = None,
    operation: Only = None,
    exclude: Without = None,
    credential: Credential = None,
    as_json: AsJson = False,
) -> None:
    """Show what a document offers, where calls would be sent, and which credentials they need."""
    _, tool = _read(context.obj, source, name, server, variable, operation, exclude, credential)
    if as_json:
        show.as_json(_described(tool))
        return
    api = _api(tool)
    say(f"{tool.id}: {show.first_sentence(tool.spec.description)}")
    operations = show.counted(len(api.operations), "operation")
    say(f"version {tool.spec.version}, OpenAPI {tool.spec.metadata['openapi']}, {operations}")
    for url in tool.spec.metadata["servers"]:
        say(f"server {url}")
    for variable_name, where in _needed(api).items():
        state = "set" if variable_name in os.environ else "not set"
        say(f"credential ${variable_name} ({where}): {state}")
    show.table(
        ("action", "request", "needs", "what it does"),
        [
            (
                capability.name,
                f"{api.operations[capability.name].method} {api.operations[capability.name].path}",
                _security(api.operations[capability.name]),
                show.first_sentence(capability.description),
            )
            for capability in tool.spec.capabilities
        ],
        empty="",
        cut=(3, 1, 2, 0),
    )


@openapi_app.command("add")
def add_document(
    context: typer.Context,
    source: Source,
    name: Name = None,
    server: Server = None,
    variable: ServerVariable = None,
    operation: Only = None,
    exclude: Without = None,
    credential: Credential = None,
    as_json: AsJson = False,
) -> None:
    """Add a document to ferrule.toml. It is read first, to see whether it can be used."""
    entry, tool = _read(context.obj, source, name, server, variable, operation, exclude, credential)
    try:
        path = context.obj.config().path
        if path is None:
            fail("There is no ferrule.toml here. Make one with: ferrule init", code=USAGE)
        if not is_url(source):
            entry["source"] = os.path.relpath(source, path.parent)
        _append(path, tool, entry)
    except (FerruleError, OSError) as error:
        fail(str(error), code=USAGE)
    if as_json:
        show.as_json({"tool": tool.id, "file": str(path), "entry": entry})
        return
    say(f"added {tool.id} to {path}, with {show.counted(len(tool.spec.capabilities), 'action')}")
    missing = [variable_name for variable_name in _needed(_api(tool)) if variable_name not in os.environ]
    if missing:
        say(f"Set before you call it: {', '.join(missing)}")
    say(f"Next: ferrule tools show {tool.id}")


def _read(
    session: Session,
    source: str,
    name: str | None,
    server: str | None,
    variable: list[str] | None,
    operation: list[str] | None,
    exclude: list[str] | None,
    credential: list[str] | None,
) -> tuple[dict[str, Any], Tool]:
    """An entry of ferrule.toml, and the tool it stands for."""
    try:
        said: dict[str, Any] = {
            "source": source,
            "name": name,
            "server": server,
            "variables": read_pairs(variable or (), "--variable"),
            "operations": operation,
            "exclude": exclude,
            "credentials": read_pairs(credential or (), "--credential"),
        }
        entry = {key: value for key, value in said.items() if value}
        options = {key: value for key, value in entry.items() if key != "source"}
        # A path is no text, whatever it looks like.
        place = source if is_url(source) else Path(source)
        return entry, read_openapi(place, guard=session.config().address_guard, **options)
    except FerruleError as error:
        fail(str(error), code=USAGE)


def _append(path: Path, tool: Tool, entry: dict[str, Any]) -> None:
    before = path.read_text(encoding="utf-8")
    lines = [f"{key} = {_toml(value)}" for key, value in entry.items()]
    after = "\n".join([before.rstrip("\n"), "", "[[openapi]]", *lines, ""])
    there = tomllib.loads(before).get("openapi") or []
    if any(each.get("source") == entry["source"] and each.get("name") == entry.get("name") for each in there):
        fail(f"{entry['source']} is in {path} already. Give it another --name to have it twice.", code=USAGE)
    try:
        tomllib.loads(after)  # nobody must find a file that cannot be read
    except tomllib.TOMLDecodeError as error:
        fail(f"{path} would be broken by a section [[openapi]]: {error}. Write the entry yourself.", code=USAGE)
    path.write_text(after.lstrip("\n"), encoding="utf-8")


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml(key)} = {_toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _described(tool: Tool) -> dict[str, Any]:
    api = _api(tool)
    return {
        "tool_id": tool.id,
        "description": tool.spec.description,
        "version": tool.spec.version,
        "servers": tool.spec.metadata["servers"],
        "credentials": [
            {"variable": variable, "sent_as": where, "is_set": variable in os.environ}
            for variable, where in _needed(api).items()
        ],
        "operations": [
            {
                "action": capability.name,
                "method": api.operations[capability.name].method,
                "path": api.operations[capability.name].path,
                "description": capability.description,
                "credentials": [[c.variable for c in each] for each in api.operations[capability.name].security],
            }
            for capability in tool.spec.capabilities
        ],
    }


def _api(tool: Tool) -> Api:
    assert isinstance(tool.target, Api)
    return tool.target


def _needed(api: Api) -> dict[str, str]:
    """The variables that any operation may need, and what is sent with them."""
    return {
        credential.variable: f"{credential.place} {credential.name}"
        for operation in api.operations.values()
        for alternative in operation.security
        for credential in alternative
    }


def _security(operation: Operation) -> str:
    """`API_KEY or USER`; empty when a call needs nothing."""
    return " or ".join(" and ".join(f"${c.variable}" for c in each) or "nothing" for each in operation.security)
