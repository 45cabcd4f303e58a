"""Nothing leads out of a workspace, and nothing in it makes a call hang or swell."""

import ctypes
import os
import resource
import socket
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import ToolEngine
from ferrule.errors import CallError, ExecutionFailed, Refuse, Retry
from ferrule_tools.files import workspace_tools
from ferrule_tools.files.processor import FileProcessor
from ferrule_tools.files.search import list_workspace_files, search_files
from ferrule_tools.files.workspace import Workspace, move


@pytest.fixture
def inside(tmp_path):
    """A workspace beside a secret."""
    (tmp_path / "inside").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("SECRET")
    return tmp_path / "inside"


def all_changes(files, path):
    return [
        lambda: files.write(path, "x"),
        lambda: files.overwrite(path, "x"),
        lambda: files.append(path, "x"),
        lambda: files.delete(path),
        lambda: files.move(path, "moved.txt"),
    ]


@pytest.mark.integration
async def test_no_path_leads_out(inside):
    reached = []
    async with ToolEngine() as engine:
        engine.register(*workspace_tools(inside))
        for path in (
            "../outside/secret.txt",
            "a/../../outside/secret.txt",
            "./../outside/secret.txt",
            "..",
            "/etc/passwd",
            "//etc/passwd",
            "/",
            "/proc/self/root/etc/passwd",
        ):
            for name in ("file_processor__read", "list_workspace_files", "file_processor__info"):
                if (await engine.execute(name, {"path": path})).error_type != "permission_denied":
                    reached.append((name, path))
    assert reached == []


def test_odd_paths_are_refused_with_a_reason(inside):
    for path in ("", ".", "./", "\0", "a\0b", "x" * 5_000, "a/" * 100 + "b", "\ud800", "~/x", "C:\\x"):
        with pytest.raises((Retry, ExecutionFailed)) as refusal:
            FileProcessor(Workspace.at(inside)).read(path)
        assert str(refusal.value)


def test_an_absolute_path_into_the_workspace_is_as_good_as_any(inside):
    (inside / "a.txt").write_text("a")
    assert FileProcessor(Workspace.at(inside)).read(str(inside / "a.txt"))["text"] == "a"
    with pytest.raises(Refuse, match="outside the workspace"):
        FileProcessor(Workspace.at(inside)).read(f"{inside}x/a.txt")


# Links


def test_links_are_not_followed_wherever_they_stand_in_a_path(inside):
    (inside / "file").symlink_to("../outside/secret.txt")
    (inside / "folder").symlink_to("../outside")
    (inside / "circle").symlink_to("circle")
    files = FileProcessor(Workspace.at(inside))
    for path in ("file", "folder/secret.txt", "circle", "circle/x"):
        with pytest.raises(Refuse, match="is a link"):
            files.read(path)
    for path in ("file", "folder/secret.txt", "folder/new.txt"):
        for change in all_changes(files, path)[:3]:
            with pytest.raises(CallError):
                change()
    assert os.listdir(inside.parent / "outside") == ["secret.txt"]
    assert (inside.parent / "outside/secret.txt").read_text() == "SECRET"


def test_searches_and_listings_do_not_follow_links(inside):
    (inside / "folder").symlink_to("../outside")
    (inside / "file").symlink_to("../outside/secret.txt")
    workspace = Workspace.at(inside)
    assert search_files(workspace, query="SECRET")["matches"] == []
    listed = list_workspace_files(workspace, recursive=True)["files"]
    assert [each["type"] for each in listed] == ["link", "link"]


def test_a_link_is_deleted_and_not_what_it_points_to(inside):
    (inside / "link").symlink_to("../outside/secret.txt")
    assert FileProcessor(Workspace.at(inside)).delete("link") == {"path": "link", "deleted": "link"}
    assert (inside.parent / "outside/secret.txt").exists()


def test_nothing_is_written_through_a_hard_link(inside):
    secret = inside.parent / "outside/secret.txt"
    (inside / "mine.txt").hardlink_to(secret)
    files = FileProcessor(Workspace.at(inside))
    for change in (lambda: files.overwrite("mine.txt", "x"), lambda: files.append("mine.txt", "x")):
        with pytest.raises(Refuse, match="has 2 names"):
            change()
    assert secret.read_text() == "SECRET" and files.info("mine.txt")["names"] == 2


def test_new_content_does_not_run_as_the_owner_of_the_old(inside):
    (inside / "run").write_text("old")
    (inside / "run").chmod(0o6755)
    FileProcessor(Workspace.at(inside)).overwrite("run", "new")
    assert (inside / "run").stat().st_mode & 0o7777 == 0o755


def test_a_move_to_another_disk_fails_and_leaves_nothing_there(inside):
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == inside.stat().st_dev:
        pytest.skip("there is no other disk here")
    (inside / "a.txt").write_text("a")
    with tempfile.TemporaryDirectory(dir=memory) as other:
        here, there = (os.open(each, os.O_RDONLY) for each in (inside, other))
        try:
            with pytest.raises(OSError, match="cross-device"):
                move(source=(here, "a.txt"), target=(there, "b.txt"), is_folder=False)
            assert os.listdir(other) == [] and (inside / "a.txt").read_text() == "a"
        finally:
            os.close(here)
            os.close(there)


def test_a_workspace_may_be_named_by_a_link(inside):
    (inside / "a.txt").write_text("a")
    (inside.parent / "alias").symlink_to(inside)
    assert FileProcessor(Workspace.at(inside.parent / "alias")).read("a.txt")["text"] == "a"


# Somebody swaps things while they are used


EXCHANGE = 2  # RENAME_EXCHANGE


class Swapping:
    """A thread in which two names change places, again and again; neither is ever missing."""

    def __init__(self, one, other):
        self._names = os.fsencode(one), os.fsencode(other)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._exchange: Any = getattr(ctypes.CDLL(None), "renameat2", None)
        if self._exchange is None or self._swap() != 0:
            pytest.skip("this system cannot exchange two names at once")

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *_):
        self._is_over.set()
        self._thread.join()

    def _run(self):
        while not self._is_over.is_set():
            self._swap()

    def _swap(self):
        one, other = self._names
        return self._exchange(-100, one, -100, other, EXCHANGE)


def test_a_folder_swapped_for_a_link_leads_no_reader_out(inside):
    (inside / "d").mkdir()
    (inside / "d" / "secret.txt").write_text("inner")
    (inside / "link").symlink_to("../outside")
    files, read = FileProcessor(Workspace.at(inside)), []
    with Swapping(inside / "d", inside / "link"):
        for _ in range(400):
            with suppress(CallError):
                read.append(files.read("d/secret.txt")["text"])
            with suppress(CallError):
                read += [each["text"] for each in search_files(Workspace.at(inside), query="e", path="d")["matches"]]
    assert set(read) <= {"inner"}


def test_a_folder_swapped_for_a_link_leads_no_writer_out(inside):
    (inside / "d").mkdir()
    (inside / "link").symlink_to("../outside")
    files = FileProcessor(Workspace.at(inside))
    with Swapping(inside / "d", inside / "link"):
        for number in range(300):
            for change in (
                lambda path: files.write(path, "x"),
                lambda path: files.append("d/secret.txt", "x"),
                lambda path: files.delete("d/secret.txt"),
                lambda path: files.move("d/secret.txt", path),
            ):
                with suppress(CallError):
                    change(f"d/{number}.txt")
    assert os.listdir(inside.parent / "outside") == ["secret.txt"]
    assert (inside.parent / "outside/secret.txt").read_text() == "SECRET"


def test_a_file_swapped_for_a_link_is_never_read_or_written_through(inside):
    (inside / "f.txt").write_text("inner")
    (inside / "link").symlink_to("../outside/secret.txt")
    files, read = FileProcessor(Workspace.at(inside)), []
    with Swapping(inside / "f.txt", inside / "link"):
        for _ in range(300):
            with suppress(CallError):
                read.append(files.read("f.txt")["text"])
            with suppress(CallError):
                files.append("f.txt", "x")
    assert all(text.startswith("inner") for text in read)
    assert (inside.parent / "outside/secret.txt").read_text() == "SECRET"


# Things that are no files


@pytest.mark.integration
async def test_pipes_sockets_and_devices_are_no_files(inside, monkeypatch):
    os.mkfifo(inside / "pipe")
    with socket.socket(socket.AF_UNIX) as unix:
        monkeypatch.chdir(inside)  # the names of sockets must be short
        unix.bind("socket")
        async with ToolEngine() as engine:
            engine.register(*workspace_tools(inside))
            for name in ("pipe", "socket"):
                for action, more in (("read", {}), ("append", {"content": "x"}), ("overwrite", {"content": "x"})):
                    result = await engine.execute(f"file_processor__{action}", {"path": name, **more})
                    assert "is a pipe, a socket or a device, not a file" in str(result.error)
            found = await engine.execute("search_files", {"query": "x"})
            assert found.output == {"matches": [], "files_searched": 0}


# Sizes


def test_a_sparse_gigabyte_is_neither_read_nor_searched_into_memory(inside):
    (inside / "huge.txt").write_text("beginning\n")
    os.truncate(inside / "huge.txt", 1 << 30)
    workspace = Workspace.at(inside)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Refuse, match="is a binary file"):
        FileProcessor(workspace).read("huge.txt")
    assert FileProcessor(workspace).read("huge.txt", encoding="utf-8", lines=1)["text"] == "beginning\n"
    assert search_files(workspace, query="beginning")["skipped"] == {"too_large": ["huge.txt"]}
    with pytest.raises(Refuse, match="bytes: the limit is"):
        FileProcessor(workspace).copy("huge.txt", "copy.txt")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_very_many_files_are_listed_and_searched(inside, count):
    (inside / "many").mkdir()
    for number in range(100_000 - count, 100_000):
        os.close(os.open(inside / "many" / f"{number:06}.txt", os.O_CREAT | os.O_WRONLY))
    (inside / "many" / "099999.txt").write_text("needle")
    workspace = Workspace.at(inside)
    listed = list_workspace_files(workspace, path="many")
    assert len(listed["files"]) == 200 and listed["total"] == count and "incomplete" not in listed
    assert search_files(workspace, files="*99999.txt") == {"files": ["many/099999.txt"]}
    assert search_files(workspace, query="needle", files="09999*.txt")["matches"][0]["path"] == "many/099999.txt"
    with pytest.raises(ExecutionFailed, match=r"'many/none' does not exist. .* more"):
        FileProcessor(workspace).read("many/none")


def test_a_tree_deeper_than_any_path_does_not_break_a_walk(inside):
    here = os.open(inside, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d" * 50, dir_fd=here)
        inner = os.open("d" * 50, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    listed = list_workspace_files(Workspace.at(inside), recursive=True)
    assert listed["total"] == 300
    assert search_files(Workspace.at(inside), query="x")["matches"] == []


# Names


def test_odd_names_are_names(inside):
    files = FileProcessor(Workspace.at(inside))
    for name in ("a b", "-rf", "*", "$(id)", "line\nbreak", "引号“”", "é", "ｆｕｌｌ", "'", '"', "a\\b", "🦀"):
        files.write(name, "x")
        assert files.read(name)["text"] == "x"
        assert [each["path"] for each in list_workspace_files(Workspace.at(inside))["files"]] == [name]
        assert files.delete(name)["deleted"] == "file"


@pytest.mark.integration
async def test_a_name_that_is_no_utf_8_is_shown_and_spoils_nothing(inside):
    (inside / os.fsdecode(b"bad\xff.txt")).write_text("needle")
    async with ToolEngine() as engine:
        engine.register(*workspace_tools(inside))
        listed = await engine.execute("list_workspace_files", {})
        assert listed.output["files"][0]["path"] == "bad\ufffd.txt" and "not valid UTF-8" in str(listed.output)
        found = await engine.execute("search_files", {"query": "needle"})
        assert found.output["matches"][0]["path"] == "bad\ufffd.txt"


def test_a_name_that_is_too_long_is_told(inside):
    with pytest.raises(Retry, match="too long for a file"):
        FileProcessor(Workspace.at(inside)).write("x" * 300, "")


@given(path=st.text(max_size=30) | st.text("./a\\~*\0", max_size=20))
def test_whatever_the_path_nothing_outside_is_ever_named(path):
    workspace = Workspace.at("/nowhere/inside")
    try:
        parts = workspace.parts(path)
    except CallError as refusal:
        assert str(refusal)
    else:
        assert not any(part in ("", ".", "..") or "/" in part for part in parts)
