"""What commands print: tables, results, errors, JSON."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import typer

from ferrule.catalog.parameter_roles import ParameterRoles
from ferrule.catalog.validation.validator import describe_expected
from ferrule.cli.terminal import echo, indent_lines, print_error, show_control_characters
from ferrule.core.call import ToolExecutionResult
from ferrule.core.content import as_text, encode_json
from ferrule.core.messages import Message, text_of_message
from ferrule.core.spec import JsonSchema, Tool, ToolCapability, parse_parameters
from ferrule.engine import ToolEngine
from ferrule.errors import LoadError
from ferrule.policy.provenance import ProvenanceRules

if TYPE_CHECKING:
    from rich.console import Console

Columns: TypeAlias = Mapping[str, str | Callable[[Any], object]]
"""The columns of a table: the title of each, with the key or the function that finds its cells in the entries."""

# ---- parameters of an action without the secrets that a tool's file may contain

_VALUE_KEYWORDS = frozenset({"default", "example", "examples"})
_KEYWORDS_WITH_NAMES = frozenset({"properties", "patternProperties", "$defs", "definitions"})
"""Keywords whose keys are names that the schema's author chose, not keywords."""


_READABLE_WIDTH = 30
"""How much of a long text a column should show."""
_MIN_WIDTH = 8
"""Below this width of a column, rows are printed as paragraphs."""


def schema_without_secrets(capability: ToolCapability) -> JsonSchema:
    """Return the schema without the defaults of secret parameters."""
    schema = capability.schema
    if "writeOnly" not in str(schema):
        return schema
    stripped, secret = _remove_values(schema), capability.secret_names
    if "properties" in schema:
        stripped["properties"].update({n: p for n, p in schema["properties"].items() if n not in secret})
    return stripped  # type: ignore[no-any-return]


def examples_without_secrets(capability: ToolCapability) -> list[dict[str, Any]]:
    """Return the examples of an action, with an ellipsis in the place of each secret."""
    secret = capability.secret_names
    return [{n: "…" if n in secret else value for n, value in each.items()} for each in capability.examples]


def _remove_values(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_remove_values(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        keyword: {name: _remove_values(part) for name, part in value.items()}
        if keyword in _KEYWORDS_WITH_NAMES and isinstance(value, dict)
        else _remove_values(value)
        for keyword, value in schema.items()
        if keyword not in _VALUE_KEYWORDS
    }


def print_json(value: Any) -> None:
    echo(json.dumps(json.loads(encode_json(value, escape_surrogates=True)), ensure_ascii=False, indent=2))


def print_outcome(value: Any, *lines: str, as_json: bool) -> None:
    """Print what a command did or found: the value as JSON, or lines for a person."""
    if as_json:
        print_json(value)
    elif lines:
        echo("\n".join(lines))


def print_result(outcome: ToolExecutionResult, whole_output: bytes | None = None) -> None:
    """Print a result to standard output, or an error to standard error.

    `whole_output` is what the artifact of a long result contains: a person gets all of it.
    """
    if outcome.is_success:
        output = outcome.output if whole_output is None else json.loads(whole_output)
        text = outcome.text
        if set(output) != {"result"}:
            text = json.dumps(output, ensure_ascii=False, indent=2)
        elif whole_output is not None:
            text = as_text(output["result"])
        echo(text)
        for part in outcome.content:
            data = getattr(part, "data", None)
            if data is not None:
                print_error(f"({part.kind}, {len(data):,} bytes; use --output FILE to save it)")
    else:
        print_error(f"ferrule: {outcome.error}")
    for name in outcome.metadata.get("ignored_params", ()):
        print_error(f"ferrule: {outcome.tool_name} has no parameter {name!r}; it was ignored.")


def print_messages(messages: Iterable[Message]) -> None:
    """Print a conversation, one line for each text and each call."""
    for message in messages:
        role = message["role"]
        if text := text_of_message(message):
            echo(f"{role}: {text}")
        for call in message.get("tool_calls") or ():
            echo(f"{role} calls {call['function']['name']} {call['function']['arguments']}")


def format_count(number: int, noun: str) -> str:
    """`1 tool`, `2 tools`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def print_check(noun: str, valid: Sequence[str], problems: Sequence[LoadError], *, as_json: bool) -> None:
    """Print what was checked, and end the command with 1 if there are problems."""
    if as_json:
        print_json({f"{noun}s": valid, "errors": list(map(problem_to_dict, problems))})
    else:
        for error in problems:
            echo(indent_lines(str(error)))
        print(f"{format_count(len(valid), noun)} valid, {format_count(len(problems), 'problem')}.")
    if problems:
        raise typer.Exit(1)


def print_report(
    named: tuple[str, list[dict[str, Any]]],
    columns: Columns,
    problems: Sequence[LoadError],
    *,
    as_json: bool,
    empty: str,
    cut: Sequence[int],
) -> None:
    """Print what was loaded and what was not, and end the command with 1 if there are problems."""
    name, entries = named
    if as_json:
        print_json({name: entries, "errors": list(map(problem_to_dict, problems))})
    else:
        print_list(entries, columns, as_json=False, empty=empty, cut=cut)
        for error in problems:
            print_error(f"ferrule: not loaded: {error}")
    if problems:
        raise typer.Exit(1)


def problem_to_dict(error: LoadError) -> dict[str, Any]:
    """Describe a problem in a file, for JSON."""
    path = None if error.path is None else str(error.path)
    return {"path": path, "line": error.line, "error": error.message, "hint": error.hint}


def describe_tool(tool: Tool, unavailable: str | None) -> dict[str, Any]:
    """Describe a tool for lists and JSON; `unavailable` says why the tool cannot be called."""
    spec = tool.spec
    names = ("tool_id", "name", "description", "version", "category", "subcategory", "priority", "dependencies", "tags")
    return {
        **{name: getattr(spec, name) for name in (*names, "enabled", "unavailable_actions", "fingerprint")},
        "unavailable": unavailable,
        "needs": tool.needs or None,
        "source": tool.source,
        "origin": tool.origin,
        "actions": [
            {
                "name": c.name,
                "description": c.description,
                "parameters": schema_without_secrets(c),
                "examples": examples_without_secrets(c),
            }
            for c in spec.capabilities
        ],
    }


def print_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    """Print tools as `describe_tool` or a server describes them, and what they need before they can be used."""

    def describe_state(tool: Mapping[str, Any]) -> str:
        if not tool.get("enabled", True):
            return " (disabled)"
        return "" if not tool.get("unavailable") else " (not set up)" if tool["needs"] else " (unavailable)"

    columns: Columns = {
        "tool": lambda tool: tool["tool_id"] + describe_state(tool),
        "description": lambda tool: first_sentence(tool["description"]),
        "tags": lambda tool: ", ".join(tool["tags"]),
        "source": "source",
    }
    empty = "No tools here. Create a project with examples: ferrule init"
    print_list(tools, columns, as_json=False, empty=empty, cut=(1, 2), optional=(2,))
    by_need: dict[str, list[str]] = {}  # tools with the same need share a line
    for tool in tools:
        if tool.get("unavailable") and tool["needs"]:
            by_need.setdefault(tool["needs"], []).append(tool["tool_id"])
        elif tool.get("unavailable"):
            print_error(f"ferrule: {tool['tool_id']} is unavailable: {tool['unavailable']}")
        for action, reason in tool.get("unavailable_actions", {}).items():
            print_error(f"ferrule: the action {action} of {tool['tool_id']} is unavailable: {reason}")
    if by_need and sys.stderr.isatty():
        print_error("")
    for needs, names in by_need.items():
        verb = "needs" if len(names) == 1 else "need"
        print_error(f"{', '.join(names)} {verb} {needs}")


def print_tool(entry: Tool, engine: ToolEngine) -> None:
    spec, reason = entry.spec, engine.registry.snapshot().why_unavailable(entry)
    facts = {
        "version": spec.version,
        "category": str(spec.category) + ("" if spec.subcategory == "general" else f", {spec.subcategory}"),
        "priority": str(spec.priority) if spec.priority != 1 else "",
        "needs": ", ".join(spec.dependencies),
        "tags": ", ".join(spec.tags),
        "source": f"{entry.source}: {entry.origin}",
        "run by": entry.handler,
        "status": spec.status if reason is None else f"unavailable: {reason}",
        "fingerprint": spec.fingerprint,
    }
    lines = [spec.tool_id if spec.name == spec.tool_id else f"{spec.tool_id}  {spec.name}"]
    lines.append(spec.description or "(no description)")
    lines += [f"  {name:<12} {value}" for name, value in facts.items() if value]
    for line in lines:  # what a tool says of itself may look like another line, also where the output is piped
        echo(show_control_characters(indent_lines(line)))
    for capability in spec.capabilities:
        _print_action(entry, capability, engine)


def _print_action(entry: Tool, capability: ToolCapability, engine: ToolEngine) -> None:
    spec = entry.spec
    effects, limits = spec.effects_of(capability), spec.limits_of(capability)
    print()
    if len(spec.capabilities) > 1:
        echo(f"action {capability.name}: {first_line(capability.description)}")
    promised = [n for n in ("read_only", "idempotent", "destructive", "cacheable") if getattr(effects, n)]
    print(f"  effects      {', '.join(promised) or 'anything may happen'}")
    print(f"  timeout      {limits.timeout or engine.config.default_timeout:g} s")
    echo(f"  bucket       {spec.bucket_of(capability)}")
    roles = ParameterRoles(ProvenanceRules.of(engine.policy).parameter_roles).roles_of(spec, capability)
    for number, (name, role) in enumerate(roles.items()):
        echo(f"  {'' if number else 'roles':<12} {name}: {role.role}, because {role.reason}")
    columns: Columns = {
        "parameter": lambda p: p.name,
        "takes": lambda p: describe_expected(p.to_schema(), capability.schema),
        "required": lambda p: "yes" if p.required else "",
        "default": lambda p: json.dumps(p.default, ensure_ascii=False) if p.has_default else "",
        "description": lambda p: p.description,
    }
    parameters = parse_parameters(schema_without_secrets(capability))
    print_list(parameters, columns, as_json=False, empty="  no parameters")
    for example in examples_without_secrets(capability)[:3]:
        typed = " ".join(  # as in a shell
            shlex.quote(f"{n}={v}" if isinstance(v, str) else f"{n}:={json.dumps(v, ensure_ascii=False)}")
            for n, v in example.items()
        )
        echo(f"  for example: ferrule call {spec.model_name(capability)} {typed}")


def print_list(
    entries: Sequence[Any],
    columns: Columns,
    *,
    as_json: bool,
    empty: str,
    describe: Callable[[Any], object] | None = None,
    cut: Sequence[int] = (),
    optional: Sequence[int] = (),
) -> None:
    """Print a list as JSON, or as a table as wide as the terminal; without a terminal, as lines with tabs.

    Where columns may be `cut` a row is one line; else the last column wraps. Other columns are never cut: where they do
    not fit, each row is a paragraph. A terminal that leaves little room to the columns that are cut gets no `optional`
    ones; the first of them goes first.
    """
    if as_json:
        print_json(entries if describe is None else list(map(describe, entries)))
        return
    if not entries:
        if empty:
            print(empty)
        return
    titles, rows = [*columns], list[list[str]]()
    for entry in entries:
        cells = [entry[cell] if isinstance(cell, str) else cell(entry) for cell in columns.values()]
        rows.append([show_control_characters("" if c is None else str(c)).replace("\t", " ") for c in cells])
    if not sys.stdout.isatty():
        for row in (titles, *rows):
            print("\t".join(cell.replace("\n", " ") for cell in row))
        return
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    widths = [max(cell_len(cell) for cell in column) for column in zip(titles, *rows, strict=True)]
    if cut:
        indexes = _choose_columns(widths, console.width, cut, optional)
        titles, widths = [titles[i] for i in indexes], [widths[i] for i in indexes]
        rows, cut = [[row[i] for i in indexes] for row in rows], [indexes.index(i) for i in cut if i in indexes]
        least = sum(min(width, _MIN_WIDTH) if index in cut else width for index, width in enumerate(widths))
        if least + 2 * (len(titles) - 1) > console.width:
            _print_paragraphs(console, titles, rows, cut)
            return
    make_cell = partial(Text, no_wrap=bool(cut), overflow="ellipsis" if cut else "fold")
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for index, title in enumerate(titles):
        may_shrink = index in cut if cut else index == len(titles) - 1
        grid.add_column(make_cell(title), width=None if may_shrink else widths[index])
    for row in rows:
        grid.add_row(*map(make_cell, row))
    console.print(grid)


def _print_paragraphs(
    console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], cut: Sequence[int]
) -> None:
    """Print the first cell of each row and, indented below it, the other cells with the names of their columns."""
    from rich.padding import Padding
    from rich.text import Text

    for first, *others in rows:
        console.print(Text(first, style="bold"), soft_wrap=True)  # so that an id can be copied
        for index, cell in enumerate(others, 1):
            if cell:
                text = Text(f"{columns[index]}: {cell}", no_wrap=index in cut)
                console.print(Padding(text, (0, 0, 0, 2)), overflow="ellipsis" if index in cut else "fold")


def _choose_columns(widths: Sequence[int], room: int, cut: Sequence[int], optional: Sequence[int]) -> list[int]:
    """Choose the columns of a table: optional ones are left out while columns that may be cut would get little room."""
    indexes = list(range(len(widths)))
    for index in optional:
        needed = sum(min(widths[i], _READABLE_WIDTH) if i in cut else widths[i] for i in indexes)
        if needed + 2 * (len(indexes) - 1) <= room:
            break
        indexes.remove(index)
    return indexes


def first_line(text: str) -> str:
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= 160 else line[:159] + "…"


def first_sentence(text: str) -> str:
    line = first_line(text)
    end = re.search(r"[.!?](?=\s)|[。！？]", line)
    return line[: end.end()] if end else line


def format_duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def format_time(seconds: float | None) -> str | None:
    """Format a time of the store for JSON."""
    return None if seconds is None else datetime.fromtimestamp(seconds).astimezone().isoformat()
