"""Which tools may stand in for one that failed."""

from dataclasses import replace

from ferrule.core.spec import Effects, Tool, ToolCapability, ToolSpec
from ferrule.memory.advice import alternative_tools

TEXT = {"type": "string", "required": True}


def made(tool_id: str, description: str, tags: tuple[str, ...] = (), **parameters: object) -> ToolSpec:
    action = ToolCapability(name=tool_id, description=description, parameters=dict(parameters))
    return ToolSpec(tool_id=tool_id, description=description, tags=list(tags), capabilities=[action])


BROWSER = made("browser", "Read the text of a web page.", ("web", "browser"), url=TEXT, selector=TEXT)
FETCH = made("fetch", "Get a web page over HTTP.", ("web", "http"), url=TEXT)
SEARCH = made("search", "Search the web.", ("web", "search"), query=TEXT)
STARS = made("repository", "Count the stars of a project.", (), name=TEXT)
CALCULATOR = made("calculator", "Work out an expression.", ("math",), expression=TEXT)
CALL = {"url": "https://example.com", "selector": "a.stars"}


def found(*tools: ToolSpec, task: str = "", failed: tuple[str, ...] = (), limit: int = 5) -> list[str]:
    job = alternative_tools(BROWSER, BROWSER.capabilities[0], CALL, tools, failed=failed, task=task, limit=limit)
    return [alternative.spec.tool_id for alternative in job]


def test_tools_with_tags_and_arguments_in_common_come_first():
    assert found(CALCULATOR, SEARCH, FETCH) == ["fetch", "search"]


def test_the_words_of_the_task_speak_for_a_tool():
    assert found(CALCULATOR, STARS) == []
    assert found(CALCULATOR, STARS, task="How many stars does the project have?") == ["repository"]


def test_words_of_a_task_in_chinese_count_too():
    weather = made("weather", "查询城市的天气预报", city=TEXT)
    assert found(CALCULATOR, weather, task="北京的天气怎么样？") == ["weather"]


def test_what_failed_or_is_switched_off_is_left_out():
    assert found(BROWSER, FETCH, SEARCH, failed=("fetch",)) == ["search"]
    assert found(replace(FETCH, enabled=False), SEARCH) == ["search"]


def test_tags_words_of_the_task_and_arguments_count():
    [fetch] = alternative_tools(BROWSER, BROWSER.capabilities[0], CALL, [FETCH], failed=(), task="Read a page")
    [untold] = alternative_tools(BROWSER, BROWSER.capabilities[0], CALL, [FETCH], failed=(), task="")
    assert fetch.action == "fetch" and 0 < untold.score < fetch.score <= 1 and fetch.fits


def test_one_missing_text_may_be_one_of_those_there_are():
    lookup = made("lookup", "Look up a term.", ("search",), term=TEXT)
    [search] = alternative_tools(lookup, lookup.capabilities[0], {"term": "tea"}, [SEARCH], failed=(), task="")
    [unrelated] = alternative_tools(lookup, lookup.capabilities[0], {}, [SEARCH], failed=(), task="")
    assert search.score > unrelated.score


def test_the_best_action_of_a_tool_with_several_is_named():
    actions = [
        ToolCapability(name="upload", description="Send a file.", parameters={"file": TEXT}),
        ToolCapability(name="page_text", description="Read the text of a page.", parameters={"url": TEXT}),
    ]
    crawler = ToolSpec(tool_id="crawler", tags=["web"], capabilities=actions)
    [best] = alternative_tools(BROWSER, BROWSER.capabilities[0], CALL, [crawler], failed=(), task="")
    assert best.action == "page_text"


def test_what_only_reads_is_not_replaced_by_what_may_destroy():
    reads = replace(BROWSER, effects=Effects(read_only=True))
    destroys = replace(FETCH, effects=Effects(destructive=True))
    assert alternative_tools(reads, reads.capabilities[0], CALL, [destroys], failed=(), task="") == []
    assert alternative_tools(BROWSER, BROWSER.capabilities[0], CALL, [destroys], failed=(), task="") != []


def test_a_category_in_common_is_enough_unless_it_is_everybodys():
    files, other = (replace(tool, category="file", tags=[]) for tool in (STARS, CALCULATOR))
    same = alternative_tools(files, files.capabilities[0], {}, [other], failed=(), task="")
    assert [one.action for one in same] == ["calculator"]
    assert alternative_tools(STARS, STARS.capabilities[0], {}, [CALCULATOR], failed=(), task="") == []


def test_a_whole_tool_will_do_and_no_more_come_than_are_asked_for():
    tool = Tool(spec=BROWSER, handler="function")
    many = [replace(FETCH, tool_id=f"fetch_{number}") for number in range(20)]
    assert len(alternative_tools(tool, BROWSER.capabilities[0], CALL, many, failed=(), task="")) == 5
    assert found(*many, limit=2) == ["fetch_0", "fetch_1"]
