"""A folder is used only after the user has trusted it; until then its YAML tools are listed and nothing is run."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from ferrule import SetupError, UnifiedToolLibrary
from ferrule.engine.config import NO_FOLDER
from tests.cli.commands import LEAVES_A_MARK, Terminal, environment, ferrule

pytestmark = pytest.mark.integration

PYTHON_TOOL = LEAVES_A_MARK + "from ferrule import tool\n\n@tool\ndef release():\n    'Release.'\n    return 'done'\n"
COMMAND_TOOL = (
    "name: mark\ndescription: Mark\ncategory: custom\nentry:\n  type: external\n  command: [touch, was_run]\n"
)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A project somebody else has written."""
    folder = tmp_path / "clone"
    for name in ("tools", "skills"):
        (folder / name).mkdir(parents=True)
        (folder / name / f"{name}_release.py").write_text(PYTHON_TOOL.replace("release()", f"{name}_release()"))
    (folder / "tools/mark.yaml").write_text(COMMAND_TOOL)
    (folder / "ferrule.toml").write_text('[store]\nurl = "sqlite:///records.db"\n[agent]\nmodel = "offline"\n')
    write_server(folder, "touch", "was_run")
    return folder


def write_server(folder: Path, *command: str) -> None:
    server = {"command": command[0], "args": list(command[1:]), "env": {"KEY": "${SECRET_KEY}"}}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"files": server}}))


def marks(folder: Path) -> list[Path]:
    return list(folder.rglob("was_run"))


COMMANDS = """
    call mark, call calculator expression=1, ask hello, chat, mcp serve, mcp test files, mcp diff, mcp pin,
    tools validate, skills list, calls, stats, runs list, openapi show mcp.json
""".split(",")


def test_without_trust_a_command_is_refused_and_nothing_is_run(clone: Path):
    for command in COMMANDS:
        done = ferrule(*command.split(), cwd=clone)
        assert done.returncode == 2, command
        assert "ferrule trust" in done.stderr and "Traceback" not in done.stderr, command
        assert marks(clone) == [], command
        assert not (clone / "records.db").exists(), command


def test_without_trust_only_yaml_tools_are_listed(clone: Path):
    listed = ferrule("tools", "list", "--json", cwd=clone)
    tools = {tool["tool_id"]: tool for tool in json.loads(listed.stdout)}
    assert "trusted" in tools["mark"]["unavailable"]
    assert "calculator" in tools
    assert not {"tools_release", "skills_release", "files"} & tools.keys()
    assert f"ferrule trust {clone}" in listed.stderr
    assert "mark" in ferrule("tools", "show", "mark", cwd=clone).stdout
    checked = ferrule("doctor", cwd=clone)
    assert (checked.returncode, "not trusted" in checked.stdout) == (1, True)
    assert "not listed yet" in ferrule("mcp", "list", cwd=clone).stdout
    assert marks(clone) == []
    assert not (clone / "records.db").exists()


def test_settings_of_an_untrusted_folder_are_not_used(clone: Path):
    (clone / "ferrule.toml").write_text(
        '[engine]\ntools_directory = ".."\nmcp_file = "/dev/zero"\n[http]\nallow_private_addresses = true\n'
        '[[openapi]]\nsource = "http://127.0.0.1:9/api.json"\n[tools]\nworkspace = "/"\n'
    )
    (clone.parent / "other.yaml").write_text(COMMAND_TOOL.replace("name: mark", "name: other"))
    listed = {tool["tool_id"]: tool for tool in json.loads(ferrule("tools", "list", "--json", cwd=clone).stdout)}
    assert "other" not in listed
    assert listed["file_processor"]["unavailable"]  # it has no workspace


def test_trust_that_cannot_be_stored_is_refused_in_one_line(clone: Path):
    (clone.parent / "a_file").write_text("")
    env = {**environment(clone), "FERRULE_CONFIG_HOME": str(clone.parent / "a_file" / "settings")}
    done = ferrule("trust", str(clone), cwd=clone.parent, env=env)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "a_file" in done.stderr and "Traceback" not in done.stderr


def test_a_trusted_folder_is_used_until_trust_is_revoked(clone: Path):
    trusted = ferrule("trust", str(clone), cwd=clone.parent)
    assert trusted.returncode == 0
    assert all(each in trusted.stdout for each in ("tools_release.py", "skills_release.py", "files: touch was_run"))
    assert "SECRET_KEY" not in trusted.stdout
    assert ferrule("call", "tools_release", cwd=clone).stdout == "done\n"
    assert len(marks(clone)) >= 2
    listed = json.loads(ferrule("trust", "--list", "--json", cwd=clone).stdout)
    assert str(clone) in [record["folder"] for record in listed]
    assert str(clone) in ferrule("trust", "--list", cwd=clone).stdout
    assert ferrule("trust", "--revoke", str(clone), cwd=clone).returncode == 0
    assert ferrule("call", "tools_release", cwd=clone).returncode == 2
    assert ferrule("trust", "--revoke", str(clone), cwd=clone).returncode == 1
    assert ferrule("trust", "nowhere", cwd=clone).returncode == 2


def test_trust_is_by_real_path_and_recorded_for_the_owner_only(clone: Path):
    (clone.parent / "link").symlink_to(clone)
    assert ferrule("trust", "link", cwd=clone.parent).returncode == 0
    assert ferrule("call", "tools_release", cwd=clone).returncode == 0
    inner = clone / "inner"  # a project inside a trusted one is another project
    inner.mkdir()
    (inner / "ferrule.toml").write_text("")
    assert ferrule("call", "calculator", "expression=1", cwd=inner).returncode == 2
    records = Path(os.environ["FERRULE_CONFIG_HOME"])
    assert [path for path in records.rglob("*") if path.stat().st_mode & 0o077] == []
    assert any(str(clone) in path.read_text() for path in records.rglob("*.json"))


def put_copy(folder: Path, owner: int) -> None:
    """Put a folder of a user in the place of another one, which stays, so that they have different numbers."""
    copy = folder.with_name(f"copy-{owner}")
    shutil.copytree(folder, copy)
    os.chown(copy, owner, -1)
    folder.rename(folder.with_name(f"before-{owner}"))
    copy.rename(folder)


def test_a_folder_that_its_user_makes_again_is_trusted(clone: Path):
    assert ferrule("trust", cwd=clone).returncode == 0
    put_copy(clone, os.getuid())
    assert ferrule("call", "tools_release", cwd=clone).returncode == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a folder to another user")
@pytest.mark.parametrize("first_owner", [0, 12345])
def test_a_folder_that_another_user_put_in_the_place_of_a_trusted_one_is_not_trusted(clone: Path, first_owner: int):
    os.chown(clone, first_owner, -1)
    assert ferrule("trust", cwd=clone).returncode == 0
    assert ferrule("call", "tools_release", cwd=clone).returncode == 0
    put_copy(clone, 12345)
    before = marks(clone)
    refused = ferrule("call", "tools_release", cwd=clone)
    assert refused.returncode == 2 and "You have trusted another folder at this path" in refused.stderr, refused
    assert f"ferrule trust {clone}" in refused.stderr and marks(clone) == before
    assert ferrule("trust", cwd=clone).returncode == 0
    assert ferrule("call", "tools_release", cwd=clone).returncode == 0


def test_a_damaged_record_is_no_trust(clone: Path):
    assert ferrule("trust", cwd=clone).returncode == 0
    for path in Path(os.environ["FERRULE_CONFIG_HOME"]).rglob("*.json"):
        if str(clone) in path.read_text():
            path.write_text("[]")
    assert ferrule("call", "calculator", "expression=1", cwd=clone).returncode == 2


def test_in_a_trusted_folder_python_files_change_freely_and_servers_do_not(clone: Path):
    (clone / "mcp.json").unlink()
    ferrule("trust", cwd=clone)
    (clone / "tools/tools_release.py").write_text(PYTHON_TOOL.replace("'done'", "'changed'"))
    write_server(clone, "touch", "was_run_by_the_server")
    done = ferrule("call", "release", cwd=clone)
    assert done.stdout == "changed\n"
    assert "MCP server 'files': is new or changed" in done.stderr and "ferrule trust" in done.stderr
    assert not (clone / "was_run_by_the_server").exists()
    assert ferrule("mcp", "test", "files", cwd=clone).returncode == 2
    assert not (clone / "was_run_by_the_server").exists()
    ferrule("trust", cwd=clone)
    assert "is new or changed" not in ferrule("tools", "list", cwd=clone).stderr
    entry = {"command": "touch", "args": ["was_run_by_the_server"], "env": {"KEY": "${SECRET_KEY}"}}
    for right in ({"trusted": True}, {"autoApprove": ["*"]}):
        (clone / "mcp.json").write_text(json.dumps({"mcpServers": {"files": {**entry, **right}}}))
        assert "is new or changed" in ferrule("tools", "list", cwd=clone).stderr


def test_what_the_user_names_or_makes_is_trusted(clone: Path, tmp_path: Path):
    assert ferrule("--config", "ferrule.toml", "call", "tools_release", cwd=clone).stdout == "done\n"
    assert ferrule("init", "mine", cwd=tmp_path).returncode == 0
    assert ferrule("call", "add", "a=1", "b=2", cwd=tmp_path / "mine").stdout == "3\n"
    assert ferrule("mcp", "add", "x", "--command", "false", cwd=tmp_path / "mine").returncode == 0
    assert "is new or changed" not in ferrule("tools", "list", cwd=tmp_path / "mine").stderr


def test_init_does_not_trust_files_that_were_there_before(tmp_path: Path):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/release.py").write_text(PYTHON_TOOL)
    made = ferrule("init", cwd=tmp_path)
    assert "ferrule trust" in made.stdout
    assert ferrule("call", "release", cwd=tmp_path).returncode == 2
    assert marks(tmp_path) == []


async def test_a_file_named_by_a_program_is_trusted(clone: Path, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "x")
    async with UnifiedToolLibrary.open(clone / "ferrule.toml") as library:
        assert (await library.execute_tool("tools_release")).text == "done"


@pytest.mark.parametrize("has_file", [True, False], ids=["with ferrule.toml", "without"])
async def test_a_folder_opened_by_a_program_needs_trust(clone: Path, monkeypatch, caplog, has_file: bool):
    monkeypatch.chdir(clone)
    if not has_file:
        (clone / "ferrule.toml").unlink()
    with pytest.raises(SetupError, match=f"{clone} is not trusted.* ferrule trust {clone}"):
        UnifiedToolLibrary.open()
    assert marks(clone) == []
    assert ferrule("trust", cwd=clone).returncode == 0
    write_server(clone, "touch", "another")  # changed since
    async with UnifiedToolLibrary.open() as library:
        assert (await library.execute_tool("tools_release")).text == "done"
        assert "'files': is new or changed" in caplog.text
    async with UnifiedToolLibrary.open(clone / "skills") as library:  # part of the project, as for commands
        assert (await library.get_tool_by_id("tools_release") is not None) == has_file
    assert not (clone / "another").exists()


async def test_a_folder_without_a_project_needs_no_trust_and_nothing_in_it_is_ever_read(tmp_path: Path):
    async with UnifiedToolLibrary.open(tmp_path) as library:
        assert await library.get_tool_by_id("calculator") is not None
        assert library.engine.config.tools_directory == NO_FOLDER and not library.engine.config.auto_reload
        assert library.engine.config.mcp_file is None and library.engine.config.skills_directories == ()


@pytest.mark.parametrize("name", ["tools/x.yaml", "tools/_hidden.py", "skills/a/SKILL.md", "mcp.json"])
def test_any_file_of_a_project_needs_trust(tmp_path: Path, name: str):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("")
    with pytest.raises(SetupError, match="is not trusted"):
        UnifiedToolLibrary.open(tmp_path)


def test_at_a_terminal_the_user_is_asked_once(clone: Path):
    command = Terminal("call", "tools_release", cwd=clone)
    command.wait_for("[y/N]")
    shown = command.output
    assert all(each in shown for each in ("tools_release.py", "skills_release.py", "touch was_run", "mark:"))
    assert marks(clone) == []
    command.type("y\n")
    assert command.end() == 0 and "done" in command.output
    assert ferrule("call", "tools_release", cwd=clone).stdout == "done\n"

    write_server(clone, "touch", "another")
    command = Terminal("call", "tools_release", cwd=clone)
    command.wait_for("[y/N]")
    assert "touch another" in command.output and "tools_release.py" not in command.output
    command.type("n\n")
    assert command.end() == 0
    assert not (clone / "another").exists()


def test_at_a_terminal_the_names_of_what_changed_in_an_entry_are_shown(clone: Path):
    ferrule("trust", cwd=clone)
    entry = {"command": "touch", "args": ["was_run"], "env": {"KEY": "hunter2", "MORE": "hunter3"}, "trusted": True}
    other = {"url": "http://localhost:1/mcp", "headers": {"Authorization": "Bearer hunter4"}}
    (clone / "mcp.json").write_text(json.dumps({"mcpServers": {"files": entry, "other": other}}))
    command = Terminal("call", "calculator", "expression=1", cwd=clone)
    command.wait_for("[y/N]")
    shown = " ".join(command.output.split())
    assert "(changes the variable KEY; adds trusted, the variable MORE)" in shown
    assert "(new, with the header Authorization)" in shown and "hunter" not in shown
    command.type("n\n")
    assert command.end() == 0


@pytest.mark.parametrize("answer", ["n\n", "\n", "\x04", signal.SIGINT])
def test_at_a_terminal_anything_but_yes_runs_nothing(clone: Path, answer: str | signal.Signals):
    command = Terminal("call", "tools_release", cwd=clone)
    command.wait_for("[y/N]")
    if isinstance(answer, str):
        command.type(answer)
    else:
        command.interrupt()
    assert command.end() == (2 if isinstance(answer, str) else 130)
    assert marks(clone) == []


def test_servers_of_a_folder_without_a_project_need_trust_too(tmp_path: Path):
    write_server(tmp_path, "touch", "was_run")
    for command in ("mcp test files", "mcp diff", "mcp pin files"):
        done = ferrule(*command.split(), cwd=tmp_path)
        assert (done.returncode, "ferrule trust" in done.stderr) == (2, True), command
        assert marks(tmp_path) == [], command
