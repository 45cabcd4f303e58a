"""Writes docs/tools-in-the-box.md from the specs of the tools; `--check` only says whether it is true."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import ferrule.tools
from ferrule import ToolEngine
from ferrule.sources import DirectorySource
from ferrule.spec import Effects, JsonSchema, Tool, ToolCapability, ToolParameter, parameters_of
from ferrule.tools.box import box_tools

PAGE = Path(__file__).parents[1] / "docs/tools-in-the-box.md"

INTRODUCTION = """\
# Tools in the box

What comes with Ferrule, each with its parameters and a call of it. This page is written from the tools themselves
(`make docs`). `ferrule tools list` says which of them are ready in a project and what the others need,
`ferrule tools show NAME` tells what stands here, and `[engine] builtin_tools = false` does without them."""

SECTIONS: dict[str, tuple[str, list[str]]] = {
    "Ready": (
        "These are there in every engine, without a file of yours.",
        ["calculator", "echo", "get_time", "http_request"],
    ),
    "Files": (
        'They work on one folder: `[tools] workspace = "."` in `ferrule.toml`. See [Files](files.md) for what they may '
        'do there. In a program: `library.register(*workspace_tools("notes"))`.',
        ["file_processor", "list_workspace_files", "search_files"],
    ),
    "Data": (
        "Tables in the files of the workspace, and databases: see [Data](data.md).",
        ["data_analyzer", "database_query"],
    ),
    "The web": (
        "Searching needs a provider, calling an API its address: see [The web](web.md).",
        ["search_web", "advanced_web_search", "web_scraper", "api_caller"],
    ),
    "A browser": ("It needs Playwright and a Chromium: see [The browser](browser.md).", ["browser_navigator"]),
    "Code": ("See [Python scripts](python-executor.md).", ["python_executor"]),
    "Models": ("See [Models as tools](ai-tools.md).", ["ask_model", "summarize"]),
    "People": (
        "Messages need a channel: see [Notifications](notify.md). An [agent](agent.md) answers `ask_user` and "
        "`finish_task` itself: its run waits, or ends.",
        ["notify", "ask_user", "finish_task", "get_conversation_history"],
    ),
}


def page() -> str:
    loaded = DirectorySource(Path(ferrule.tools.__file__).parent).load()
    if loaded.errors:
        sys.exit("\n".join(map(str, loaded.errors)))
    tools = {tool.id: tool for tool in (*loaded.tools, *box_tools(engine=ToolEngine(), environ={}))}
    told = [name for _, names in SECTIONS.values() for name in names]
    if sorted(told) != sorted(tools):
        sys.exit(f"The page and the box differ in {set(told) ^ set(tools)}: mend SECTIONS in {__file__}")
    parts = [INTRODUCTION]
    for title, (words, names) in SECTIONS.items():
        parts += [f"## {title}", words, *(tool_text(tools[name]) for name in names)]
    return "\n\n".join(parts) + "\n"


def tool_text(tool: Tool) -> str:
    spec = tool.spec
    called = f" It may be called {quoted(spec.aliases)} too." if spec.aliases else ""
    parts = [f"### {spec.tool_id}", escaped(spec.description) + called, f"Tags: {', '.join(spec.tags)}."]
    for action in spec.capabilities:
        if len(spec.capabilities) > 1:
            parts += [f"#### {spec.model_name(action)}", escaped(action.description)]
        parts.append(effects_text(spec.effects_of(action)))
        parts += [parameters_text(action), *call_text(spec.model_name(action), action), *output_text(action.output)]
    return "\n\n".join(part for part in parts if part)


def effects_text(effects: Effects) -> str:
    said = {
        "it changes nothing": effects.read_only,
        "it may be called again": effects.idempotent and not effects.read_only,
        "it may destroy something: a person is asked first": effects.destructive,
        "its results are kept for a while": effects.cacheable,
        "its answer changes by itself": effects.polling,
    }
    found = [words for words, holds in said.items() if holds] or ["it may change something"]
    return f"{'; '.join(found).capitalize()}."


def parameters_text(action: ToolCapability) -> str:
    rows = [parameter_row(parameter) for parameter in parameters_of(action.schema)]
    return "\n".join(["| parameter | type | | |", "|---|---|---|---|", *rows]) if rows else ""


def parameter_row(parameter: ToolParameter) -> str:
    kind = " or ".join(kinds_of(parameter.to_schema())) or "any"
    default = f"default `{json.dumps(parameter.default, ensure_ascii=False)}`" if parameter.default is not None else ""
    words = escaped(parameter.description).replace("|", r"\|")
    return f"| `{parameter.name}` | {kind} | {'required' if parameter.required else default} | {words} |"


def kinds_of(schema: JsonSchema) -> list[str]:
    if "enum" in schema:
        return [f"`{member}`" for member in schema["enum"]]
    kinds = [kind for option in schema.get("anyOf", ()) for kind in kinds_of(option)]
    said = schema.get("type", kinds)
    return [kind for kind in ([said] if isinstance(said, str) else said) if kind != "null"]


def call_text(name: str, action: ToolCapability) -> list[str]:
    lines = [
        f"$ ferrule call {name} {' '.join(map(argument, example.items()))}".rstrip() for example in action.examples
    ]
    return ["\n".join(["```console", *lines, "```"])] if lines else []


def argument(pair: tuple[str, Any]) -> str:
    name, value = pair
    if isinstance(value, str):
        return f"{name}={shlex.quote(value)}" if value.isprintable() else f"{name}:={shlex.quote(json.dumps(value))}"
    return f"{name}:={shlex.quote(json.dumps(value, ensure_ascii=False))}"


def output_text(output: JsonSchema | None) -> list[str]:
    names = list((output or {}).get("properties", ()))
    return [f"It gives {quoted(names)}."] if names else []


def quoted(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def escaped(text: str) -> str:
    """A description is no Markdown: its stars are stars."""
    return " ".join(text.split()).replace("*", r"\*").replace("_", r"\_").replace("<", "&lt;")


if __name__ == "__main__":
    written = page()
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text(encoding="utf-8") == written else f"docs/{PAGE.name} is not true: run make docs")
    PAGE.write_text(written, encoding="utf-8")
