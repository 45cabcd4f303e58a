"""The page that maps the design documents: every name and section is on it, and what it names exists."""

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import ferrule
from tests.support.source_code import SOURCE, read_modules

ROOT = Path(__file__).parents[1]

SEEDS = Path(__file__).parents[2] / "shared/seeds"
MAP = ROOT / "docs/design-documents.md"
OF_PYTHON = set("append get items join lower now isoformat setdefault loads __init__ enum".split())
OF_EXAMPLES = {"OpenAI", "LangGraph"} | set(
    "True agent arg1 arg2 context last_result query question response self src state step success task tool_name value1"
    " value2".split()
)
"""Names of other projects, and words of samples that stand for any argument or variable."""


def names_of_document(text: str) -> set[str]:
    """Classes, functions and methods of a document's samples, and the names that its text marks."""
    quotations = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.S))
    names = {name for quotation in quotations for name in re.findall(r"[A-Za-z_]\w{2,}", quotation)}
    names |= set(re.findall(r"\b(_[a-z]\w+)\b", text))
    names |= set(re.findall(r"\b([A-Z][a-z]+[A-Z]\w+)\b", text))
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        names |= set(re.findall(r"^\s*(?:(?:async )?def|class) (\w+)", block, re.M)) | set(
            re.findall(r"\.(\w+)\(", block)
        )
    return names - OF_PYTHON - OF_EXAMPLES


@pytest.mark.skipif(not SEEDS.is_dir(), reason="needs the design documents in shared/seeds beside the project")
def test_every_name_and_numbered_section_of_the_documents_is_mapped():
    parts = re.split(r"^## (?=00\d)", MAP.read_text(encoding="utf-8"), flags=re.M)[1:]
    for page, part in zip(sorted(SEEDS.glob("*.md")), parts, strict=True):
        text = page.read_text(encoding="utf-8")
        assert sorted(name for name in names_of_document(text) if not re.search(rf"\b{name}\b", part)) == []
        prose = re.sub(r"```.*?```", "", text, flags=re.S)
        sections = re.findall(r"^#{3,4} ((?:\d+|[A-Z])\.\d+)[. ]", prose, re.M)
        covered = {
            section
            for first, last in re.findall(r"([\dA-Z]+\.\d+)(?:–([\dA-Z]+\.\d+))?", part)
            for section in expand_sections(first, last)
        }
        assert [section for section in sections if section not in covered] == []
        first_cells = " ".join(re.findall(r"^\| ([^|]+)", part, re.M))
        assert [title for title in unnumbered_sections(prose) if title not in first_cells] == []


OF_SEVERAL_SECTIONS = {"关键方法详解", "工具执行流程中的特殊处理", "工具注册与管理", "总结"}


def unnumbered_sections(prose: str) -> list[str]:
    """The chapters that have Chinese numbers, by these; the others without a number like 1.2 by their titles."""
    numbers = re.findall(r"^## ([一二三四五六七八九])、", prose, re.M)
    titles = re.findall(r"^## (?![\d一二三四五六七八九附])([^：（\n]+)", prose, re.M)
    titles += re.findall(r"^### (?!\d|[A-Z`])([^：（\n]+)", prose, re.M) if not numbers else []
    return numbers + [title for title in titles if title not in OF_SEVERAL_SECTIONS]


def expand_sections(first: str, last: str) -> list[str]:
    chapter, _, start = first.partition(".")
    end = last.partition(".")[2] or start
    return [f"{chapter}.{number}" for number in range(int(start), int(end) + 1)]


# What the page names exists

OF_SAMPLES = set(
    "agent_autonomous_workflow agent_workflow_with_memory agent_workflow on_tool_event bing_search".split()
)
"""Functions that the documents' samples define, and a tool of an example."""
OF_DRAWINGS = set("FunctionTools MCPServers AdapterLayer ConversationAgent CalculatorExec".split())
"""Boxes in drawings, which are packages here."""
OF_OTHER_PROJECTS = set("ConfigOnlyMcpTool ChatCompletionMessage ChatCompletionMessageToolCall".split())
REPLACED = {"add_tool"}
"""The page says what is used instead."""


def cells(column: int) -> list[str]:
    rows = [line.strip("| ").split(" | ") for line in MAP.read_text(encoding="utf-8").splitlines() if line[:2] == "| "]
    return [row[column] for row in rows if row[0] not in ("§", "section") and not row[0].startswith("---")]


def names_in(column: int) -> set[str]:
    return {name for cell in cells(column) for name in re.findall(r"`([A-Za-z_]\w*(?:\.[a-z_]\w*)?)`", cell)}


def defined_names() -> dict[str, set[str]]:
    """The names that our modules define, with the modules."""
    names: dict[str, set[str]] = {}
    for source in read_modules():
        module = ".".join(source.path.relative_to(SOURCE).with_suffix("").parts)
        for name in source.definitions:
            names.setdefault(name, set()).add(module)
    return names


def import_class(name: str, modules: set[str]) -> Any:
    if hasattr(ferrule, name):
        return getattr(ferrule, name)
    imported = (importlib.import_module(module) for module in sorted(modules))
    return next(getattr(module, name) for module in imported if hasattr(module, name))


def has_member(owner: type, name: str) -> bool:
    is_declared = any(name in vars(each) or name in getattr(each, "__annotations__", {}) for each in owner.__mro__)
    return is_declared or re.search(rf"\bself\.{name}\b.* = ", inspect.getsource(owner)) is not None


def test_what_the_map_names_in_ferrule_exists():
    defined = defined_names()
    names = {name for name in names_in(2) if name != "mcp.json"}
    assert len(names) > 40
    missing = {name for name in names if name.partition(".")[0] not in defined}
    for name in names - missing:
        owner, _, member = name.partition(".")
        if owner[0].isupper() and not owner.isupper():
            found = import_class(owner, defined[owner])
            if member and not has_member(found, member):
                missing.add(name)
    assert missing == set()


def test_the_public_names_of_the_documents_exist_unless_the_map_says_what_is_used_instead():
    exceptions = OF_SAMPLES | OF_DRAWINGS | OF_OTHER_PROJECTS | REPLACED
    public = {name for name in names_in(1) if not name.startswith("_") and "." not in name}
    assert len(public) > 150
    assert public - defined_names().keys() == exceptions
