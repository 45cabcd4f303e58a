"""ferrule mcp add | list | test | import"""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ferrule.cli.mcp import mcp_app
from tests.mcp_servers.making import ROUGH_SERVER


@pytest.fixture(autouse=True)
def at_home(tmp_path, monkeypatch):
    """A project and a home of our own."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(mcp_app, arguments)


def servers() -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = json.loads(Path("mcp.json").read_text())["mcpServers"]
    return found


def test_adding_a_server_keeps_all_that_is_in_the_file():
    Path("mcp.json").write_text('{"mcpServers": {"old": {"command": "x", "note": 1}}, "other": [1]}')
    added = run(
        "add", "new", "--command", "npx", "--arg=-y", "--arg", "server", "--env", "KEY=${KEY}", "--timeout", "500"
    )
    assert added.exit_code == 0, added.output
    assert json.loads(Path("mcp.json").read_text()) == {
        "mcpServers": {
            "old": {"command": "x", "note": 1},
            "new": {"command": "npx", "args": ["-y", "server"], "env": {"KEY": "${KEY}"}, "timeout": 500},
        },
        "other": [1],
    }
    assert [path.name for path in Path().iterdir()] == ["mcp.json"]


def test_adding_makes_the_file_and_refuses_what_is_wrong():
    assert run("add", "web", "--url", "https://x/mcp", "--header", "Authorization=Bearer ${T}").exit_code == 0
    assert servers()["web"]["headers"] == {"Authorization": "Bearer ${T}"}
    again = run("add", "web", "--url", "https://y/mcp")
    assert again.exit_code == 2 and "there is a server 'web' already" in again.output
    assert run("add", "web", "--url", "https://y/mcp", "--force").exit_code == 0
    assert servers()["web"]["url"] == "https://y/mcp"
    assert run("add", "none").exit_code == 2
    assert run("add", "odd", "--command", "x", "--env", "KEY").exit_code == 2


def test_a_file_with_comments_is_not_rewritten():
    Path("mcp.json").write_text('{"servers": {}} // mine')
    assert "would be lost" in run("add", "new", "--command", "x").output
    assert Path("mcp.json").read_text() == '{"servers": {}} // mine'


def test_testing_a_server_tells_what_it_is_and_what_it_can_do():
    run("add", "rough", "--command", sys.executable, "--arg", str(ROUGH_SERVER))
    tested = json.loads(run("test", "rough", "--json").stdout)
    assert (tested["server"], tested["protocol"]) == ("rough", "2025-11-25")
    assert tested["connect_seconds"] > 0 and tested["answer_seconds"] > 0
    assert "echo" in [action["name"] for action in tested["actions"]]
    listed = json.loads(run("list", "--json").stdout)["servers"]
    assert listed[0]["listed"] and "echo" in listed[0]["actions"]


def test_testing_a_dead_or_unknown_server_fails_with_the_reason():
    run("add", "dead", "--command", "no-such-program")
    dead = run("test", "dead")
    assert dead.exit_code == 2 and "was not found" in dead.output
    unknown = run("test", "deed")
    assert unknown.exit_code == 3 and "Did you mean 'dead'?" in unknown.output


def test_listing_shows_servers_and_problems():
    Path("mcp.json").write_text('{"mcpServers": {"a": {"command": "x", "args": ["-y"]}, "b": {}}}')
    listed = run("list")
    assert listed.exit_code == 1
    assert "a\tnot listed yet\t\tx -y" in listed.output and "MCP server 'b'" in listed.output


def test_servers_of_other_programs_are_taken_over_once(tmp_path):
    desktop = (
        tmp_path
        / ("Library/Application Support" if sys.platform == "darwin" else ".config")
        / "Claude/claude_desktop_config.json"
    )
    desktop.parent.mkdir(parents=True)
    desktop.write_text('{"mcpServers": {"files": {"command": "npx"}, "mine": {"command": "theirs"}, "bad": {}}}')
    Path(".vscode").mkdir()
    Path(".vscode/mcp.json").write_text(
        '{"servers": {"git": {"command": "uvx", "args": ["${workspaceFolder}"],'  # with a comment:
        ' "env": {"T": "${input:git-token}"}}}} // x'
    )
    run("add", "mine", "--command", "x")
    imported = json.loads(run("import", "--json").stdout)["servers"]
    assert [(each["name"], each["outcome"]) for each in imported] == [
        ("git", "added"),
        ("files", "added"),
        ("mine", "skipped"),
        ("bad", "bad"),
    ]
    assert imported[0]["note"] == "set the environment variable GIT_TOKEN"
    assert servers()["git"] == {"command": "uvx", "args": [str(Path.cwd())], "env": {"T": "${GIT_TOKEN}"}}
    assert servers()["mine"] == {"command": "x"}


def test_a_named_file_is_imported_with_force(tmp_path):
    (tmp_path / "other.json").write_text('{"mcpServers": {"a": {"command": "new"}}}')
    run("add", "a", "--command", "old")
    assert "skipped" in run("import", "--from", str(tmp_path / "other.json")).output
    assert "replaced" in run("import", "--from", str(tmp_path / "other.json"), "--force").output
    assert servers()["a"] == {"command": "new"}
    assert run("import", "--from", str(tmp_path / "gone.json")).exit_code == 2
