import pytest

from ferrule.catalog.descriptions import DescriptionEngine
from ferrule.catalog.registry import ToolRegistry
from ferrule.core.spec import Tool, ToolCapability, ToolSpec
from ferrule.errors import SetupError, ToolNotFound
from ferrule.texts.shorten import estimate_tokens, first_sentence, shorten
from tests.catalog.sample_tools import BROWSER, FORECAST
from tests.catalog.search.searchable_tools import make_tool

RULE = "=" * 80


async def test_a_tool_in_english():
    engine = DescriptionEngine(ToolRegistry([FORECAST]))
    assert await engine.generate_tool_description_for_agent("forecast") == (
        "Tool: forecast (ID: forecast)\n"
        "Type: function\n"
        "Description: Tell the weather of the next days. Knows every town.\n"
        "Tags: weather\n"
        "\n"
        "Actions:\n"
        "  - forecast\n"
        "    Parameters: city (string, required): the name of a city; "
        "days (integer, default 3): how many, from today; unit (C | F, default C)\n"
        '    Example: {"city":"example"}\n'
        "\n"
        "When to use: whenever this is needed: tell the weather of the next days"
    )


async def test_a_tool_in_chinese():
    engine = DescriptionEngine(ToolRegistry([BROWSER]), language="zh")
    assert await engine.generate_tool_description_for_agent("browser_navigator") == (
        "工具: 网页导航器 (ID: browser_navigator)\n"
        "类型: function\n"
        "描述: 提供网页导航和元素交互功能\n"
        "标签: web, automation, browser\n"
        "\n"
        "可用功能:\n"
        "  - navigate: 导航到指定网页\n"
        "    参数: url (string, 必需): 目标网页URL\n"
        '    示例: {"url":"https://www.example.com"}\n'
        "  - click: 点击页面元素\n"
        "    参数: selector (string, 必需): CSS选择器\n"
        '    示例: {"selector":"#submit-button"}\n'
        "\n"
        "使用场景: 当需要提供网页导航和元素交互功能时使用此工具"
    )


async def test_all_tools_come_in_the_order_of_their_names_however_they_were_registered():
    first = DescriptionEngine(ToolRegistry([FORECAST, BROWSER]))
    second = DescriptionEngine(ToolRegistry([BROWSER, FORECAST]))
    text = await first.generate_all_tools_description_for_agent()
    assert text == await second.generate_all_tools_description_for_agent()
    browser, forecast = text.split(f"\n{RULE}\n")
    assert browser.startswith("Tool: 网页导航器") and forecast.startswith("Tool: forecast")


async def test_a_tool_with_little_information_is_described():
    engine = DescriptionEngine(ToolRegistry([Tool(spec=ToolSpec(tool_id="bare"), handler="mcp")]))
    assert await engine.generate_tool_description_for_agent("bare") == (
        "Tool: bare (ID: bare)\nType: function\nDescription: none\nTags: none\n\nActions:\n  none"
    )


async def test_types_of_parameters_are_short():
    schema = {
        "type": "object",
        "properties": {
            "a": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "b": {"type": "array", "items": {"type": "integer"}},
            "c": {"$ref": "#/$defs/C"},
            "d": {"description": "any\n  thing"},
        },
        "$defs": {"C": {"type": "object", "description": "a C"}},
    }
    engine = DescriptionEngine(ToolRegistry([make_tool("t", "x", parameters=schema)]))
    assert (
        "a (string | null, optional); b (array of integer, optional); c (object, optional): a C; "
        "d (optional): any thing\n"
    ) in await engine.generate_tool_description_for_agent("t")


async def test_disabled_and_unknown_tools_are_not_described():
    engine = DescriptionEngine(ToolRegistry([make_tool("off", "x", enabled=False), FORECAST]))
    assert "off" not in await engine.generate_all_tools_description_for_agent()
    with pytest.raises(ToolNotFound, match="disabled"):
        await engine.generate_tool_description_for_agent("off")
    with pytest.raises(ToolNotFound, match="Did you mean 'forecast'"):
        await engine.get_tool_usage_examples("forcast")


async def test_examples_are_valid_calls():
    engine = DescriptionEngine(ToolRegistry([FORECAST, BROWSER]))
    assert await engine.get_tool_usage_examples("browser_navigator") == [
        {"tool_id": "browser_navigator", "action": "navigate", "parameters": {"url": "https://www.example.com"}},
        {"tool_id": "browser_navigator", "action": "click", "parameters": {"selector": "#submit-button"}},
    ]
    [made_up] = await engine.get_tool_usage_examples("forecast")
    assert made_up == {"tool_id": "forecast", "action": "forecast", "parameters": {"city": "example"}}


def test_an_unknown_language_is_refused():
    with pytest.raises(SetupError, match="are not available in 'fr'; use one of 'en', 'zh'"):
        DescriptionEngine(ToolRegistry(), language="fr")


def test_a_token_is_a_chinese_character_or_four_others():
    assert [estimate_tokens(t) for t in ("", "a", "abcd", "abcde", "搜索", "搜索 abc")] == [0, 1, 1, 2, 2, 3]


def test_a_text_is_cut_where_a_sentence_ends():
    assert first_sentence("Ask v1.5 first. Then go.\nMore.") == "Ask v1.5 first."
    assert first_sentence("搜索网页。返回结果") == "搜索网页。"
    assert first_sentence("No end\nin sight") == "No end in sight"
    assert shorten("One two. Three four. Five", 22) == "One two. Three four."
    assert shorten("x" * 30, 10) == "x" * 9 + "…"
    assert shorten("A. " + "x" * 30, 20) == "A. " + "x" * 16 + "…"


def counting(n: int) -> list[Tool]:
    return [make_tool(f"tool_{i:02}", f"Count to {i}. Slowly.") for i in range(n)]


def test_all_tools_are_described_in_full_if_there_is_room():
    registry = ToolRegistry(counting(3))
    text = DescriptionEngine(registry).describe_within_budget(10_000)
    assert text.count("Tool: ") == 3 and "other tools" not in text.lower()


def test_without_room_core_tools_are_in_full_ten_others_by_a_line_and_the_rest_is_counted():
    engine = DescriptionEngine(ToolRegistry([*counting(30), FORECAST]))
    full, others = engine.describe_within_budget(500, core=["forecast"]).split(f"\n{RULE}\n")
    assert full.startswith("Tool: forecast") and full.endswith("the next days")
    lines = others.splitlines()
    assert lines[:2] == ["Other tools:", "- tool_00: Count to 0."]
    assert lines[10:] == ["- tool_09: Count to 9.", "(20 other tools: use search_tools to find them)"]


def test_core_tools_are_in_full_however_small_the_budget():
    text = DescriptionEngine(ToolRegistry([*counting(5), FORECAST]), language="zh").describe_within_budget(
        1, ["forecast"]
    )
    full, hint = text.split(f"\n{RULE}\n")
    assert full.startswith("工具: forecast")
    assert hint == "（还有 5 个其他工具，可用 search_tools 查找，或通过工具名称直接调用）"


def test_with_a_query_the_others_are_the_best_matches_in_full_where_there_is_room():
    engine = DescriptionEngine(ToolRegistry([*counting(30), FORECAST, BROWSER]))
    assert engine.describe_within_budget(300, query="weather of a town").startswith("Tool: forecast")
    small = engine.describe_within_budget(80, query="weather of a town")
    assert small == (
        "Other tools:\n- forecast: Tell the weather of the next days.\n(31 other tools: use search_tools to find them)"
    )


def test_a_query_without_matches_shows_the_first_by_name():
    text = DescriptionEngine(ToolRegistry(counting(30))).describe_within_budget(300, query="zzz")
    assert "- tool_00: Count to 0." in text


def test_a_page_keeps_within_its_budget():
    engine = DescriptionEngine(ToolRegistry([*counting(60), BROWSER]))
    for budget in (60, 150, 400, 1000, 2500):
        for query in (None, "count slowly"):
            assert estimate_tokens(engine.describe_within_budget(budget, query=query)) <= budget


def test_a_tool_with_several_actions_has_one_line_that_counts_them():
    actions = [ToolCapability(name=n, description=n) for n in ("a", "b")]
    many = Tool(spec=ToolSpec(tool_id="many", description="Do things.", capabilities=actions), handler="mcp")
    engine = DescriptionEngine(ToolRegistry([many, *counting(20)]))
    assert "- many (2 actions): Do things.\n" in engine.describe_within_budget(250)
