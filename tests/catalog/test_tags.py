from ferrule.catalog.tags import DEFAULT_TABLE, TagTable, add_missing_tags, extract_tags
from ferrule.core.spec import Tool, ToolCapability, ToolSpec
from ferrule.kinds.function.tools import tool_of
from tests.catalog.search.searchable_tools import make_tool


def test_words_of_both_languages_stand_for_the_same_tags():
    for english, chinese, tags in (
        ("Search something.", "搜索内容", ["search", "web", "research"]),
        ("Calculate a sum.", "计算总和", ["calculate"]),
        ("Tell the time.", "获取当前时间", ["time"]),
        ("Query a database.", "执行数据库查询", ["database"]),
        ("Send an email.", "发送邮件", ["email", "notify"]),
    ):
        assert extract_tags("x", english) == extract_tags("x", chinese) == tags


def test_a_name_has_tags_too_and_comes_first():
    assert extract_tags("get_time", "搜索") == ["time", "search", "web", "research"]
    assert extract_tags("searchFiles", "") == ["search", "file"]


def test_words_of_alphabets_must_be_whole_words_in_any_form():
    assert extract_tags("x", "Translates, calculating") == ["translate", "language", "calculate"]
    assert extract_tags("x", "A profile of the encoder's sometimes timeout") == []


def test_a_longer_word_of_the_table_keeps_a_shorter_one_in_it_from_counting():
    assert extract_tags("x", "返回计算机的型号") == []
    assert extract_tags("x", "The status code of the page") == []


def test_full_width_letters_are_letters():
    assert extract_tags("x", "发送ＨＴＴＰ请求") == ["http", "web"]


def test_the_table_can_be_extended_and_changed():
    table = DEFAULT_TABLE.with_words({"发票": ["finance"], "invoice": ["finance"], "time": [], "ground beef": ["food"]})
    assert extract_tags("x", "Invoices of the time, 发票", table) == ["finance"]
    assert extract_tags("x", "Ground   beef", table) == ["food"]
    assert extract_tags("x", "Invoices of the time, 发票") == ["time"]


def test_a_word_in_both_scripts_is_looked_for_as_a_whole():
    table = DEFAULT_TABLE.with_words({"AI绘画": ["image"], "用AI写": ["text"]})
    assert extract_tags("x", "An AI for everything, AI 与你", table) == []
    assert extract_tags("x", "ai绘画，用ＡＩ写", table) == ["image", "text"]


def test_words_between_chinese_ones_are_read_like_any_others():
    assert extract_tags("x", "推送 real time 数据") == extract_tags("x", "数据 one time 密码") == []
    assert extract_tags("x", "数据 time 数据") == ["time"]


def test_an_empty_table_finds_nothing():
    assert extract_tags("search", "搜索", TagTable(words={})) == []


def test_only_a_tool_without_tags_gets_some():
    def search_web(query: str) -> str:
        """Look something up."""
        return query

    assert add_missing_tags(tool_of(search_web)).spec.tags == ["search", "web", "research"]
    tagged, silent = tool_of(search_web, tags=["mine"]), make_tool("x", "Nothing to say.")
    assert (add_missing_tags(tagged), add_missing_tags(silent)) == (tagged, silent)


def test_actions_do_not_tag_a_tool_that_has_several():
    actions = [ToolCapability(name="search", description="Search."), ToolCapability(name="x", description="Translate.")]
    many = Tool(spec=ToolSpec(tool_id="server", capabilities=actions), handler="mcp")
    assert add_missing_tags(many) is many
