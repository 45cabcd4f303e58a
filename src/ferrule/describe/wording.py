"""The words between the facts, in the languages descriptions are written in."""

from __future__ import annotations

from dataclasses import dataclass

from ferrule.errors import SetupError
from ferrule.names import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """One language."""

    tool: str
    type: str
    description: str
    tags: str
    actions: str
    parameters: str
    example: str
    when_to_use: str
    purpose: str
    """When to use a tool, of what it does."""
    none: str
    required: str
    optional: str
    default: str
    other_tools: str
    actions_of: str
    """How many actions a tool has of which only one line is shown."""
    more: str
    """How many tools are not shown."""


WORDINGS = {
    "en": Wording(
        tool="Tool",
        type="Type",
        description="Description",
        tags="Tags",
        actions="Actions",
        parameters="Parameters",
        example="Example",
        when_to_use="When to use",
        purpose="whenever this is needed: {does}",
        none="none",
        required="required",
        optional="optional",
        default="default {value}",
        other_tools="Other tools",
        actions_of=" ({count} actions)",
        more="({count} other tools: use search_tools to find them)",
    ),
    "zh": Wording(
        tool="工具",
        type="类型",
        description="描述",
        tags="标签",
        actions="可用功能",
        parameters="参数",
        example="示例",
        when_to_use="使用场景",
        purpose="当需要{does}时使用此工具",
        none="无",
        required="必需",
        optional="可选",
        default="默认 {value}",
        other_tools="其他工具",
        actions_of="（{count} 个功能）",
        more="（还有 {count} 个其他工具，可用 search_tools 查找，或通过工具名称直接调用）",
    ),
}


def wording_of(language: str) -> Wording:
    try:
        return WORDINGS[language]
    except KeyError:
        known = ", ".join(map(repr, WORDINGS))
        near = did_you_mean(language, WORDINGS)
        raise SetupError(f"Descriptions cannot be written in {language!r}; say one of {known}.{near}") from None
