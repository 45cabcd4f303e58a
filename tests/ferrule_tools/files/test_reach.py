"""Secret paths of a workspace cannot be read, listed or changed; protected ones cannot be changed."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import UnifiedToolLibrary
from ferrule.errors import CallError, Refuse
from ferrule_tools.files.processor import FileProcessor
from ferrule_tools.files.search import list_workspace_files, search_files
from ferrule_tools.files.workspace import Workspace

SECRET_TEXT = "hunter2-and-more"
SECRET_FILES = [
    ".env",
    "sub/.env.local",
    ".ferrule/calls.db",
    "mcp.json",
    "ferrule.toml",
    ".git/config",
    "data/shop.db",
]
PROTECTED_FILES = ["tools/a.py", "skills/x/SKILL.md", ".git/hooks/pre-commit", ".github/workflows/ci.yml"]
PROTECTED_FILES += ["sub/.vscode/tasks.json", ".gitlab-ci.yml", ".pre-commit-config.yaml", "conf/own.py"]
PROTECTED_FILES += [".codex/config.toml", "sub/opencode.json", ".mise/config.toml", "mise.toml", ".run/all.xml"]


def make_workspace(root: Path) -> Workspace:
    for path in SECRET_FILES + PROTECTED_FILES + ["notes.txt", "sub/notes.txt"]:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(SECRET_TEXT if path in SECRET_FILES else f"content of {path}")
    os.link(root / ".env", root / "another.txt")
    (root / "link").symlink_to(".ferrule")
    (root / "data/shop.db-wal").write_text(SECRET_TEXT)
    return Workspace.at(root).with_paths(secret=[root / "data/shop.db"], protected=[root / "conf/own.py"])


def reached(action: Any, *arguments: Any) -> str:
    """The text of a call's outcome, whatever it is."""
    try:
        return json.dumps(action(*arguments), default=str)
    except CallError as error:
        return str(error)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return make_workspace(tmp_path)


def not_refused(files: FileProcessor, *calls: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The calls that ended with anything else than a refusal."""
    accepted = []
    for action, *arguments in calls:
        try:
            getattr(files, action)(*arguments)
        except Refuse:
            continue
        except CallError:
            pass
        accepted.append((action, *arguments))
    return accepted


def test_a_secret_file_is_out_of_reach(workspace: Workspace):
    files = FileProcessor(workspace)
    for path in (*SECRET_FILES, "data/shop.db-wal", ".ENV", "Mcp.Json", ".ferrule", ".env.", "link/calls.db"):
        reading = [(action, path) for action in ("read", "info", "delete")]
        changing = [(action, path, "new.txt") for action in ("write", "overwrite", "append", "copy", "move")]
        replacing = [("move", "notes.txt", path), ("copy", "notes.txt", path)]
        assert not_refused(files, *reading, *changing, *replacing) == []


def test_a_protected_file_cannot_be_changed(workspace: Workspace):
    files = FileProcessor(workspace)
    for path in (*PROTECTED_FILES, ".GitHub/workflows/ci.yml", "Tools/a.py", "skills", ".GIT"):
        changing = [(action, path, "evil") for action in ("write", "overwrite", "append")]
        moving = [("move", path, "new.txt"), ("move", "notes.txt", path), ("delete", path)]
        assert not_refused(files, *changing, *moving) == []
    for path in PROTECTED_FILES:
        assert files.read(path)["text"] == f"content of {path}"


def test_a_folder_with_protected_paths_in_it_is_not_moved_away(workspace: Workspace):
    folders = ("tools", "conf", "data", "skills", ".git", "skills/x")
    assert not_refused(FileProcessor(workspace), *(("move", folder, "elsewhere") for folder in folders)) == []


def test_nothing_secret_is_listed_searched_or_suggested(workspace: Workspace):
    listed = reached(lambda: list_workspace_files(workspace, recursive=True, hidden=True))
    found = reached(lambda: search_files(workspace, query="hunter2", hidden=True))
    names = reached(lambda: search_files(workspace, files="**/*", hidden=True))
    missing = reached(FileProcessor(workspace).read, "data/shop.dx") + reached(FileProcessor(workspace).read, ".en")
    for output in (listed, found, names, missing):
        assert SECRET_TEXT not in output and "shop.db" not in output and ".env" not in output
        assert "calls.db" not in output
    assert "notes.txt" in names


def test_another_name_of_a_secret_file_is_not_read(workspace: Workspace):
    with pytest.raises(Refuse, match="secret"):
        FileProcessor(workspace).read("another.txt")


def test_a_workspace_inside_a_protected_folder_cannot_be_changed(tmp_path: Path):
    (tmp_path / "tools/data").mkdir(parents=True)
    workspace = Workspace.at(tmp_path / "tools/data").with_paths(protected=[tmp_path / "tools"])
    with pytest.raises(Refuse):
        FileProcessor(workspace).write("evil.py", "")


NAMES = (
    "tools skills .env .git config hooks .ferrule calls.db mcp.json ferrule.toml sub data shop.db conf own.py".split()
)
NAMES += ["new", "notes.txt", "another.txt", "link", "..", ".", "", ".github", "a.py"]
names = st.sampled_from(NAMES).flatmap(
    lambda name: st.sampled_from([name, name.upper(), name.title(), f"{name}.", f"{name}\u200c", f"{name} "])
)
paths = st.lists(names, min_size=1, max_size=4).map("/".join)
steps = st.tuples(
    st.sampled_from(["read", "info", "write", "overwrite", "append", "copy", "move", "delete", "list", "search"]),
    paths,
    paths,
    st.booleans(),
)


@given(st.lists(steps, min_size=1, max_size=12))
def test_no_sequence_of_calls_reads_or_changes_what_is_out_of_reach(calls: list[tuple[str, str, str, bool]]):
    with tempfile.TemporaryDirectory() as name:
        root = Path(os.path.realpath(name))
        workspace = make_workspace(root)
        files = FileProcessor(workspace)
        before = {path: (root / path).read_text() for path in SECRET_FILES + PROTECTED_FILES}
        guarded = {path for path in root.rglob("*") if is_guarded(path.relative_to(root))}
        for action, path, other, is_absolute in calls:
            path = f"{root}/{path}" if is_absolute else path
            if action == "list":
                output = reached(lambda: list_workspace_files(workspace, path, recursive=True, hidden=True))  # noqa: B023
            elif action == "search":
                output = reached(lambda: search_files(workspace, query="hunter2", path=path, hidden=True))  # noqa: B023
            elif action in ("read", "info", "delete"):
                output = reached(getattr(files, action), path)
            else:
                output = reached(getattr(files, action), path, other)
            assert SECRET_TEXT not in output
            assert before == {each: (root / each).read_text() for each in before}
        assert {path for path in root.rglob("*") if is_guarded(path.relative_to(root))} == guarded


def is_guarded(path: Path) -> bool:
    """Independent of the implementation: exact names only."""
    everywhere = {".env", ".git", ".ferrule", "mcp.json", "ferrule.toml", ".github", ".vscode"}
    return path.parts[0] in ("tools", "skills") or bool(everywhere & set(path.parts))


@pytest.mark.integration
async def test_the_store_of_a_project_is_out_of_reach_wherever_it_is(tmp_path: Path):
    (tmp_path / "ferrule.toml").write_text('[store]\nurl = "sqlite:///records/all.db"\n[tools]\nworkspace = "."\n')
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    (tmp_path / "plain.txt").write_text("plain")
    async with UnifiedToolLibrary.open(tmp_path / "ferrule.toml") as library:
        for path in ("records/all.db", "records/all.db.journal", "records/all.db-wal", "mcp.json", "ferrule.toml"):
            result = await library.execute_tool("file_processor", "read", {"path": path})
            assert result.error_type == "permission_denied", path
            result = await library.execute_tool("file_processor", "write", {"path": path, "content": "x"})
            assert result.error_type == "permission_denied", path
        moved = await library.execute_tool("file_processor", "move", {"path": "records", "to": "gone"})
        assert moved.error_type == "permission_denied"
        plain = await library.execute_tool("file_processor", "read", {"path": "plain.txt"})
        assert plain.is_success


@pytest.mark.integration
async def test_a_project_chooses_its_own_patterns(tmp_path: Path):
    (tmp_path / "ferrule.toml").write_text(
        '[tools]\nworkspace = "."\nsecret_paths = ["*.key"]\nprotected_paths = ["/docs/"]\n'
    )
    for name in ("a.key", ".env"):
        (tmp_path / name).write_text("x")
    async with UnifiedToolLibrary.open(tmp_path / "ferrule.toml") as library:

        async def error_of(action: str, **arguments: str) -> str | None:
            return (await library.execute_tool("file_processor", action, arguments)).error_type

        assert await error_of("read", path="a.key") == "permission_denied"
        assert await error_of("read", path=".env") is None
        assert await error_of("write", path="docs/a.txt", content="") == "permission_denied"
        assert await error_of("write", path=".github/a.txt", content="") is None
        assert await error_of("read", path="ferrule.toml") == "permission_denied"
