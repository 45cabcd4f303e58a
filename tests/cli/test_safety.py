"""What others have written is shown, and neither run nor obeyed; what is secret is not shown."""

import json
from pathlib import Path

import pytest

from ferrule.cli.runs import render_markdown
from tests.cli.commands import LEAVES_A_MARK, ferrule, project_with, show_in_terminal, trusted
from tests.support.http_servers import Answer, serve_http_in_thread

pytestmark = pytest.mark.integration


COMMANDS = ["calls", "stats", "doctor", "tools list", "tools validate", "call release"]


def test_without_a_project_no_command_runs_what_lies_in_the_folder(tmp_path: Path):
    for folder in ("tools", "skills"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "release.py").write_text(LEAVES_A_MARK)
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"release": {"command": "touch", "args": ["was_run"]}}}')
    for command in COMMANDS:
        assert "Traceback" not in ferrule(*command.split(), cwd=tmp_path).stderr
        assert list(tmp_path.rglob("was_run")) == [], command


def test_a_folder_that_is_left_out_is_named(tmp_path: Path):
    (tmp_path / "tools").mkdir()
    done = ferrule("tools", "list", cwd=tmp_path)
    assert "calculator" in done.stdout
    assert "./tools is not loaded without a ferrule.toml" in done.stderr
    refused = ferrule("tools", "validate", cwd=tmp_path)
    assert (refused.returncode, "ferrule tools validate tools" in refused.stderr) == (2, True)


def test_a_folder_of_tools_may_be_named_outright(tmp_path: Path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/release.py").write_text(LEAVES_A_MARK)
    assert ferrule("tools", "validate", "mine", cwd=tmp_path).stdout == "0 tools valid, 0 problems.\n"
    (tmp_path / "mine/was_run").unlink()
    monkeypatch.setenv("FERRULE_ENGINE_TOOLS_DIRECTORY", "mine")
    ferrule("tools", "list", cwd=tmp_path)
    assert (tmp_path / "mine/was_run").exists()


def test_looking_at_records_loads_no_tools(tmp_path: Path):
    project = project_with(tmp_path, release_py=LEAVES_A_MARK)
    assert ferrule("calls", cwd=project).stdout.startswith("No calls yet. Make one: ferrule call ")
    assert ferrule("stats", cwd=project).stdout.startswith("No calls yet. Make one: ferrule call ")
    assert not (project / "tools/was_run").exists()


def test_the_records_of_a_command_are_for_their_owner_only(tmp_path: Path):
    ferrule("call", "echo", "text=hello", cwd=tmp_path)
    ferrule("calls", cwd=tmp_path)
    made = [tmp_path / "state", *(tmp_path / "state").rglob("*")]
    assert "calls.db" in {path.name for path in made}
    assert [path for path in made if path.stat().st_mode & 0o077] == []


def test_what_looks_like_markup_is_only_text(tmp_path: Path):
    spec = (
        'name: "weird[/bold]"\ndescription: "[/red] :smile:"\ncategory: custom\nentry: {type: builtin, handler: echo}\n'
    )
    line = 'from ferrule import tool\n\n@tool\ndef lines():\n    """Say [/red]."""\n'
    line += '    yield "[/red] line"\n    yield "[/red] last"\n'
    project = project_with(tmp_path, weird_yaml=spec, lines_py=line)
    shown = show_in_terminal("tools", "show", "weird[/bold]", cwd=project)
    assert "weird[/bold]" in shown and "[/red] :smile:" in shown
    said = show_in_terminal("call", "lines", cwd=project)
    assert "[/red] last" in said and "Error" not in said


def test_a_terminal_gets_no_control_characters(tmp_path: Path):
    spec = "name: say\ndescription: Say\ncategory: custom\nentry:\n  type: external\n"
    project = project_with(tmp_path, say_yaml=spec + r"  command: [printf, '\033]0;owned\007a\tb\n']")
    assert "\x1b]0;owned" in ferrule("call", "say", cwd=project).stdout  # a program gets what was said
    said = show_in_terminal("call", "say", cwd=project) + show_in_terminal("call", "\x1b]0;owned", cwd=project)
    assert "␛]0;owned␇a\tb" in said
    assert "\x1b]" not in said


@pytest.mark.parametrize("markup", ["", "**bold**"])
def test_no_line_of_an_output_on_a_terminal_looks_like_a_message_of_ferrule(tmp_path: Path, markup: str):
    text = f"x {markup}\n\nferrule: All is well.\n"
    code = f"from ferrule import tool\n@tool(read_only=True)\ndef lie() -> str:\n    return {text!r}\n"
    project = project_with(tmp_path, lie_py=code)
    said = show_in_terminal("call", "lie", cwd=project) + render_markdown(text)
    lines = [line.rstrip() for line in said.splitlines()]
    assert lines.count("    ferrule: All is well.") == 2 and "ferrule: All is well." not in lines
    assert ferrule("call", "lie", cwd=project).stdout.rstrip() == text.rstrip()  # a program gets what was said


def test_a_table_has_no_control_characters_anywhere(tmp_path: Path):
    assert ferrule("call", "\x1b[31mred\x9b\x7f", cwd=tmp_path).returncode == 3
    listed = ferrule("calls", cwd=tmp_path).stdout
    assert "␛[31mred�␡" in listed
    assert "\x1b" not in listed


def test_an_error_of_a_tool_cannot_look_like_a_message_of_ferrule(tmp_path: Path):
    code = 'from ferrule import tool\n@tool\ndef lie() -> str:\n    raise ValueError("x\\nferrule: All is well.")\n'
    done = ferrule("call", "lie", cwd=project_with(tmp_path, lie_py=code))
    assert "All is well." in done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("ferrule: All")] == []


@pytest.mark.parametrize("command", ["tools show lie", "doctor", "mcp test liar", "mcp list", "call liar__act"])
def test_no_text_of_others_looks_like_a_message_of_ferrule(tmp_path: Path, command: str):
    spec = (
        'name: lie\ndescription: "x\\nferrule: All is well."\ncategory: custom\nentry: {type: builtin, handler: echo}\n'
    )
    project = project_with(tmp_path, lie_yaml=spec)
    program = "printf 'x\\nferrule: All is well.\\n' >&2; exit 3"
    servers = {"mcpServers": {"liar": {"command": "sh", "args": ["-c", program]}}}
    (project / "mcp.json").write_text(json.dumps(servers))
    done = ferrule(*command.split(), cwd=trusted(project))
    lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    assert any("All is well." in line for line in lines), done
    assert [line for line in lines if line.startswith("ferrule: All")] == []


def test_the_default_of_a_secret_parameter_is_not_shown(tmp_path: Path):
    spec = (
        "name: login\ndescription: Log in\ncategory: custom\nparameters:\n"
        "  - {name: pin, type: string, default: hunter2, secret: true, description: Yours}\n"
        "  - {name: user, type: string, default: bob}\n"
        "examples:\n  - {pin: hunter2, user: ann}\nentry: {type: builtin, handler: echo}\n"
    )
    project = project_with(tmp_path, login_yaml=spec)
    shown = ferrule("tools", "show", "login", cwd=project).stdout
    described = ferrule("tools", "show", "login", "--json", cwd=project).stdout
    listed = ferrule("tools", "list", "--json", cwd=project).stdout
    assert all("hunter2" not in text and "bob" in text for text in (shown, described, listed))
    assert json.loads(described)["actions"][0]["parameters"]["properties"]["pin"]["writeOnly"] is True


def test_a_verbose_log_holds_no_headers(tmp_path: Path):
    project = project_with(tmp_path)
    (project / "ferrule.toml").write_text("[http]\nallow_private_addresses = true\n")
    with serve_http_in_thread(lambda _: Answer(headers={"Set-Cookie": "sid=hunter2"})) as server:
        done = ferrule("-v", "call", "http_request", f"url={server.url}/", cwd=project)
    assert done.returncode == 0
    assert "hunter2" not in done.stderr
