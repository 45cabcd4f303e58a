from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.catalog.search import SearchIndex
from ferrule.core.spec import Tool, ToolCapability, ToolSpec
from ferrule.errors import DuplicateTool
from ferrule.kinds.function.tools import tool_of
from tests.catalog.search.searchable_tools import make_tool


def ids(index: SearchIndex, text: str, limit: int = 10) -> list[str]:
    return [hit.tool.id for hit in index.search(text, limit)]


def test_a_function_is_found_by_its_name_its_words_and_its_parameters():
    async def fetch_invoice(customer: str, month: int) -> str:
        """Download a bill as PDF.

        Args:
            customer: whose account it is
        """
        return customer

    index = SearchIndex([tool_of(fetch_invoice), make_tool("other", "Something else.")])
    for text in ("fetch invoice", "downloading bills", "pdf", "month", "account", "fetch_invoice", "FetchInvoice"):
        assert ids(index, text) == ["fetch_invoice"], text


def test_a_name_counts_more_than_a_description():
    index = SearchIndex([make_tool("zip_files", "Make things small."), make_tool("archive", "Zip what you are given.")])
    assert ids(index, "zip") == ["zip_files", "archive"]


def test_a_rare_word_counts_more_than_a_common_one():
    common = [make_tool(f"send_{n}", "Send a message.") for n in range(20)]
    index = SearchIndex([*common, make_tool("pigeon", "Carry a letter.")])
    assert ids(index, "message by pigeon", 1) == ["pigeon"]


def test_a_tool_with_exactly_the_name_comes_first():
    index = SearchIndex([make_tool("search", "x"), make_tool("search_search", "search search search", tags=["search"])])
    assert ids(index, "Search") == ["search", "search_search"]


def test_a_display_name_is_a_name():
    index = SearchIndex([make_tool("b1", "网页导航 网页导航器 导航器"), make_tool("b2", name="网页导航器")])
    assert ids(index, "网页导航器")[0] == "b2"


def test_equal_hits_are_ordered_by_source_then_id():
    tools = [make_tool("b"), make_tool("a", source="mcps"), make_tool("c", source="skills"), make_tool("a")]
    index = SearchIndex(replace(t, spec=replace(t.spec, description="Count sheep.")) for t in tools)
    ids = [(hit.tool.id, hit.tool.source) for hit in index.search("sheep")]
    assert ids == [("a", "tools"), ("b", "tools"), ("c", "skills"), ("a", "mcps")]


def test_a_hit_lists_the_matching_actions_and_terms():
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
    index = SearchIndex([many, make_tool("z", "Read a page."), make_tool("y", "A page.")])
    assert set(ids(index, "read page", 3)) == {"many", "z", "y"}


def test_a_tool_without_actions_yet_is_found():
    server = Tool(spec=ToolSpec(tool_id="notion", description="Notes of the team."), handler="mcp")
    [hit] = SearchIndex([server]).search("team notes")
    assert (hit.tool, hit.actions) == (server, ())


def test_disabled_tools_are_not_found():
    index = SearchIndex([make_tool("off", "Count sheep.", enabled=False, tags=["sheep"])])
    assert index.search("off") == index.search("sheep") == []
    assert index.search_by_tags(["sheep"]) == index.search_by_requirements(["count sheep"]) == []


def test_chinese_words_find_chinese_tools():
    index = SearchIndex(
        [
            make_tool("a", "提供网页导航和元素交互功能", name="网页导航器"),
            make_tool("b", "执行数据库查询，返回结果", tags=["database"]),
            make_tool("c", "查询某个城市的天气预报"),
            make_tool("d", "把文本翻译成其他语言"),
        ]
    )
    for text, expected in (("查天气", "c"), ("数据库", "b"), ("请帮我翻译一下这句话", "d"), ("打开网页", "a")):
        assert ids(index, text, 1) == [expected], text


def test_characters_that_stand_apart_in_a_tool_still_find_it():
    index = SearchIndex([make_tool("a", "搜索互联网"), make_tool("b", "发送邮件")])
    assert ids(index, "搜网") == ["a"]
    assert ids(index, "邮") == ["b"]


def test_a_prefix_or_a_misspelt_word_finds_a_tool():
    index = SearchIndex(
        [make_tool("translate", "Say it in another language."), make_tool("weather", "Tell the forecast.")]
    )
    assert ids(index, "trans") == ["translate"]
    assert ids(index, "wether forcast") == ["weather"]


def test_a_text_without_terms_finds_nothing():
    for text in ("", " ", "the of", "的", "!?", "\ud800", "𝕏", "ﬁ", "\x00"):
        assert SearchIndex([make_tool("a", "b")]).search(text) == []


def test_the_number_of_hits_is_limited():
    index = SearchIndex(make_tool(f"sheep_{n}") for n in range(20))
    assert [len(index.search("sheep", limit)) for limit in (0, 1, 7, 100)] == [0, 1, 7, 20]


def test_a_tool_that_is_removed_or_replaced_is_found_no_more():
    index = SearchIndex([make_tool("a", "Count sheep.", tags=["wool"])])
    index.replace(make_tool("a", "Count goats."))
    assert (ids(index, "sheep"), ids(index, "goats"), index.search_by_tags(["wool"])) == ([], ["a"], [])
    assert (index.remove("a", "tools"), index.remove("a", "tools"), len(index)) == (True, False, 0)
    assert ids(index, "goats") == ids(index, "a") == []


def test_one_id_twice_in_one_source_is_refused():
    index = SearchIndex([make_tool("a")])
    with pytest.raises(DuplicateTool, match="'a' of source 'tools' is already in the index"):
        index.add(make_tool("a"))


def test_a_tool_with_malformed_parameters_is_found():
    assert ids(SearchIndex([make_tool("odd", "Count sheep.", parameters={"x": "string"})]), "sheep") == ["odd"]


def test_tags_find_tools_that_have_most_of_them():
    tools = [make_tool("a", tags=["Web"]), make_tool("b", tags=["web", "search"]), make_tool("c", tags=["math"])]
    index = SearchIndex(tools)
    assert [tool.id for tool in index.search_by_tags(["SEARCH", "web"])] == ["b", "a"]
    assert index.search_by_tags(["none"]) == index.search_by_tags([]) == []


def test_a_tool_that_meets_more_requirements_comes_first():
    index = SearchIndex(
        [
            make_tool("pdf", "Read PDF files. PDF PDF PDF."),
            make_tool("both", "Read documents such as PDF files and translate them into other languages."),
            make_tool("dictionary", "Translate words.", tags=["translate"]),
            make_tool("clock", "Tell the time."),
        ]
    )
    ids = [tool.id for tool in index.search_by_requirements(["read pdf", "translate"])]
    assert ids[0] == "both" and set(ids[1:]) == {"pdf", "dictionary"}


def test_one_common_word_does_not_meet_a_requirement():
    index = SearchIndex([make_tool("a", "Read mail."), make_tool("b", "Read the pressure of a tyre.")])
    assert [tool.id for tool in index.search_by_requirements(["read tyre pressure"])] == ["b"]


def test_very_common_terms_do_not_change_the_results_of_rare_ones():
    many = [make_tool(f"t{n:04}", f"Fetch the records of workspace {n}.") for n in range(4000)]
    index = SearchIndex(many)
    assert ids(index, "fetch the records of workspace 1234", 1) == ["t1234"]
    assert ids(index, "workspace records", 3) == ["t0000", "t0001", "t0002"]
    assert [len(index.search("workspace records", limit)) for limit in (10, 500, 9000)] == [10, 500, 4000]
    index.add(make_tool("records", "Fetch records."))
    assert ids(index, "fetch records", 1) == ["records"]


WORDS = st.lists(st.sampled_from(["search", "web", "file", "读取", "文件", "Tool", "x1"]), max_size=4).map(" ".join)
CHANGES = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(["tools", "mcps"]), st.none() | WORDS), max_size=12
)


@given(CHANGES, WORDS)
def test_a_changed_index_finds_the_same_as_a_new_one(changes, query):
    remaining: dict[tuple[str, str], Tool] = {}
    index = SearchIndex()
    for tool_id, source, description in changes:
        index.search(query)
        if description is None:
            assert index.remove(tool_id, source) == ((tool_id, source) in remaining)
            remaining.pop((tool_id, source), None)
        else:
            remaining[tool_id, source] = make_tool(tool_id, description, source=source, tags=description.split()[:1])
            index.replace(remaining[tool_id, source])
    assert index.search(query) == SearchIndex(remaining.values()).search(query)


def test_only_the_beginning_of_a_long_query_is_used():
    words = [f"{a}{b}{c}ward" for a in "bcdfgh" for b in "aeiou" for c in "klmnprst"]
    index = SearchIndex([make_tool("tea", "Boil water for tea."), *(make_tool(f"x{w}", f"{w} thing") for w in words)])
    page = "Boil water for tea. " + " ".join(f"{word}x" for word in words * 200)
    assert index.search(page)[0].tool.id == "tea"


def test_chinese_words_find_tools_that_are_described_in_english():
    tools = [make_tool("move_file", "Rename a file."), make_tool("tell_weather", "The forecast."), make_tool("flights")]
    index = SearchIndex(tools)
    assert ids(index, "帮我把这个文件重命名一下") == ["move_file"]
    assert ids(index, "北京天气怎么样") == ["tell_weather"] and ids(index, "查航班") == ["flights"]
    assert ids(index, "合并请求") == []  # one word, not "request" and what it begins with
