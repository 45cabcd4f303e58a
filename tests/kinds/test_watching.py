"""Noticing changed files, with real files."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ferrule.kinds.loading import DirectorySource
from ferrule.kinds.watching import FileWatcher
from tests.support.waiting import until, until_sync

pytestmark = pytest.mark.integration  # files are scanned in real time

NEVER = 3600.0
"""An interval that does not pass during a test."""


def tool(name: str, version: int = 1) -> str:
    return f"name: {name}\nversion: {version}\nentry: {{type: builtin, handler: echo}}\n"


class CountingWatcher(FileWatcher):
    """Counts its scans, the first one, at its construction, too."""

    scans = 0

    def _scan(self) -> set[Path]:
        changed = super()._scan()
        self.scans += 1
        return changed

    async def scanned(self, times: int = 1) -> None:
        """Wait for scans that begin from now on; the one that runs now does not count."""
        target = self.scans + 1 + times
        await until(lambda: self.scans >= target)


class Noted:
    """Loads the folder again at every change, as an engine does, and notes what came of it."""

    def __init__(self, folder: Path, *, instant: bool, interval: float = NEVER) -> None:
        self.source = DirectorySource(folder)
        self.changes: list[set[str]] = []
        self.watcher = CountingWatcher([folder], self.reload, instant=instant, interval=interval)
        self.report = self.source.load()

    async def reload(self, paths: set[Path]) -> None:
        self.changes.append({path.name for path in paths})
        self.report = self.source.load()

    @property
    def versions(self) -> dict[str, str]:
        return {tool.id: tool.spec.version for tool in self.report.tools}


def in_place(path: Path, text: str) -> None:
    path.write_text(text)


def rename_over(path: Path, text: str) -> None:
    other = path.with_name(f".{path.name}.swp")
    other.write_text(text)
    other.replace(path)


def move_away_and_write(path: Path, text: str) -> None:
    path.rename(path.with_name(f"{path.name}~"))
    path.write_text(text)


@pytest.mark.parametrize("instant", [True, False], ids=["instant", "polling"])
@pytest.mark.parametrize("save", [in_place, rename_over, move_away_and_write])
async def test_a_saved_file_is_noticed_however_it_is_saved(
    tmp_path: Path, save: Callable[[Path, str], None], instant: bool
):
    (tmp_path / "a.yaml").write_text(tool("a"))
    noted = Noted(tmp_path, instant=instant, interval=NEVER if instant else 0.02)
    async with noted.watcher:
        for version in range(2, 5):
            save(tmp_path / "a.yaml", tool("a", version))
            await until(lambda version=version: noted.versions == {"a": str(version)})  # type: ignore[misc]
    assert set().union(*noted.changes) == {"a.yaml"}


async def test_files_are_noticed_when_they_come_are_renamed_and_go(tmp_path: Path):
    noted = Noted(tmp_path, instant=True)
    async with noted.watcher:
        (tmp_path / "a.yaml").write_text(tool("a"))
        await until(lambda: set(noted.versions) == {"a"})
        (tmp_path / "a.yaml").rename(tmp_path / "b.yaml")
        await until(lambda: {"a.yaml", "b.yaml"} <= set().union(*noted.changes))
        (tmp_path / "b.yaml").unlink()
        await until(lambda: noted.versions == {})


@pytest.mark.parametrize("instant", [True, False], ids=["instant", "polling"])
async def test_of_a_hundred_quick_saves_the_last_one_counts(tmp_path: Path, instant: bool):
    noted = Noted(tmp_path, instant=instant, interval=NEVER if instant else 0.0005)
    async with noted.watcher:
        for version in range(100, 200):  # all of one size, some within one tick of the file system's clock
            (tmp_path / "a.yaml").write_text(tool("a", version))
            await asyncio.sleep(0.001)  # some saves are noticed, most are not
        await until(lambda: noted.versions == {"a": "199"})
    assert noted.report.errors == ()


async def test_a_second_save_within_one_tick_of_the_clock_is_noticed(tmp_path: Path):
    changed: set[Path] = set()

    async def note(paths: set[Path]) -> None:
        changed.update(paths)

    for number in range(20):
        path = tmp_path / str(number) / "a.yaml"
        path.parent.mkdir()
        path.write_text("1")
        watcher = FileWatcher([path.parent], note, interval=0.01)
        path.write_text("2")
        async with watcher:
            await until(lambda path=path: path in changed)  # type: ignore[misc]


async def test_a_save_that_keeps_the_time_stamp_is_noticed(tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_text(tool("a", 1))
    noted = Noted(tmp_path, instant=False, interval=0.01)
    status = path.stat()
    async with noted.watcher:
        await noted.watcher.scanned()
        path.write_text(tool("a", 2))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        await until(lambda: noted.versions == {"a": "2"})


async def test_a_file_that_is_written_slowly_is_loaded_when_it_is_whole(tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_text(tool("a", 1))
    noted = Noted(tmp_path, instant=True)
    async with noted.watcher:
        with path.open("w") as file:
            for character in tool("a", 2):
                file.write(character)
                file.flush()
                await asyncio.sleep(0.003)  # the watcher sees the file half written
        await until(lambda: noted.versions == {"a": "2"})
    assert noted.report.errors == ()


@pytest.mark.parametrize("instant", [True, False], ids=["instant", "polling"])
async def test_a_folder_may_come_later_go_and_come_again(tmp_path: Path, instant: bool):
    folder = tmp_path / "tools"
    noted = Noted(folder, instant=instant, interval=NEVER if instant else 0.02)
    async with noted.watcher:
        for version in range(2):
            folder.mkdir()
            (folder / "a.yaml").write_text(tool("a", version))
            await until(lambda version=version: noted.versions == {"a": str(version)})  # type: ignore[misc]
            (folder / "a.yaml").unlink()
            folder.rmdir()
            await until(lambda: noted.versions == {})


async def test_a_folder_that_is_replaced_by_another_is_noticed(tmp_path: Path):
    for name, version in [("tools", 1), ("next", 2)]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.yaml").write_text(tool("a", version))
    noted = Noted(tmp_path / "tools", instant=True)
    async with noted.watcher:
        await until(lambda: noted.watcher.scans > 1)
        (tmp_path / "tools").rename(tmp_path / "before")
        (tmp_path / "next").rename(tmp_path / "tools")
        await until(lambda: noted.versions == {"a": "2"})
        (tmp_path / "tools" / "a.yaml").write_text(tool("a", 3))
        await until(lambda: noted.versions == {"a": "3"})


async def test_a_new_folder_in_the_folder_is_watched_too(tmp_path: Path):
    noted = Noted(tmp_path, instant=True)
    async with noted.watcher:
        await until(lambda: noted.watcher.scans > 1)
        (tmp_path / "group").mkdir()
        await until(lambda: noted.watcher.scans > 2)
        (tmp_path / "group" / "a.yaml").write_text(tool("a", 1))
        await until(lambda: noted.versions == {"a": "1"})
        (tmp_path / "group" / "a.yaml").write_text(tool("a", 2))
        await until(lambda: noted.versions == {"a": "2"})


async def test_a_link_that_is_turned_to_another_version_is_noticed(tmp_path: Path):
    folder = tmp_path / "tools"
    for version in (1, 2):
        (tmp_path / f"v{version}").mkdir()
        (tmp_path / f"v{version}" / "a.yaml").write_text(tool("a", version))
    folder.mkdir()
    (folder / ".current").symlink_to(tmp_path / "v1")
    (folder / "a.yaml").symlink_to(Path(".current") / "a.yaml")
    noted = Noted(folder, instant=True)
    async with noted.watcher:
        (folder / ".next").symlink_to(tmp_path / "v2")
        (folder / ".next").replace(folder / ".current")
        await until(lambda: noted.versions == {"a": "2"})


async def test_a_changed_python_file_and_its_helper_are_noticed(tmp_path: Path):
    (tmp_path / "_word.py").write_text("word = 'one'\n")
    text = "from ferrule import tool\nfrom _word import word\n@tool\ndef say():\n    return word\n"
    (tmp_path / "say.py").write_text(text)
    noted = Noted(tmp_path, instant=True)

    def spoken_word() -> str:
        return str(noted.report.tools[0].target.function("say")())

    async with noted.watcher:
        rename_over(tmp_path / "_word.py", "word = 'two'\n")
        await until(lambda: spoken_word() == "two")
        rename_over(tmp_path / "say.py", text.replace("return word", "return word * 2"))
        await until(lambda: spoken_word() == "twotwo")


async def test_what_is_saved_before_the_watcher_starts_is_not_missed(tmp_path: Path):
    noted = Noted(tmp_path, instant=True)
    (tmp_path / "a.yaml").write_text(tool("a"))
    async with noted.watcher:
        await until(lambda: set(noted.versions) == {"a"})


async def test_touching_a_file_or_saving_the_same_again_is_no_change(tmp_path: Path):
    (tmp_path / "a.yaml").write_text(tool("a"))
    noted = Noted(tmp_path, instant=True, interval=0.02)
    async with noted.watcher:
        os.utime(tmp_path / "a.yaml")
        (tmp_path / "a.yaml").write_text(tool("a"))
        (tmp_path / "notes.txt").write_text("not a tool")
        await noted.watcher.scanned(5)
    assert noted.changes == []


async def test_a_failing_callback_is_logged_and_watching_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    calls: list[set[Path]] = []

    async def fail(paths: set[Path]) -> None:
        calls.append(paths)
        raise ValueError("no")

    async with FileWatcher([tmp_path], fail, instant=True):
        for name in ("a.yaml", "b.yaml"):
            (tmp_path / name).write_text("1")
            await until(lambda name=name: tmp_path / name in set().union(*calls))  # type: ignore[misc]
    assert "the callback for changed files failed" in caplog.text


def test_nothing_is_left_after_it_is_closed(tmp_path: Path):
    async def main() -> None:
        noted = Noted(tmp_path, instant=True)
        noted.watcher.start()
        noted.watcher.start()
        await until(lambda: noted.watcher.scans > 1)  # the listening thread has begun
        await noted.watcher.aclose()
        await noted.watcher.aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        (tmp_path / "a.yaml").write_text(tool("a"))
        await asyncio.sleep(0.2)  # a watcher that still ran would see the file
        assert noted.changes == []

    asyncio.run(main())
    # The listening thread ends by itself soon.
    until_sync(lambda: not [t for t in threading.enumerate() if "AnyIO" in t.name or "asyncio" in t.name])


async def test_closing_cancels_a_callback_that_runs(tmp_path: Path):
    events: list[str] = []

    async def slow(paths: set[Path]) -> None:
        events.append("started")
        try:
            await asyncio.Event().wait()
        finally:
            events.append("ended")

    async with FileWatcher([tmp_path], slow, instant=True):
        (tmp_path / "a.yaml").write_text("1")
        await until(lambda: events == ["started"])
    assert events == ["started", "ended"]
