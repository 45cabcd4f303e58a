"""ferrule mcp add | remove | enable | disable | list | test | import | install"""

import json
import os
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ferrule.cli.app import app
from ferrule.config import FerruleConfig
from ferrule.folder_trust import delete_folder_trust, trust_folder
from tests.kinds.mcp.mcp_servers import RAW_SERVER
from tests.support.processes import run_python


@pytest.fixture(autouse=True)
def at_home(tmp_path, monkeypatch):
    """A project and a home of our own."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["mcp", *arguments])


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
    assert again.exit_code == 2 and "there is already a server 'web'" in again.output
    assert run("add", "web", "--url", "https://y/mcp", "--force").exit_code == 0
    assert servers()["web"]["url"] == "https://y/mcp"
    assert run("add", "none").exit_code == 2
    assert run("add", "odd", "--command", "x", "--env", "KEY").exit_code == 2


def test_a_file_with_comments_is_not_rewritten():
    Path("mcp.json").write_text('{"servers": {}} // mine')
    assert "would be lost" in run("add", "new", "--command", "x").output
    assert Path("mcp.json").read_text() == '{"servers": {}} // mine'


@pytest.mark.integration
def test_testing_a_server_tells_what_it_is_and_what_it_can_do():
    run("add", "rough", "--command", sys.executable, "--arg", str(RAW_SERVER))
    tested = json.loads(run("test", "rough", "--json").stdout)
    assert (tested["server"], tested["protocol"]) == ("rough", "2025-11-25")
    assert tested["connect_seconds"] > 0 and tested["answer_seconds"] > 0
    assert "echo" in [action["name"] for action in tested["actions"]]
    listed = json.loads(run("list", "--json").stdout)["servers"]
    assert listed[0]["listed"] and "echo" in listed[0]["actions"]


@pytest.mark.integration
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


def test_a_server_is_added_as_in_claude_code():
    assert run("add", "time", "--env", "TZ=UTC", "--", "uvx", "mcp-server-time", "--local").exit_code == 0
    header = "Authorization: Bearer ${T}"
    assert run("add", "-t", "http", "web", "https://x/mcp", "-H", header).exit_code == 0
    assert servers() == {
        "time": {"command": "uvx", "args": ["mcp-server-time", "--local"], "env": {"TZ": "UTC"}},
        "web": {"type": "http", "url": "https://x/mcp", "headers": {"Authorization": "Bearer ${T}"}},
    }
    both = run("add", "odd", "--command", "x", "--", "y")
    assert both.exit_code == 2 and "not both" in both.output


def test_adding_says_what_is_missing():
    missing = run("add", "time")
    assert missing.exit_code == 2 and "ferrule mcp add time -- PROGRAM ARGUMENTS" in missing.output
    empty = run("add", "web", "https://x/mcp", "--header", "Authorization: Bearer ")  # of a variable that is not set
    assert empty.exit_code == 2 and "single quotes" in empty.output and not Path("mcp.json").exists()


@pytest.mark.integration
def test_ferrule_is_not_behind_itself(tmp_path: Path):
    run("add", "time", "--", "uvx", "mcp-server-time")
    cursor = tmp_path / ".cursor" / "mcp.json"
    cursor.parent.mkdir()
    time = {"command": "uvx", "args": ["mcp-server-time"]}
    cursor.write_text(json.dumps({"mcpServers": {"time": time, "other": {"command": "x"}}}))
    assert "\ntime: now behind Ferrule too. To remove them from" in run("install", "cursor").output
    outcomes = {each["name"]: each["outcome"] for each in json.loads(run("import", "--json").stdout)["servers"]}
    assert outcomes == {"time": "skipped", "other": "added", "ferrule": "skipped"}
    assert servers().keys() == {"time", "other"}
    environment = {**os.environ, "FERRULE_SERVING": str(Path("mcp.json").absolute())}  # as it passes it on
    served = run_python("-m", "ferrule", "mcp", "serve", "--file", "mcp.json", cwd=Path.cwd(), env=environment)
    assert served.returncode == 2 and "is served already" in served.stderr


def test_a_server_is_disabled_enabled_and_removed():
    Path("mcp.json").write_text('{"mcpServers": {"a": {"command": "x", "note": 1}, "b": {"command": "y"}}, "other": 1}')
    assert run("disable", "a").exit_code == 0 and servers()["a"] == {"command": "x", "note": 1, "disabled": True}
    assert "a\toff" in run("list").output
    assert run("enable", "a").exit_code == 0 and servers()["a"] == {"command": "x", "note": 1}
    assert json.loads(run("remove", "a", "--json").stdout)["outcome"] == "removed"
    assert json.loads(Path("mcp.json").read_text()) == {"mcpServers": {"b": {"command": "y"}}, "other": 1}
    missing = run("remove", "bb")
    assert missing.exit_code == 2 and "Did you mean 'b'?" in missing.output


CLIENT_FILES = {
    "claude": (".config/Claude/claude_desktop_config.json", "mcpServers"),
    "claude-code": (".claude.json", "mcpServers"),
    "cursor": (".cursor/mcp.json", "mcpServers"),
    "vscode": (".config/Code/User/mcp.json", "servers"),
}


@pytest.mark.skipif(sys.platform != "linux", reason="the folders are those of Linux")
@pytest.mark.parametrize("client", CLIENT_FILES)
def test_ferrule_is_written_into_the_file_of_a_client(tmp_path: Path, client: str):
    path, key = tmp_path / CLIENT_FILES[client][0], CLIENT_FILES[client][1]
    assert run("install", client).exit_code == 2  # there is nothing to serve
    run("add", "time", "--", "uvx", "mcp-server-time")
    assert run("install", client, "--dry-run").exit_code == 0 and not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    before = {"theme": "dark", key: {"other": {"command": "x"}}} if client != "claude-code" else {"theme": "dark"}
    path.write_text(json.dumps(before))
    installed = run("install", client)
    assert installed.exit_code == 0, installed.output
    document = json.loads(path.read_text())
    entry = document[key].pop("ferrule")
    assert document == {"theme": "dark", key: {**before.get(key, {})}}  # type: ignore[dict-item]
    assert entry["args"][-2:] == ["--folder", str(Path.cwd())] and "serve" in entry["args"]
    assert json.loads(path.with_name(f"{path.name}.bak").read_text()) == before
    assert run("install", client).exit_code == 2 and run("install", client, "--force", "--search").exit_code == 0
    assert json.loads(path.read_text())[key]["ferrule"]["args"][-1] == "--search"


@pytest.mark.integration
def test_what_a_client_starts_needs_trust_in_the_folder(tmp_path: Path):
    Path("ferrule.toml").write_text("")
    refused = run("install", "claude")
    assert refused.exit_code == 2 and "is not trusted" in refused.output
    trust_folder(FerruleConfig.read(Path("ferrule.toml")))
    shown = run("install", "claude", "--dry-run", "--json")
    arguments = json.loads(shown.output)["server"]["args"]
    assert arguments == ["-P", "-m", "ferrule", "mcp", "serve", "--folder", str(Path.cwd())]
    Path("mcp.json").write_text(json.dumps({"mcpServers": {"evil": {"command": "touch", "args": ["started"]}}}))
    served = run_python(*arguments[1:], cwd=tmp_path)
    assert served.returncode == 0 and "evil" in served.stderr and not Path("started").exists()
    assert delete_folder_trust(Path.cwd())
    served = run_python(*arguments[1:], cwd=tmp_path)
    assert served.returncode == 2 and "is not trusted" in served.stderr


@pytest.mark.parametrize("kind", ["device", "pipe", "folder"])
def test_a_file_without_end_is_reported(kind: str):
    match kind:
        case "device":
            Path("mcp.json").symlink_to("/dev/zero")
        case "pipe":
            os.mkfifo("mcp.json")
        case "folder":
            Path("mcp.json").mkdir()
    listed = run("list")
    assert listed.exit_code == 1 and "it is a folder, a pipe or a device" in listed.output


def test_a_file_that_the_user_names_is_written_as_it_is(tmp_path: Path):
    config = tmp_path / "shop.toml"
    config.write_text("")
    shown = CliRunner().invoke(app, ["--config", str(config), "mcp", "install", "claude", "--dry-run", "--json"])
    assert json.loads(shown.output)["server"]["args"][-4:] == ["--config", str(config), "mcp", "serve"]


def test_ferrule_is_written_into_the_file_of_codex(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CODEX_HOME", raising=False)
    run("add", "time", "--", "uvx", "mcp-server-time")
    path = tmp_path / ".codex/config.toml"
    path.parent.mkdir()
    path.write_text('model = "x"  # mine\n\n[mcp_servers.other]\ncommand = "y"\n')
    assert run("install", "codex").exit_code == 0
    assert run("install", "codex").exit_code == 2
    assert run("install", "codex", "--force", "--search").exit_code == 0
    document = tomllib.loads(path.read_text())
    assert (document["model"], document["mcp_servers"]["other"]) == ("x", {"command": "y"})
    assert document["mcp_servers"]["ferrule"]["args"][-1] == "--search"
    assert path.read_text().count('ferrule"]') == 1 and "# mine" in path.read_text()
    path.write_text("not toml")
    assert run("install", "codex").exit_code == 2 and path.read_text() == "not toml"


def test_a_header_with_a_variable_holds_no_secret(tmp_path: Path):
    entries = {
        "one": {
            "url": "https://x/mcp",
            "headers": {"Authorization": "Bearer ${env:T}", "X-Api-Key": "${input:api-key}"},
        },
        "two": {"url": "https://y/mcp", "headers": {"Authorization": "Bearer abcdef0123456789"}},
    }
    (tmp_path / "other.json").write_text(json.dumps({"servers": entries}))
    imported = json.loads(run("import", "--from", str(tmp_path / "other.json"), "--json").stdout)["servers"]
    assert imported[0]["note"] == "set the environment variable API_KEY"
    assert "holds the value of Authorization" in imported[1]["note"]
    assert servers()["one"]["headers"] == {"Authorization": "Bearer ${T}", "X-Api-Key": "${API_KEY}"}


CODEX = """
model = "x"  # mine

[mcp_servers.time]
command = "uvx"
args = ["mcp-server-time"]
tool_timeout_sec = 60

[mcp_servers.time.env]
TZ = "UTC"

[mcp_servers."far.away"]
url = "https://x/mcp"
bearer_token_env_var = "FAR_TOKEN"
env_http_headers = { "X-Team" = "TEAM" }
enabled = false
"""


def test_the_servers_of_codex_are_imported_replaced_and_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CODEX_HOME", raising=False)
    path = tmp_path / ".codex/config.toml"
    path.parent.mkdir()
    path.write_text(CODEX)
    before = tomllib.loads(CODEX)
    imported = json.loads(run("import", "--json").stdout)["servers"]
    assert [(each["name"], each["outcome"], each["note"]) for each in imported] == [
        ("time", "added", ""),
        ("far.away", "added", ""),
    ]
    far = {"Authorization": "Bearer ${FAR_TOKEN}", "X-Team": "${TEAM}"}
    assert servers() == {
        "time": {"command": "uvx", "args": ["mcp-server-time"], "env": {"TZ": "UTC"}, "timeout": 60_000},
        "far.away": {"url": "https://x/mcp", "headers": far, "disabled": True},
    }
    assert run("install", "codex", "--replace").exit_code == 0
    assert tomllib.loads(path.read_text())["mcp_servers"].keys() == {"ferrule"} and "# mine" in path.read_text()
    assert tomllib.loads(path.with_name("config.toml.bak").read_text()) == before
    restored = json.loads(run("uninstall", "codex", "--json").stdout)["restored"]
    assert restored == ["time", "far.away"] and tomllib.loads(path.read_text()) == before
    assert not path.with_name("config.toml.ferrule").exists() and "# mine" in path.read_text()


def test_entries_of_the_same_servers_are_replaced_on_request_and_put_back(tmp_path: Path):
    run("add", "time", "--", "uvx", "mcp-server-time")
    run("add", "other", "--", "uvx", "mine")
    path = tmp_path / ".cursor/mcp.json"
    path.parent.mkdir()
    time, theirs = {"command": "uvx", "args": ["mcp-server-time"]}, {"command": "uvx", "args": ["theirs"]}
    before = {"theme": "dark", "mcpServers": {"time": time, "other": theirs}}
    path.write_text(json.dumps(before))
    assert run("uninstall", "cursor").exit_code == 2  # it is not there
    kept = json.loads(run("install", "cursor", "--json").stdout)
    assert (kept["same"], kept["removed"]) == (["time"], []), "another server has the same name"
    assert json.loads(path.read_text())["mcpServers"].keys() == {"time", "other", "ferrule"}
    replaced = run("install", "cursor", "--force", "--replace", "--bundled")
    assert "removed time from" in replaced.output, replaced.output
    assert json.loads(path.read_text())["mcpServers"].keys() == {"other", "ferrule"}
    assert json.loads(path.read_text())["mcpServers"]["ferrule"]["args"][-1] == "--bundled"
    assert path.with_name("mcp.json.ferrule").stat().st_mode & 0o077 == 0, "entries may contain secrets"
    assert run("uninstall", "cursor", "--name", "other").exit_code == 2, "which is not Ferrule"
    assert "put back time" in run("uninstall", "cursor").output
    assert json.loads(path.read_text()) == {"theme": "dark", "mcpServers": {"other": theirs, "time": time}}
