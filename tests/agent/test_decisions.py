"""Reading a decision from what a model wrote."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.agent.decisions import AgentDecision, parse_decision
from ferrule.errors import ModelError

CLICK = AgentDecision(
    action_type="execute_tool",
    tool_id="browser",
    action="click",
    parameters={"selector": "a.stars", "timeout": 5},
    reasoning="The link was seen, 试试。",
)
JSON = json.dumps(
    {
        "action_type": "execute_tool",
        "tool_id": "browser",
        "action": "click",
        "parameters": {"selector": "a.stars", "timeout": 5},
        "reasoning": "The link was seen, 试试。",
    },
    ensure_ascii=False,
    indent=2,
)
LINES = """ACTION_TYPE: execute_tool
SELECTED_TOOL: browser
ACTION: click
PARAMETERS: {"selector": "a.stars", "timeout": 5}
REASONING: The link was seen, 试试。"""


@pytest.mark.parametrize(
    "text",
    [
        JSON,
        f"```json\n{JSON}\n```",
        f"Considering {{the page}}, I decide:\n{JSON}\nThat should work.",
        "｛“action_type”：“execute_tool”，“tool_id”：“browser”，“action”：“click”，"
        "“parameters”：｛“selector”：“a.stars”，“timeout”：5｝，“reasoning”：“The link was seen, 试试。”｝",
        str(json.loads(JSON)),
        JSON.replace('{"selector": "a.stars", "timeout": 5}', r'"{\"selector\": \"a.stars\", \"timeout\": 5}"'),
        f'{{"decision": {JSON}}}',
        JSON.replace("action_type", "actionType").replace("execute_tool", "Execute Tool"),
        f'{JSON}\nObservation: it worked.\n{{"action_type": "complete"}}',
    ],
)
def test_the_json_form_is_read(text):
    assert parse_decision(text) == CLICK


@pytest.mark.parametrize(
    "text",
    [
        LINES,
        f"I thought about it.\n\n{LINES}",
        LINES.replace(":", "："),
        "\n".join(f"**{line.replace(':', ':**', 1)}" for line in LINES.splitlines()),
        LINES.replace("execute_tool", "[execute_tool]").replace("browser", "`browser`"),
        LINES.replace('{"selector": "a.stars", "timeout": 5}', "{'selector': 'a.stars', 'timeout': 5}"),
        LINES.replace('{"selector": "a.stars", "timeout": 5}', "selector=a.stars, timeout=5"),
        LINES.replace('{"selector": "a.stars", "timeout": 5}', '\n```json\n{"selector": "a.stars", "timeout": 5}\n```'),
        f"{LINES}\nACTION_TYPE: complete",
        "动作类型：执行工具\n工具：browser\n动作：click\n参数：selector=a.stars，timeout=5\n"
        "理由：The link was seen, 试试。",
    ],
)
def test_the_form_of_lines_is_read(text):
    assert parse_decision(text) == CLICK


@pytest.mark.parametrize("action_type", ["replan", "switch_tool", "complete"])
def test_other_decisions_need_no_tool(action_type):
    assert parse_decision(f'{{"action_type": "{action_type}"}}').action_type == action_type
    decision = parse_decision(f"ACTION_TYPE: {action_type}\nSELECTED_TOOL: none\nPARAMETERS: N/A\nREASONING: so")
    assert decision == AgentDecision(action_type=decision.action_type, reasoning="so")


def test_parameters_may_have_a_tool_of_their_own():
    text = 'ACTION_TYPE: execute_tool\nSELECTED_TOOL: shop\nPARAMETERS: {"tool": "hammer", "parameters": {}}'
    assert parse_decision(text).tool_id == "shop"


def test_pairs_keep_commas_in_quotes_and_know_plain_values():
    text = (
        "ACTION_TYPE: execute_tool\nTOOL: t\nPARAMETERS: note='a, b', deep=true, share=0.5, none=null, word=plain text"
    )
    expected = {"note": "a, b", "deep": True, "share": 0.5, "none": None, "word": "plain text"}
    assert parse_decision(text).parameters == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "There is no decision in the reply ''"),
        ("I believe the task is complete.", "There is no decision"),
        ('{"city": "Paris"}', "There is no decision"),
        (JSON[:-40], "There is no decision"),
        ("ACTION_TYPE: [execute_tool|replan|switch_tool|complete]", "is not an action_type: write one of execute_tool"),
        ('{"action_type": "dance"}', "'dance' is not an action_type"),
        ("ACTION_TYPE: execute_tool\nSELECTED_TOOL: none", "names no tool: write its id as tool_id"),
        (
            "ACTION_TYPE: execute_tool\nTOOL: t\nPARAMETERS: __import__('os').getcwd()",
            "cannot be read: write them as one",
        ),
        ("ACTION_TYPE: execute_tool\nTOOL: t\nPARAMETERS: a=1, a=2", "cannot be read"),
        ('{"action_type": "execute_tool", "tool_id": "t", "parameters": ["a"]}', "cannot be read"),
    ],
)
def test_what_is_no_decision_is_refused_with_what_to_write(text, message):
    with pytest.raises(ModelError) as refused:
        parse_decision(text)
    assert message in str(refused.value)


@pytest.mark.parametrize("part", ["{", '{"a":', "ACTION_TYPE:\n", "'"])
def test_a_hostile_text_is_refused_like_any_other(part):
    with pytest.raises(ModelError):
        parse_decision(part * (250_000 // len(part)))


@given(st.text() | st.lists(st.sampled_from([*'{}[]":,\n', "ACTION_TYPE", "PARAMETERS", "replan", "x=1"])).map("".join))
def test_any_text_is_a_decision_or_a_model_error(text):
    try:
        assert parse_decision(text).action_type in ("execute_tool", "replan", "switch_tool", "complete")
    except ModelError as refused:
        assert str(refused)
