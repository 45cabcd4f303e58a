from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrule.errors import DuplicateTool
from ferrule.search import SearchIndex
from ferrule.sources import tool_of
from ferrule.spec import Tool, ToolCapability, ToolSpec
from tests.search.making import made


def ids(index: SearchIndex, text: str, limit: int = 10) -> list[str]:
    return [hit.tool.id for hit in index.search(text, limit)]


def test_a_function_is_found_by_its_name_its_words_and_its_parameters():
    async def fetch_invoice(customer: str, month: int) -> str:
        """Download a bill as PDF.

        Args:
            customer: whose account it is
        """
        return customer

    index = SearchIndex([tool_of(fetch_invoice), made("other", "Something else.")])
    for text in ("fetch invoice", "downloading bills", "pdf", "month", "account", "fetch_invoice", "FetchInvoice"):
        assert ids(index, text) == ["fetch_invoice"], text


def test_what_a_name_says_counts_more_than_what_a_description_says():
    index = SearchIndex([made("zip_files", "Make things small."), made("archive", "Zip what you are given.")])
    assert ids(index, "zip") == ["zip_files", "archive"]


def test_a_rare_word_counts_more_than_a_common_one():
    common = [made(f"send_{n}", "Send a message.") for n in range(20)]
    index = SearchIndex([*common, made("pigeon", "Carry a letter.")])
    assert ids(index, "message by pigeon", 1) == ["pigeon"]


def test_exactly_the_name_comes_first_however_well_others_fit():
    index = SearchIndex([made("search", "x"), made("search_search", "search search search", tags=["search"])])
    assert ids(index, "Search") == ["search", "search_search"]


def test_a_display_name_is_a_name():
    index = SearchIndex([made("b1", "网页导航 网页导航器 导航器"), made("b2", name="网页导航器")])
    assert ids(index, "网页导航器")[0] == "b2"


def test_equals_stand_in_the_order_of_their_sources_then_ids():
    tools = [made("b"), made("a", source="mcps"), made("c", source="skills"), made("a")]
    index = SearchIndex(replace(t, spec=replace(t.spec, description="Count sheep.")) for t in tools)
    found = [(hit.tool.id, hit.tool.source) for hit in index.search("sheep")]
    assert found == [("a", "tools"), ("b", "tools"), ("c", "skills"), ("a", "mcps")]


def test_a_hit_says_which_action_was_meant_and_by_which_terms():
    actions = [
        ToolCapability(name="create_issue", description="Open a new issue."),
        ToolCapability(name="merge", description="Merge a pull request."),
    ]
    spec = ToolSpec(tool_id="github", description="Talk to GitHub.", capabilities=actions)
    index = SearchIndex([Tool(spec=spec, handler="mcp", source="mcps")])
    [hit] = index.search("merging pull requests")
    assert (hit.actions, hit.matched) == (("merge",), ("merg", "pull", "request"))
    [hit] = index.search("github issue")
    assert hit.actions == ("create_issue", "merge")


def test_a_tool_with_many_actions_does_not_crowd_out_others():
    actions = [ToolCapability(name=f"read_{n}", description="Read a page.") for n in range(50)]
    many = Tool(spec=ToolSpec(tool_id="many", capabilities=actions), handler="mcp")
    index = SearchIndex([many, made("z", "Read a page."), made("y", "A page.")])
    assert set(ids(index, "read page", 3)) == {"many", "z", "y"}


def test_a_tool_without_actions_yet_is_found():
    server = Tool(spec=ToolSpec(tool_id="notion", description="Notes of the team."), handler="mcp")
    [hit] = SearchIndex([server]).search("team notes")
    assert (hit.tool, hit.actions) == (server, ())


def test_disabled_tools_are_not_found():
    index = SearchIndex([made("off", "Count sheep.", enabled=False, tags=["sheep"])])
    assert index.search("off") == index.search("sheep") == []
    assert index.search_by_tags(["sheep"]) == index.search_by_requirements(["count sheep"]) == []


def test_chinese_words_find_chinese_tools():
    index = SearchIndex(
        [
            made("a", "提供网页导航和元素交互功能", name="网页导航器"),
            made("b", "执行数据库查询，返回结果", tags=["database"]),
            made("c", "查询某个城市的天气预报"),
            made("d", "把文本翻译成其他语言"),
        ]
    )
    for text, wanted in (("查天气", "c"), ("数据库", "b"), ("请帮我翻译一下这句话", "d"), ("打开网页", "a")):
        assert ids(index, text, 1) == [wanted], text


def test_characters_that_stand_apart_in_a_tool_still_find_it():
    index = SearchIndex([made("a", "搜索互联网"), made("b", "发送邮件")])
    assert ids(index, "搜网") == ["a"]
    assert ids(index, "邮") == ["b"]


def test_the_beginning_of_a_word_or_a_slip_of_the_pen_finds_it():
    index = SearchIndex([made("translate", "Say it in another language."), made("weather", "Tell the forecast.")])
    assert ids(index, "trans") == ["translate"]
    assert ids(index, "wether forcast") == ["weather"]


@pytest.mark.parametrize("text", ["", " ", "the of", "的", "!?", "\ud800", "𝕏", "ﬁ", "\x00"])
def test_a_text_without_terms_finds_nothing_and_harms_nothing(text):
    assert SearchIndex([made("a", "b")]).search(text) == []


def test_no_more_are_found_than_wanted():
    index = SearchIndex(made(f"sheep_{n}") for n in range(20))
    assert [len(index.search("sheep", limit)) for limit in (0, 1, 7, 100)] == [0, 1, 7, 20]


def test_a_tool_that_is_removed_or_replaced_is_found_no_more():
    index = SearchIndex([made("a", "Count sheep.", tags=["wool"])])
    index.replace(made("a", "Count goats."))
    assert (ids(index, "sheep"), ids(index, "goats"), index.search_by_tags(["wool"])) == ([], ["a"], [])
    assert (index.remove("a", "tools"), index.remove("a", "tools"), len(index)) == (True, False, 0)
    assert ids(index, "goats") == ids(index, "a") == []


def test_one_id_twice_in_one_source_is_refused():
    index = SearchIndex([made("a")])
    with pytest.raises(DuplicateTool, match="'a' of source 'tools' is in the index already"):
        index.add(made("a"))


def test_parameters_that_cannot_be_read_keep_nobody_from_finding_the_tool():
    assert ids(SearchIndex([made("odd", "Count sheep.", parameters={"x": "string"})]), "sheep") == ["odd"]


def test_tags_find_tools_that_have_most_of_them():
    tools = [made("a", tags=["Web"]), made("b", tags=["web", "search"]), made("c", tags=["math"])]
    index = SearchIndex(tools)
    assert [tool.id for tool in index.search_by_tags(["SEARCH", "web"])] == ["b", "a"]
    assert index.search_by_tags(["none"]) == index.search_by_tags([]) == []


def test_a_tool_that_meets_more_requirements_comes_first():
    index = SearchIndex(
        [
            made("pdf", "Read PDF files. PDF PDF PDF."),
            made("both", "Read documents such as PDF files and translate them into other languages."),
            made("dictionary", "Translate words.", tags=["translate"]),
            made("clock", "Tell the time."),
        ]
    )
    found = [tool.id for tool in index.search_by_requirements(["read pdf", "translate"])]
    assert found[0] == "both" and set(found[1:]) == {"pdf", "dictionary"}


def test_a_word_in_common_does_not_meet_a_requirement():
    index = SearchIndex([made("a", "Read mail."), made("b", "Read the pressure of a tyre.")])
    assert [tool.id for tool in index.search_by_requirements(["read tyre pressure"])] == ["b"]


def test_very_common_terms_neither_hide_nor_order_what_rare_ones_find():
    many = [made(f"t{n:04}", f"Fetch the records of workspace {n}.") for n in range(4000)]
    index = SearchIndex(many)
    assert ids(index, "fetch the records of workspace 1234", 1) == ["t1234"]
    assert ids(index, "workspace records", 3) == ["t0000", "t0001", "t0002"]
    assert [len(index.search("workspace records", limit)) for limit in (10, 500, 9000)] == [10, 500, 4000]
    index.add(made("records", "Fetch records."))
    assert ids(index, "fetch records", 1) == ["records"]


WORDS = st.lists(st.sampled_from(["search", "web", "file", "读取", "文件", "Tool", "x1"]), max_size=4).map(" ".join)
CHANGES = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(["tools", "mcps"]), st.none() | WORDS), max_size=12
)


@settings(max_examples=60, deadline=None)
@given(CHANGES, WORDS)
def test_however_tools_came_and_went_what_is_found_is_what_a_new_index_finds(changes, query):
    kept: dict[tuple[str, str], Tool] = {}
    index = SearchIndex()
    for tool_id, source, description in changes:
        index.search(query)
        if description is None:
            assert index.remove(tool_id, source) == ((tool_id, source) in kept)
            kept.pop((tool_id, source), None)
        else:
            kept[tool_id, source] = made(tool_id, description, source=source, tags=description.split()[:1])
            index.replace(kept[tool_id, source])
    assert index.search(query) == SearchIndex(kept.values()).search(query)


@pytest.mark.timeout(10)
def test_a_whole_page_as_a_query_is_answered_by_its_beginning():
    words = [f"{a}{b}{c}ward" for a in "bcdfgh" for b in "aeiou" for c in "klmnprst"]
    index = SearchIndex([made("tea", "Boil water for tea."), *(made(f"x{w}", f"{w} thing") for w in words)])
    page = "Boil water for tea. " + " ".join(f"{word}x" for word in words * 200)
    assert index.search(page)[0].tool.id == "tea"
