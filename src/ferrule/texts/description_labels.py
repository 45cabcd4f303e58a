"""Labels and sentences of tool descriptions, in English and Chinese."""

from __future__ import annotations

from ferrule.texts.language import get_texts


class DescriptionTexts:
    """The texts in English."""

    tool = "Tool"
    type = "Type"
    description = "Description"
    tags = "Tags"
    actions = "Actions"
    parameters = "Parameters"
    example = "Example"
    when_to_use = "When to use"
    purpose = "whenever this is needed: {does}"
    none = "none"
    required = "required"
    optional = "optional"
    default = "default {value}"
    other_tools = "Other tools"
    actions_of = " ({count} actions)"
    more = "({count} other tools: use search_tools to find them)"


class _ChineseDescriptionTexts(DescriptionTexts):
    tool = "工具"
    type = "类型"
    description = "描述"
    tags = "标签"
    actions = "可用功能"
    parameters = "参数"
    example = "示例"
    when_to_use = "使用场景"
    purpose = "当需要{does}时使用此工具"
    none = "无"
    required = "必需"
    optional = "可选"
    default = "默认 {value}"
    other_tools = "其他工具"
    actions_of = "（{count} 个功能）"
    more = "（还有 {count} 个其他工具，可用 search_tools 查找，或通过工具名称直接调用）"


def description_texts(language: str) -> DescriptionTexts:
    return get_texts(language, {"en": DescriptionTexts(), "zh": _ChineseDescriptionTexts()}, "Descriptions")
