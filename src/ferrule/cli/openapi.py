"""The commands for OpenAPI documents: `ferrule openapi show|add|update`."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from ferrule.cli import printing
from ferrule.cli.session import AsJson, Session, fail, parse_pairs
from ferrule.cli.terminal import confirm, echo, print_error
from ferrule.core.spec import Tool
from ferrule.errors import LoadError
from ferrule.http.client import format_url
from ferrule.kinds.openapi.document import is_url
from ferrule.kinds.openapi.operation import OpenApiTarget
from ferrule.kinds.openapi.source import OpenApiDocuments
from ferrule.kinds.openapi.tool import OpenApiEntry, read_openapi

openapi_app = typer.Typer(help="Use web APIs that have an OpenAPI document.", no_args_is_help=True)

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
    _, tool = _read_document(context.obj, source, name, server, variable, operation, exclude, credential)
    described = _describe_document(tool)
    if as_json:
        printing.print_json(described)
        return
    echo(f"{tool.id}: {printing.first_sentence(tool.spec.description)}")
    operations = printing.format_count(len(described["operations"]), "operation")
    echo(f"version {tool.spec.version}, OpenAPI {tool.spec.metadata['openapi']}, {operations}")
    for url in described["servers"]:
        echo(f"server {url}")
    for each in described["credentials"]:
        echo(f"credential ${each['variable']} ({each['sent_as']}): {'set' if each['is_set'] else 'not set'}")
    columns: printing.Columns = {
        "action": "action",
        "request": lambda operation: f"{operation['method']} {operation['path']}",
        "needs": lambda operation: " or ".join(
            " and ".join(f"${variable}" for variable in each) or "nothing" for each in operation["credentials"]
        ),
        "description": lambda operation: printing.first_sentence(operation["description"]),
    }
    printing.print_list(described["operations"], columns, as_json=False, empty="", cut=(3, 1, 2, 0))


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
    entry, tool = _read_document(context.obj, source, name, server, variable, operation, exclude, credential)
    path = context.obj.config().path
    if path is None:
        fail("There is no ferrule.toml here. Make one with: ferrule init")
    if not is_url(source):
        entry["source"] = os.path.relpath(source, path.parent)
    _append_entry(path, tool, entry)
    lines = [f"added {tool.id} to {path}, with {printing.format_count(len(tool.spec.capabilities), 'action')}"]
    if missing := [each for each in _credential_variables(_target_of(tool)) if each not in os.environ]:
        lines.append(f"Set before you call it: {', '.join(missing)}")
    lines.append(f"Next: ferrule tools show {tool.id}")
    printing.print_outcome({"tool": tool.id, "file": str(path), "entry": entry}, *lines, as_json=as_json)


@openapi_app.command("update")
def update_documents(
    context: typer.Context,
    source: Annotated[
        str | None, typer.Argument(help="The URL of a document or the name of its tool; else all.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Accept all changes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch the project's documents at URLs again, show what has changed, and use it if you accept it."""
    config = context.obj.config()
    entries = [entry for entry in config.engine_config.openapi if is_url(entry.source)]
    entries = [entry for entry in entries if source in (None, entry.source, entry.name)]
    if not entries:
        fail(f"ferrule.toml names no document at a URL{f' {source!r}' if source else ''}.")
    documents = OpenApiDocuments(entries, config.address_guard)
    outcomes = [_update_document(documents, entry, yes=yes) for entry in entries]
    if as_json:
        printing.print_json(outcomes)
    if any(each["state"] in ("not accepted", "failed") for each in outcomes):
        raise typer.Exit(1)


def _update_document(documents: OpenApiDocuments, entry: OpenApiEntry, *, yes: bool) -> dict[str, Any]:
    where = format_url(entry.source)
    try:
        update = documents.fetch_update(entry)
    except LoadError as error:
        print_error(f"ferrule: {error}")
        return {"source": where, "state": "failed", "changes": []}
    lines = [f"{where} has changed:", *(f"  {line}" for line in update.changes)]
    is_accepted = not update.changes or yes or confirm(lines, "Use it?")
    if update.changes and (yes or not is_accepted):
        print_error("\n".join(lines))
    if is_accepted:
        documents.accept_update(entry, update)
        state = "updated" if update.changes or update.is_new else "unchanged"
        print_error(f"ferrule: {where}: {state}")
    else:
        state = "not accepted"
        print_error(f"ferrule: {where}: not accepted. To accept it: ferrule openapi update --yes")
    return {"source": where, "state": state, "changes": list(update.changes)}


def _read_document(
    session: Session,
    source: str,
    name: str | None,
    server: str | None,
    variable: list[str] | None,
    operation: list[str] | None,
    exclude: list[str] | None,
    credential: list[str] | None,
) -> tuple[dict[str, Any], Tool]:
    """Make an entry of ferrule.toml, and read the tool that it describes."""
    values: dict[str, Any] = {
        "source": source,
        "name": name,
        "server": server,
        "variables": parse_pairs(variable, "--variable"),
        "operations": operation,
        "exclude": exclude,
        "credentials": parse_pairs(credential, "--credential"),
    }
    entry = {key: value for key, value in values.items() if value}
    options = {key: value for key, value in entry.items() if key != "source"}
    # A Path is always a file, even if its text looks like a URL.
    location = source if is_url(source) else Path(source)
    return entry, read_openapi(location, guard=session.config().address_guard, **options)


def _append_entry(path: Path, tool: Tool, entry: dict[str, Any]) -> None:
    before = path.read_text(encoding="utf-8")
    lines = [f"{key} = {_to_toml(value)}" for key, value in entry.items()]
    after = "\n".join([before.rstrip("\n"), "", "[[openapi]]", *lines, ""])
    entries = tomllib.loads(before).get("openapi") or []
    if any(other.get("source") == entry["source"] and other.get("name") == entry.get("name") for other in entries):
        fail(f"{entry['source']} is already in {path}. To add it again, give it another --name.")
    try:
        tomllib.loads(after)  # never leave a file that cannot be parsed
    except tomllib.TOMLDecodeError as error:
        fail(f"{path} would be broken by a section [[openapi]]: {error}. Write the entry yourself.")
    path.write_text(after.lstrip("\n"), encoding="utf-8")


def _to_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_to_toml(key)} = {_to_toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_to_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _describe_document(tool: Tool) -> dict[str, Any]:
    api = _target_of(tool)
    return {
        "tool_id": tool.id,
        "description": tool.spec.description,
        "version": tool.spec.version,
        "servers": tool.spec.metadata["servers"],
        "credentials": [
            {"variable": variable, "sent_as": where, "is_set": variable in os.environ}
            for variable, where in _credential_variables(api).items()
        ],
        "operations": [
            {
                "action": capability.name,
                "method": operation.method,
                "path": operation.path,
                "description": capability.description,
                "credentials": [[credential.variable for credential in each] for each in operation.security],
            }
            for capability in tool.spec.capabilities
            for operation in [api.operations[capability.name]]
        ],
    }


def _target_of(tool: Tool) -> OpenApiTarget:
    assert isinstance(tool.target, OpenApiTarget)
    return tool.target


def _credential_variables(api: OpenApiTarget) -> dict[str, str]:
    """Return the variables that any operation may need, and what is sent with them."""
    return {
        credential.variable: f"{credential.location} {credential.name}"
        for operation in api.operations.values()
        for alternative in operation.security
        for credential in alternative
    }
