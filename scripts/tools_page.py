"""Generates docs/bundled-tools.md from the specs of the tools; `--check` only reports whether it is up to date."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import ferrule_tools
from ferrule.core.spec import Effects, JsonSchema, Tool, ToolCapability, ToolParameter, parse_parameters
from ferrule.engine import ToolEngine
from ferrule.engine.plugins import PluginContext, ToolPlugins
from ferrule.kinds.loading import DirectorySource

PAGE = Path(__file__).parents[1] / "docs/bundled-tools.md"

INTRODUCTION = """\
# Bundled tools

The tools that Ferrule includes, with their parameters and example calls. This page is generated from the tools
(`make docs`). `ferrule tools list` shows which of them are ready in a project and what the others need,
`ferrule tools show NAME` shows the same as this page, and `[engine] builtin_tools = false` disables them."""

SECTIONS: dict[str, tuple[str, list[str]]] = {
    "Always available": (
        "Every engine has these tools without any configuration.",
        ["calculator", "echo", "get_time", "http_request"],
    ),
    "Files": (
        'They work in one folder: `[tools] workspace = "."` in `ferrule.toml`. See [Files](files.md) for what they may '
        'do there. In a program: `library.register(*workspace_tools("notes"))`.',
        ["file_processor", "list_workspace_files", "search_files"],
    ),
    "Data": (
        "They analyse tables in the files of the workspace, and query databases: see [Data](data.md).",
        ["data_analyzer", "database_query"],
    ),
    "Web": (
        "Searching needs a provider, and calling an API needs its address: see [The web](web.md).",
        ["search_web", "advanced_web_search", "web_scraper", "api_caller"],
    ),
    "Browser": ("It needs Playwright and Chromium: see [The browser](browser.md).", ["browser_navigator"]),
    "Code": ("See [Python scripts](python-executor.md).", ["python_executor"]),
    "Models": ("See [Models as tools](ai-tools.md).", ["ask_model", "summarize"]),
    "People": (
        "Messages need a channel: see [Notifications](notify.md). An [agent](agent.md) handles `ask_user` and "
        "`finish_task` itself: its run waits, or ends.",
        ["notify", "ask_user", "finish_task", "get_conversation_history"],
    ),
}


def page() -> str:
    loaded = DirectorySource(Path(ferrule_tools.__file__).parent).load()
    if loaded.errors:
        sys.exit("\n".join(map(str, loaded.errors)))
    engine = ToolEngine()
    engine.use_plugins(ToolPlugins(PluginContext(engine=engine, environ={})))
    tools = {tool.id: tool for tool in (*loaded.tools, *engine.registry)}
    listed = [name for _, names in SECTIONS.values() for name in names]
    if sorted(listed) != sorted(tools):
        sys.exit(f"SECTIONS and the bundled tools differ in {set(listed) ^ set(tools)}: update SECTIONS in {__file__}")
    parts = [INTRODUCTION]
    for title, (text, names) in SECTIONS.items():
        parts += [f"## {title}", text, *(tool_text(tools[name]) for name in names)]
    return "\n\n".join(parts) + "\n"


def tool_text(tool: Tool) -> str:
    spec = tool.spec
    aliases = f" Other names: {quoted(spec.aliases)}." if spec.aliases else ""
    parts = [f"### {spec.tool_id}", escaped(spec.description) + aliases, f"Tags: {', '.join(spec.tags)}."]
    for action in spec.capabilities:
        if len(spec.capabilities) > 1:
            parts += [f"#### {spec.model_name(action)}", escaped(action.description)]
        parts.append(effects_text(spec.effects_of(action)))
        parts += [parameters_text(action), *call_text(spec.model_name(action), action), *output_text(action.output)]
    return "\n\n".join(part for part in parts if part)


def effects_text(effects: Effects) -> str:
    sentences = {
        "Read-only.": effects.read_only,
        "May change data.": not effects.read_only and not effects.destructive,
        "Destructive: a person must approve a call that a model asks for.": effects.destructive,
        "Can be repeated safely.": effects.idempotent and not effects.read_only,
        "Results are cached.": effects.cacheable,
        "Results change over time.": effects.polling,
    }
    return " ".join(sentence for sentence, is_true in sentences.items() if is_true)


def parameters_text(action: ToolCapability) -> str:
    rows = [parameter_row(parameter) for parameter in parse_parameters(action.schema)]
    return "\n".join(["| parameter | type | | |", "|---|---|---|---|", *rows]) if rows else ""


def parameter_row(parameter: ToolParameter) -> str:
    kind = " or ".join(kinds_of(parameter.to_schema())) or "any"
    default = f"default `{json.dumps(parameter.default, ensure_ascii=False)}`" if parameter.default is not None else ""
    description = escaped(parameter.description).replace("|", r"\|")
    return f"| `{parameter.name}` | {kind} | {'required' if parameter.required else default} | {description} |"


def kinds_of(schema: JsonSchema) -> list[str]:
    if "enum" in schema:
        return [f"`{member}`" for member in schema["enum"]]
    kinds = [kind for option in schema.get("anyOf", ()) for kind in kinds_of(option)]
    types = schema.get("type", kinds)
    return [kind for kind in ([types] if isinstance(types, str) else types) if kind != "null"]


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
    return [f"Returns {quoted(names)}."] if names else []


def quoted(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def escaped(text: str) -> str:
    """Escape a description, which is plain text, for Markdown."""
    return " ".join(text.split()).replace("*", r"\*").replace("_", r"\_").replace("<", "&lt;")


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text(encoding="utf-8") == text else f"docs/{PAGE.name} is out of date: run make docs")
    PAGE.write_text(text, encoding="utf-8")
