"""What a person sees: tables, results, errors."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ferrule.call import ToolExecutionResult
from ferrule.cli.open_schema import open_examples, open_schema
from ferrule.cli.terminal import complain, say, visible
from ferrule.content import plain_json
from ferrule.engine import ToolEngine
from ferrule.errors import LoadError
from ferrule.spec import Tool, ToolCapability, parameters_of
from ferrule.store import CallStatistics, ToolCallRecord
from ferrule.validation.messages import expected_text


def as_json(value: Any) -> None:
    say(json.dumps(plain_json(value), ensure_ascii=False, indent=2))


def result(done: ToolExecutionResult) -> None:
    """The result on standard output; what went wrong on standard error."""
    if done.is_success:
        text = done.text
        if set(done.output) != {"result"}:
            text = json.dumps(done.output, ensure_ascii=False, indent=2)
        say(text)
        for part in done.content:
            data = getattr(part, "data", None)
            if data is not None:
                complain(f"({part.kind}, {len(data):,} bytes: use --output FILE to keep it)")
    else:
        complain(f"ferrule: {done.error}")
    for name in done.metadata.get("ignored_params", ()):
        complain(f"ferrule: {done.tool_name} has no parameter {name!r}; it was left out.")


def counted(number: int, noun: str) -> str:
    """`1 tool`, `2 tools`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def verdict(right: int, noun: str, problems: int) -> None:
    """The last line of a check."""
    print(f"{counted(right, noun)} {'is' if right == 1 else 'are'} right, {counted(problems, 'problem')}.")


def problem(error: LoadError) -> dict[str, Any]:
    """What is wrong with a file, for programs."""
    path = None if error.path is None else str(error.path)
    return {"path": path, "line": error.line, "error": error.message, "hint": error.hint}


def tools(found: Sequence[Tool], unavailable: Mapping[Tool, str]) -> None:
    table(
        ("tool", "description", "tags", "source"),
        [
            (
                tool.id + _state(tool, unavailable),
                first_sentence(tool.spec.description),
                ", ".join(tool.spec.tags),
                tool.source,
            )
            for tool in found
        ],
        empty="There are no tools here. Make a project with examples: ferrule init",
        cut=(1, 2),
    )
    for tool in found:
        if tool in unavailable and not tool.needs:
            complain(f"ferrule: {tool.id} is unavailable: {unavailable[tool]}")
    _needs([tool for tool in found if tool in unavailable and tool.needs])


def _state(tool: Tool, unavailable: Mapping[Tool, str]) -> str:
    if not tool.spec.enabled:
        return " (disabled)"
    return "" if tool not in unavailable else " (not set up)" if tool.needs else " (unavailable)"


def _needs(found: Sequence[Tool]) -> None:
    """What tools wait for, said once for those that wait for the same."""
    together: dict[str, list[str]] = {}
    for tool in found:
        together.setdefault(tool.needs, []).append(tool.id)
    if together and sys.stderr.isatty():
        complain("")
    for needs, names in together.items():
        verb = "needs" if len(names) == 1 else "need"
        complain(f"{', '.join(names)} {verb} {needs}")


def tool(one: Tool, engine: ToolEngine) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    spec, reason = one.spec, engine.registry.snapshot().why_unavailable(one)
    console = Console(highlight=False)
    title = Text(visible(spec.tool_id), style="bold")
    console.print(title.append(visible(f"  {spec.name}"), style="not bold") if spec.name != spec.tool_id else title)
    console.print(Text(visible(spec.description or "(no description)")))
    facts = [
        ("version", spec.version),
        ("category", str(spec.category) + ("" if spec.subcategory == "general" else f", {spec.subcategory}")),
        ("priority", str(spec.priority) if spec.priority != 1 else ""),
        ("needs", ", ".join(spec.dependencies)),
        ("tags", ", ".join(spec.tags)),
        ("source", f"{one.source}: {one.origin}"),
        ("run by", one.handler),
        ("status", spec.status if reason is None else f"unavailable: {reason}"),
        ("fingerprint", spec.fingerprint),
    ]
    drawn = Table.grid(padding=(0, 1))
    for name, value in facts:
        if value:
            drawn.add_row(f"  {name:<12}", Text(visible(value), overflow="fold"))
    console.print(drawn)
    for capability in spec.capabilities:
        _action(one, capability, engine)


def _action(one: Tool, capability: ToolCapability, engine: ToolEngine) -> None:
    spec = one.spec
    effects, limits = spec.effects_of(capability), spec.limits_of(capability)
    print()
    if len(spec.capabilities) > 1:
        say(f"action {capability.name}: {_first_line(capability.description)}")
    promised = [n for n in ("read_only", "idempotent", "destructive", "cacheable") if getattr(effects, n)]
    print(f"  effects      {', '.join(promised) or 'anything may happen'}")
    print(f"  time-out     {limits.timeout or engine.config.default_timeout:g} s")
    say(f"  bucket       {spec.bucket_of(capability)}")
    table(
        ("parameter", "takes", "required", "default", "description"),
        [
            (
                p.name,
                expected_text(p.to_schema(), capability.schema),
                "yes" if p.required else "",
                json.dumps(p.default, ensure_ascii=False) if p.has_default else "",
                p.description,
            )
            for p in parameters_of(open_schema(capability))
        ],
        empty="  no parameters",
    )
    for example in open_examples(capability)[:3]:
        typed = " ".join(_typed(name, value) for name, value in example.items())
        say(f"  for example: ferrule call {spec.model_name(capability)} {typed}")


def _typed(name: str, value: Any) -> str:
    """An argument as it is typed in a shell."""
    if isinstance(value, str):
        return shlex.quote(f"{name}={value}")
    return shlex.quote(f"{name}:={json.dumps(value, ensure_ascii=False)}")


def calls(records: Sequence[ToolCallRecord]) -> None:
    table(
        ("when", "tool", "status", "took", "caller", "what came of it"),
        [
            (
                _local(r.created_at),
                r.tool_name if r.action in (None, r.tool_name) else f"{r.tool_name} {r.action}",
                r.status if r.is_success or not r.error_type else f"{r.status} ({r.error_type})",
                _duration(r.execution_time),
                r.caller_id or r.caller_type,
                _first_line(r.error or json.dumps(r.result, ensure_ascii=False)),
            )
            for r in records
        ],
        empty="No calls are recorded.",
        cut=(5, 1),
    )


def statistics(found: CallStatistics) -> None:
    print(
        f"{found.total:,} calls, {found.success_rate:.1f} % successful, "
        f"{found.failed:,} failed, {found.cancelled:,} cancelled"
    )
    table(
        ("tool", "calls", "failed", "p50", "p95", "p99", "last error"),
        [
            (
                name,
                f"{one.calls:,}",
                f"{one.failures:,}",
                *(_duration(t) for t in (one.p50, one.p95, one.p99)),
                _first_line(one.last_error or ""),
            )
            for name, one in found.tools.items()
        ],
        empty="",
        cut=(6,),
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str, cut: Sequence[int] = ()) -> None:
    """A table as wide as the terminal; whole lines, with tabs, when there is no terminal.

    Where columns may be `cut` a row is one line; else the last column wraps.
    """
    if not rows:
        if empty:
            print(empty)
        return
    rows = [[visible(cell).replace("\t", " ") for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in rows:
            print("\t".join(cell.replace("\n", " ") for cell in row))
        return
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    widths = [max(cell_len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
    if cut:
        widths = _fitted(widths, console.width - 2 * (len(columns) - 1), cut)
    drawn = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for index, column in enumerate(columns):
        width = widths[index] if cut or index < len(columns) - 1 else None
        drawn.add_column(column, no_wrap=bool(cut), overflow="ellipsis" if cut else "fold", width=width)
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    console.print(drawn)


def _fitted(widths: list[int], room: int, cut: Sequence[int]) -> list[int]:
    """Widths that fit, where they can: what is too much is taken from the widest of those that may be cut."""
    fitted = list(widths)
    while sum(fitted) > room:
        widest = max(cut, key=lambda index: fitted[index])
        if fitted[widest] <= 8:
            break
        fitted[widest] -= 1
    return fitted


def _first_line(text: str) -> str:
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= 160 else line[:159] + "…"


def first_sentence(text: str) -> str:
    line = _first_line(text)
    end = re.search(r"[.!?](?=\s)|[。！？]", line)
    return line[: end.end()] if end else line


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _local(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")
