"""Searching the files of a workspace."""

import asyncio

import pytest

from ferrule import ToolEngine
from ferrule.core.call import ToolExecutionContext
from ferrule.errors import Retry
from ferrule_tools.files import workspace_tools
from ferrule_tools.files.search import search_files
from ferrule_tools.files.workspace import Workspace


def search(tmp_path, **parameters):
    return search_files(Workspace.at(tmp_path), **parameters)


def places(told):
    return [(match["path"], match["line"]) for match in told["matches"]]


@pytest.mark.integration
async def test_text_is_found_through_the_engine_with_its_context(tmp_path):
    (tmp_path / "poem.txt").write_text("one\ntwo\nthree\nfour\n")
    async with ToolEngine() as engine:
        engine.register(*workspace_tools(tmp_path))
        result = await engine.execute("search_files", {"query": "THREE", "context": 1})
    assert result.output == {
        "matches": [{"path": "poem.txt", "line": 3, "text": "three", "before": ["two"], "after": ["four"]}],
        "files_searched": 1,
    }


def test_plain_text_is_no_regular_expression(tmp_path):
    (tmp_path / "a.txt").write_text("a.c\nabc\n(")
    assert places(search(tmp_path, query="a.c")) == [("a.txt", 1)]
    assert places(search(tmp_path, query="a.c", regex=True)) == [("a.txt", 1), ("a.txt", 2)]
    assert places(search(tmp_path, query="(")) == [("a.txt", 3)]
    with pytest.raises(Retry, match=r"'\(' is not a regular expression: missing \)"):
        search(tmp_path, query="(", regex=True)


def test_letters_are_told_apart_only_if_asked(tmp_path):
    (tmp_path / "a.txt").write_text("Übung\nübung\n")
    assert len(places(search(tmp_path, query="ÜBUNG"))) == 2
    assert places(search(tmp_path, query="Übung", case_sensitive=True)) == [("a.txt", 1)]


def test_texts_in_other_encodings_are_searched_and_binary_files_are_not(tmp_path):
    (tmp_path / "gb.txt").write_bytes("你好，世界".encode("gb18030"))
    (tmp_path / "wide.txt").write_bytes("你好，世界".encode("utf-16"))
    (tmp_path / "data.bin").write_bytes(b"\0\1\2" + "你好".encode())
    told = search(tmp_path, query="世界")
    assert places(told) == [("gb.txt", 1), ("wide.txt", 1)]
    assert told["skipped"] == {"binary": 1}


def test_histories_and_hidden_files_are_passed_over(tmp_path):
    for folder in (".git", "node_modules", "src", ".github"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.txt").write_text("needle")
    assert places(search(tmp_path, query="needle")) == [("src/x.txt", 1)]
    with_hidden = places(search(tmp_path, query="needle", hidden=True))
    assert with_hidden == [(".github/x.txt", 1), ("node_modules/x.txt", 1), ("src/x.txt", 1)]


def test_a_pattern_says_which_files_are_searched(tmp_path):
    (tmp_path / "src").mkdir()
    for name in ("a.py", "src/b.py", "src/c.md"):
        (tmp_path / name).write_text("needle")
    assert places(search(tmp_path, query="needle", files="*.py")) == [("a.py", 1), ("src/b.py", 1)]
    assert places(search(tmp_path, query="needle", path="src", files="*.md")) == [("src/c.md", 1)]
    assert search(tmp_path, files="*.py") == {"files": ["a.py", "src/b.py"]}


def test_a_long_line_is_shown_around_its_match(tmp_path):
    (tmp_path / "min.js").write_text("x" * 50_000 + "needle" + "y" * 50_000)
    [match] = search(tmp_path, query="needle")["matches"]
    assert "needle" in match["text"] and len(match["text"]) < 310


def test_matches_are_limited_and_that_is_told(tmp_path):
    (tmp_path / "a.txt").write_text("needle\n" * 5_000)
    told = search(tmp_path, query="needle", limit=7)
    assert len(told["matches"]) == 7 and told["incomplete"].startswith("there may be more")
    assert len(search(tmp_path, query="needle", limit=10**9)["matches"]) == 1_000


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({}, "Say what to look for"),
        ({"query": "a\nb"}, "over several lines"),
        ({"query": "x" * 2_000}, "2,000 characters"),
    ],
)
def test_what_cannot_be_looked_for_is_refused(tmp_path, parameters, why):
    with pytest.raises(Retry, match=why):
        search(tmp_path, **parameters)


@pytest.mark.parametrize("pattern", ["*" * 200 + "x", "{a,b}" * 20, "a/" * 200, "**/" * 60 + "x", "*a" * 100 + "b"])
def test_no_pattern_of_names_takes_long(tmp_path, pattern):
    (tmp_path / ("a" * 200)).write_text("")
    try:
        assert search(tmp_path, files=pattern) == {"files": []}
    except Retry as refusal:
        assert "pattern" in str(refusal)


@pytest.mark.integration
async def test_an_expression_that_never_ends_is_killed_while_everything_else_goes_on(tmp_path):
    (tmp_path / "a.txt").write_text("a" * 60 + "!")
    async with ToolEngine() as engine:
        engine.register(*workspace_tools(tmp_path))
        evil = engine.execute(
            "search_files", {"query": "(a+)+$", "regex": True}, context=ToolExecutionContext(timeout=1.0)
        )
        searching = asyncio.create_task(evil)
        assert (await engine.execute("file_processor__read", {"path": "a.txt"})).is_success
        assert (await searching).error_type == "timeout"
        assert (await engine.execute("search_files", {"query": "!"})).output["matches"][0]["line"] == 1
