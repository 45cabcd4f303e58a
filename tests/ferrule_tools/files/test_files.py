"""The files of a workspace: listed, read, written, copied, moved and deleted."""

import asyncio
import os

import pytest

from ferrule import ToolEngine, UnifiedToolLibrary
from ferrule.agent import Agent
from ferrule.core.call import ToolExecutionContext
from ferrule.core.content import Image
from ferrule.errors import CallError, ExecutionFailed, Refuse, Retry
from ferrule.memory.failures import FailureClass, FailureClassifier
from ferrule.models.offline import OfflineModel
from ferrule.testing import ScriptedModel
from ferrule_tools.files import workspace_tools
from ferrule_tools.files.processor import FileProcessor
from ferrule_tools.files.search import list_workspace_files, search_files
from ferrule_tools.files.workspace import Workspace

CHINESE = "春眠不觉晓，处处闻啼鸟。\n夜来风雨声，花落知多少。\n"


def files_in(tmp_path):
    return FileProcessor(Workspace.at(tmp_path))


def names(told):
    return [each["path"] for each in told["files"]]


# Through the doors


@pytest.mark.integration
async def test_files_are_written_read_listed_and_deleted_through_the_engine(tmp_path):
    async with ToolEngine() as engine:
        engine.register(*workspace_tools(tmp_path))
        written = await engine.execute("file_processor__write", {"path": "docs/诗.txt", "content": CHINESE})
        assert written.output == {"path": "docs/诗.txt", "size": len(CHINESE.encode())}
        listed = await engine.execute("list_workspace_files", {"recursive": True})
        assert names(listed.output) == ["docs", "docs/诗.txt"]
        read = await engine.execute("file_processor", {"path": "docs/诗.txt"}, action="read")
        assert (read.output["text"], read.output["encoding"]) == (CHINESE, "utf-8")
        deleted = await engine.execute("file_processor__delete", {"path": "docs/诗.txt"})
        assert deleted.is_success and os.listdir(tmp_path / "docs") == []


@pytest.mark.integration
async def test_the_offline_model_names_a_file_whose_name_was_nearly_right(tmp_path):
    (tmp_path / "notes.txt").write_text("Buy milk.")
    async with UnifiedToolLibrary() as library:
        library.register(*workspace_tools(tmp_path))
        answer = await Agent(library, OfflineModel()).run("Read the file note.txt")
    assert "Did you mean 'notes.txt'?" in answer.text


@pytest.mark.integration
async def test_an_agent_asks_before_it_deletes_or_overwrites_and_not_before_it_writes(tmp_path):
    (tmp_path / "old.txt").write_text("old")
    calls = [
        {"name": "file_processor__write", "arguments": {"path": "new.txt", "content": "new"}},
        {"name": "file_processor__overwrite", "arguments": {"path": "old.txt", "content": "new"}},
    ]
    async with UnifiedToolLibrary() as library:
        library.register(*workspace_tools(tmp_path))
        answer = await Agent(library, ScriptedModel([*calls, "Done."])).run("Write.")
    assert not answer.is_finished and (tmp_path / "new.txt").read_text() == "new"
    assert (tmp_path / "old.txt").read_text() == "old"


def test_each_action_says_what_it_does_to_the_world(tmp_path):
    *_, processor = workspace_tools(tmp_path)
    effects = {each.name: processor.spec.effects_of(each) for each in processor.spec.capabilities}
    assert [name for name, effect in effects.items() if effect.read_only] == ["read", "info"]
    assert [name for name, effect in effects.items() if effect.destructive] == ["overwrite", "delete"]
    assert [name for name, effect in effects.items() if effect.repeatable] == ["read", "overwrite", "info"]


@pytest.mark.integration
async def test_a_missing_file_is_known_as_missing(tmp_path):
    async with ToolEngine() as engine:
        engine.register(*workspace_tools(tmp_path))
        result = await engine.execute("file_processor__read", {"path": "none.txt"})
    assert result.error == "'none.txt' does not exist. In the workspace there is nothing."
    assert FailureClassifier().classify(result) is FailureClass.NOT_FOUND


@pytest.mark.integration
async def test_a_picture_comes_as_a_picture_and_other_bytes_are_refused(tmp_path):
    (tmp_path / "dot.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(20))
    (tmp_path / "data.zip").write_bytes(b"PK\x03\x04" + bytes(20))
    async with ToolEngine() as engine:
        engine.register(*workspace_tools(tmp_path))
        picture = await engine.execute("file_processor__read", {"path": "dot.png"})
        archive = await engine.execute("file_processor__read", {"path": "data.zip"})
    assert isinstance(picture.content[0], Image) and picture.content[0].mime_type == "image/png"
    assert "'data.zip' is a binary file (application/zip, 24 bytes)" in str(archive.error)


# Reading


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "gb18030"])
def test_the_encoding_of_a_text_is_found_out(tmp_path, encoding):
    (tmp_path / "poem.txt").write_bytes(CHINESE.encode(encoding))
    read = files_in(tmp_path).read("poem.txt")
    assert (read["text"], read["encoding"]) == (CHINESE, encoding)


def test_a_western_text_is_not_taken_for_chinese(tmp_path):
    for text in ("Größe über alles", "Olá, São Paulo é grande", "naïve café – “quoted”", "çà et là"):
        (tmp_path / "text.txt").write_bytes(text.encode("cp1252"))
        read = files_in(tmp_path).read("text.txt")
        assert (read["text"], read["encoding"]) == (text, "cp1252")


def test_an_encoding_can_be_said_and_must_be_one_for_text(tmp_path):
    (tmp_path / "text.txt").write_bytes("こんにちは".encode("shift_jis"))
    assert files_in(tmp_path).read("text.txt", encoding="shift_jis")["text"] == "こんにちは"
    for name in ("rot13", "zlib", "klingon", "idna", "\0"):
        with pytest.raises(Retry, match="is not known"):
            files_in(tmp_path).read("text.txt", encoding=name)


def test_a_file_is_read_by_lines(tmp_path):
    (tmp_path / "log.txt").write_text("".join(f"line {n}\n" for n in range(1, 101)))
    middle = files_in(tmp_path).read("log.txt", start_line=40, lines=2)
    assert (middle["text"], middle["last_line"], middle["next"]) == ("line 40\nline 41\n", 41, {"start_line": 42})
    end = files_in(tmp_path).read("log.txt", start_line=-2)
    assert end["text"] == "line 99\nline 100\n" and "next" not in end
    with pytest.raises(Retry, match=r"'log.txt': the file has 100 lines: there is no line 200"):
        files_in(tmp_path).read("log.txt", start_line=200)


def test_a_file_of_one_endless_line_is_read_piece_by_piece(tmp_path):
    text = "0123456789" * 12_000
    (tmp_path / "long.json").write_text(text)
    pieces: list[str] = []
    where: dict[str, int] = {}
    for _ in range(3):
        read = files_in(tmp_path).read("long.json", **where)
        pieces.append(read["text"])
        where = read.get("next", {})
    assert "".join(pieces) == text and where == {}


def test_line_ends_stay_as_they_are(tmp_path):
    (tmp_path / "dos.txt").write_bytes(b"one\r\ntwo\r\n")
    assert files_in(tmp_path).read("dos.txt", start_line=2)["text"] == "two\r\n"


def test_a_file_is_described(tmp_path):
    (tmp_path / "poem.txt").write_bytes(CHINESE.encode("gb18030"))
    info = files_in(tmp_path).info("poem.txt")
    assert (info["type"], info["encoding"], info["lines"]) == ("file", "gb18030", 2)
    assert files_in(tmp_path).info(".") == {"path": ".", "type": "folder", "entries": 1}


def test_the_words_of_a_long_file_are_counted_once(tmp_path):
    (tmp_path / "long.txt").write_text("seven words\n" * 20_001 + "end")
    info = files_in(tmp_path).info("long.txt")
    assert (info["lines"], info["words"]) == (20_002, 40_003)


# Changing


def test_an_existing_file_is_only_replaced_on_purpose(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    files = files_in(tmp_path)
    for change in (
        lambda: files.write("a.txt", "new"),
        lambda: files.copy("b.txt", "a.txt"),
        lambda: files.move("b.txt", "a.txt"),
    ):
        with pytest.raises(Retry, match="'a.txt' exists already"):
            change()
    assert files.overwrite("a.txt", "new") == {"path": "a.txt", "size": 3, "size_before": 1}
    assert (tmp_path / "a.txt").read_text() == "new" and (tmp_path / "b.txt").read_text() == "b"


def test_overwriting_keeps_the_encoding_and_the_permissions(tmp_path):
    script = tmp_path / "run.sh"
    script.write_bytes("# 你好，世界\n".encode("gb18030"))
    script.chmod(0o750)
    files_in(tmp_path).overwrite("run.sh", "# 再见\n")
    assert script.read_bytes() == "# 再见\n".encode("gb18030") and script.stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_line_is_appended_as_a_line_of_its_own(tmp_path, encoding):
    (tmp_path / "list.txt").write_text("milk", encoding=encoding)
    for item in ("eggs", "tea\n"):
        files_in(tmp_path).append("list.txt", item, as_line=True)
    files_in(tmp_path).append("new.txt", "eggs", as_line=True)
    assert (tmp_path / "list.txt").read_text(encoding=encoding) == "milk\neggs\ntea\n"
    assert (tmp_path / "new.txt").read_text() == "eggs\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "gb18030", "utf-16-le", "utf-16-be"])
def test_text_is_appended_in_the_encoding_of_the_file(tmp_path, encoding):
    mark = "\ufeff" if encoding.startswith("utf-16") else ""
    (tmp_path / "poem.txt").write_bytes((mark + CHINESE).encode(encoding))
    files_in(tmp_path).append("poem.txt", "完\n")
    read_back = (tmp_path / "poem.txt").read_bytes().decode(encoding)
    assert read_back == mark + CHINESE + "完\n"


def test_what_an_encoding_has_no_word_for_is_not_written(tmp_path):
    with pytest.raises(Retry, match="'你好' cannot be written in ascii"):
        files_in(tmp_path).write("a.txt", "你好", encoding="ascii")
    with pytest.raises(Retry, match="cannot be written in utf-8"):
        files_in(tmp_path).write("a.txt", "\ud800")
    assert os.listdir(tmp_path) == []


def test_files_and_folders_are_moved(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.txt").write_text("x")
    files = files_in(tmp_path)
    files.move("a/x.txt", "b/c/y.txt")
    files.move("b", "d")
    assert (tmp_path / "d/c/y.txt").read_text() == "x" and not (tmp_path / "a/x.txt").exists()
    with pytest.raises(Retry, match="which is itself or lies in it"):
        files.move("d", "d/c/d")


def test_a_copy_is_a_file_of_its_own_with_the_same_permissions(tmp_path):
    (tmp_path / "run.sh").write_bytes(bytes(range(256)) * 10_000)
    (tmp_path / "run.sh").chmod(0o755)
    assert files_in(tmp_path).copy("run.sh", "copies/run.sh")["size"] == 2_560_000
    copied = tmp_path / "copies/run.sh"
    assert copied.read_bytes() == bytes(range(256)) * 10_000
    assert copied.stat().st_mode & 0o777 == 0o755 and copied.stat().st_nlink == 1


def test_only_empty_folders_are_deleted(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.txt").write_text("x")
    files = files_in(tmp_path)
    with pytest.raises(Retry, match="'a' is not empty"):
        files.delete("a")
    files.delete("a/x.txt")
    assert files.delete("a") == {"path": "a", "deleted": "folder"}
    with pytest.raises(Retry, match="is the workspace itself"):
        files.delete(".")


def test_nothing_unfinished_is_left_behind(tmp_path):
    files = files_in(tmp_path)
    files.write("a.txt", "a" * 100_000)
    files.overwrite("a.txt", "b")
    with pytest.raises(CallError):
        files.write("a.txt", "c")
    assert os.listdir(tmp_path) == ["a.txt"]


def test_files_are_written_whole_where_nameless_files_are_not_to_be_had(tmp_path, monkeypatch):
    monkeypatch.setattr("ferrule_tools.files.workspace._O_TMPFILE", 0)
    files = files_in(tmp_path)
    files.write("a.txt", "a")
    files.overwrite("a.txt", "b")
    with pytest.raises(Retry, match="exists already"):
        files.write("a.txt", "c")
    assert os.listdir(tmp_path) == ["a.txt"] and (tmp_path / "a.txt").read_text() == "b"


def test_a_project_may_protect_other_paths(tmp_path):
    files = FileProcessor(Workspace.at(tmp_path, ("conf/tools",)))
    files.write("tools/notes.txt", "")
    for path in ("conf/tools/evil.py", "conf/tools", "conf"):
        with pytest.raises(Refuse):
            files.write(path, "")


# Listing


def test_a_listing_says_what_things_are(tmp_path):
    (tmp_path / "b.txt").write_text("12345")
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("b.txt")
    (tmp_path / ".hidden").write_text("")
    listed = list_workspace_files(Workspace.at(tmp_path))
    assert [(each["path"], each["type"]) for each in listed["files"]] == [
        ("a", "folder"),
        ("b.txt", "file"),
        ("link", "link"),
    ]
    assert listed["files"][1]["size"] == 5 and listed["total"] == 3
    assert names(list_workspace_files(Workspace.at(tmp_path), hidden=True))[0] == ".hidden"


def test_a_listing_follows_a_pattern(tmp_path):
    (tmp_path / "src" / "deep").mkdir(parents=True)
    for name in ("a.py", "src/b.py", "src/deep/c.py", "src/deep/d.yml"):
        (tmp_path / name).write_text("")
    for pattern, found in (
        ("*.py", ["a.py"]),
        ("**/*.py", ["a.py", "src/b.py", "src/deep/c.py"]),
        ("src/*.py", ["src/b.py"]),
        ("src/**/*.py", ["src/b.py", "src/deep/c.py"]),
        ("src/**", ["src", "src/b.py", "src/deep", "src/deep/c.py", "src/deep/d.yml"]),
        ("**/*.{py,yml}", ["a.py", "src/b.py", "src/deep/c.py", "src/deep/d.yml"]),
        ("**/[bc].py", ["src/b.py", "src/deep/c.py"]),
        ("**/deep/**/*.py", ["src/deep/c.py"]),
        ("nothing", []),
    ):
        assert names(list_workspace_files(Workspace.at(tmp_path), pattern=pattern)) == found, pattern


def test_a_long_listing_is_cut_and_says_so(tmp_path):
    for number in range(30):
        (tmp_path / f"{number:02}.txt").write_text("")
    listed = list_workspace_files(Workspace.at(tmp_path), limit=10)
    assert len(listed["files"]) == 10 and listed["total"] == 30
    assert listed["left_out"] == "20 more: look into one folder, or give a pattern"


def test_a_workspace_that_is_gone_is_told(tmp_path):
    with pytest.raises(ExecutionFailed, match="The workspace .* cannot be opened"):
        list_workspace_files(Workspace.at(tmp_path / "gone"))


# Searching


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
