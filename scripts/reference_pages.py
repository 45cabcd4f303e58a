"""Generates the pages of the reference from the code; `--check` only reports whether they are up to date.

docs/settings.md comes from the classes that read `ferrule.toml`, docs/http-api.md from the server's OpenAPI document
and docs/metrics.md from its metrics. The tables of docs/events.md and docs/errors.md come from the descriptions of the
event types and error types; the rest of these two pages is written by hand. The pages of the examples show the files of
examples/ between `<!-- file: … -->` and `<!-- end -->`.
"""

import ast
import asyncio
import re
import sys
from collections.abc import Callable, Iterator
from inspect import getsource
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
from settings_page import settings_page

from ferrule import UnifiedToolLibrary, errors
from ferrule.core import events
from ferrule.server.app import create_app
from ferrule.server.metrics import METRICS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FILE = re.compile(r"(<!-- file: (\S+) -->\n\n).*?(\n\n<!-- end -->)", re.S)
TABLE = re.compile(r"(<!-- generated: (\w+) -->\n\n).*?(\n\n<!-- end -->)", re.S)

HTTP_INTRODUCTION = """\
# HTTP API

Every route of `ferrule serve`. This page is generated from the OpenAPI document that the server offers at
`/openapi.json`; [Server](server.md) explains tokens, streams, approvals and errors. MCP clients use `/mcp`, which is
not in this list. A request without a valid token is answered with 401, and a request that the token does not allow
with 403; errors are RFC 9457 problems (`application/problem+json`)."""

METRICS_INTRODUCTION = """\
# Metrics

The metrics for Prometheus at `GET /metrics` of `ferrule serve`. This page is generated from the code;
[Telemetry](telemetry.md) says how metrics are collected. The workers of one `ferrule serve` give one answer.
`status` is `success` or the type of the error. After the first 500 names, further names are counted as `other`.

| metric | kind | labels | meaning |
| --- | --- | --- | --- |"""

SECTION_TITLES = {
    "tools": "Tools and MCP servers",
    "calls": "Calls",
    "questions": "Questions and conversations",
    "runs": "Runs and what was learned",
    "approvals": "Approvals",
    "costs": "Costs",
    "openai": "OpenAI's API",
    "access": "Tokens, sessions and policy",
    "credentials": "Credentials",
    "events": "Events",
    "server": "Health and metrics",
}


def descriptions(body: list[ast.stmt]) -> Iterator[tuple[str, list[str]]]:
    """Names that are assigned, each with the paragraphs of the text below it."""
    for statement, text in zip(body, body[1:], strict=False):
        if not (isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)):
            continue
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                paragraphs = str(text.value.value).strip().split("\n\n")
                yield name, [" ".join(each.split()) for each in paragraphs]


def body_of(source: ModuleType | type) -> list[ast.stmt]:
    tree = ast.parse(getsource(source))
    return tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else tree.body


def event_table() -> str:
    described = dict(descriptions(body_of(events.ToolEngineEventType)))
    texts = {name: " ".join(paragraphs).partition(" Data: ") for name, paragraphs in described.items()}
    rows = [f"| `{name}` | {when} | {data.rstrip('.')} |" for name, (when, _, data) in texts.items()]
    return "\n".join(["| type | when | `data` |", "| --- | --- | --- |", *rows])


def error_table() -> str:
    rows = [
        f"| `{getattr(errors, name)}` | {meaning} | {fix} |"
        for name, (meaning, fix) in descriptions(body_of(errors))
        if name.isupper()
    ]
    return "\n".join(["| `error_type` | meaning | what to do |", "| --- | --- | --- |", *rows])


def exception_table() -> str:
    """The exceptions that are raised: those of calls become results."""
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    raised = [each for each in classes if issubclass(each, errors.FerruleError)]
    rows = [
        f"| `{each.__name__}` | `{each.__base__.__name__}` | {' '.join((each.__doc__ or '').split())} |"
        for each in raised
        if not issubclass(each, errors.CallError)
    ]
    return "\n".join(["| exception | is a | meaning |", "| --- | --- | --- |", *rows])


TABLES: dict[str, Callable[[], str]] = {
    "events": event_table,
    "error_types": error_table,
    "exceptions": exception_table,
}


def fill_tables(page: Path) -> str:
    return TABLE.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}{match[3]}", page.read_text(encoding="utf-8"))


def show_files(page: Path) -> str:
    """The page with the files that it names. `py` instead of `python`: the tests run the files themselves."""

    def show(match: re.Match[str]) -> str:
        code = (ROOT / match[2]).read_text(encoding="utf-8")
        return f"{match[1]}```{'ini' if match[2].endswith('toml') else 'py'}\n{code}```{match[3]}"

    return FILE.sub(show, page.read_text(encoding="utf-8"))


def metrics_page() -> str:
    rows = []
    for name, kind in METRICS.items():
        labels = ", ".join(f"`{label}`" for label in kind.labels)
        rows.append(f"| `{name}{'_total' if kind.type == 'counter' else ''}` | {kind.type} | {labels} | {kind.text} |")
    return "\n".join([METRICS_INTRODUCTION, *rows]) + "\n"


async def read_openapi() -> dict[str, Any]:
    transport = httpx.ASGITransport(create_app(UnifiedToolLibrary(), is_open=True))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        document: dict[str, Any] = (await client.get("/openapi.json")).raise_for_status().json()
        return document


def http_page() -> str:
    document = asyncio.run(read_openapi())
    operations: dict[str, list[str]] = {tag: [] for tag in SECTION_TITLES}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            operations[operation["tags"][0]].append(operation_text(method, path, operation, document))
    parts = [HTTP_INTRODUCTION]
    for tag, texts in operations.items():
        parts += [f"## {SECTION_TITLES[tag]}", *texts]
    return "\n\n".join(parts) + "\n"


def operation_text(method: str, path: str, operation: dict[str, Any], document: dict[str, Any]) -> str:
    parts = [f"### {method.upper()} {path}", operation.get("description") or f"{operation['summary'].capitalize()}."]
    query = [each for each in operation.get("parameters", ()) if each["in"] == "query"]
    if query:
        rows = [
            f"| `{each['name']}` | {schema_text(each['schema'])} | {each.get('description') or ''} |" for each in query
        ]
        parts.append("\n".join(["| query parameter | type | |", "| --- | --- | --- |", *rows]))
    for schema in body_schemas(operation, document):
        required = schema.get("required", ())
        rows = [
            f"| `{name}` | {schema_text(value)} | {'required' if name in required else ''} |"
            for name, value in schema.get("properties", {}).items()
        ]
        parts.append("\n".join(["| body | type | |", "| --- | --- | --- |", *rows]))
    return "\n\n".join(parts)


def body_schemas(operation: dict[str, Any], document: dict[str, Any]) -> list[dict[str, Any]]:
    content = operation.get("requestBody", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    references = [each["$ref"] for each in (schema, *schema.get("anyOf", ())) if "$ref" in each]
    return [document["components"]["schemas"][each.rpartition("/")[2]] for each in references]


def schema_text(schema: dict[str, Any]) -> str:
    """The type of a value, in words."""
    if "enum" in schema:
        return " or ".join(f"`{each}`" for each in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "$ref" in schema:
        return f"object ({schema['$ref'].rpartition('/')[2]})"
    if options := schema.get("anyOf"):
        return " or ".join(schema_text(each) for each in options if each.get("type") != "null")
    if schema.get("type") == "array":
        return f"array of {schema_text(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "http-api.md": http_page,
    "metrics.md": metrics_page,
    "events.md": lambda: fill_tables(DOCS / "events.md"),
    "errors.md": lambda: fill_tables(DOCS / "errors.md"),
}
EXAMPLE_PAGES = [DOCS / "examples.md", *sorted(DOCS.glob("cookbook-*.md"))]

if __name__ == "__main__":
    texts = {name: make() for name, make in PAGES.items()} | {page.name: show_files(page) for page in EXAMPLE_PAGES}
    outdated = [name for name, text in texts.items() if (DOCS / name).read_text(encoding="utf-8") != text]
    if "--check" in sys.argv:
        sys.exit(f"Out of date in docs: {', '.join(outdated)}. Run: make docs" if outdated else 0)
    for name in outdated:
        (DOCS / name).write_text(texts[name], encoding="utf-8")
