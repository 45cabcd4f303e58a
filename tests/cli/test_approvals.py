"""`ferrule approvals` and `ferrule policy explain`."""

import json
import re
import sys
from datetime import datetime
from pathlib import Path

import pytest
from rich.cells import cell_len

from ferrule.cli import printing
from tests.cli.test_cli import ferrule

ADD = '''from ferrule import tool

@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b
'''
POLICY = """[[policy.rules]]
verdict = "deny"
tool = "add"
arguments = { a = { more_than = 100 } }
reason = "Too large."

[[policy.rules]]
verdict = "ask"
tool = "add"
reason = "Sums are serious."
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "add.py").write_text(ADD)
    (tmp_path / "ferrule.toml").write_text(f'[store]\nurl = "sqlite:///calls.db"\n{POLICY}')
    assert ferrule("trust", ".", cwd=tmp_path).returncode == 0
    return tmp_path


def request_approval(project: Path) -> str:
    asked = ferrule("call", "add", "a:=1", "b:=2", "--json", cwd=project)
    assert asked.returncode == 8, asked.stderr
    approval_id: str = json.loads(asked.stdout)["metadata"]["approval_id"]
    return approval_id


def test_a_call_is_made_once_after_it_was_approved(project: Path):
    approval_id = request_approval(project)
    (listed,) = json.loads(ferrule("approvals", "list", "--json", cwd=project).stdout)
    assert (listed["approval_id"], listed["arguments"], listed["reason"]) == (
        approval_id,
        {"a": 1, "b": 2},
        "Sums are serious.",
    )
    assert datetime.fromisoformat(listed["created_at"]) < datetime.fromisoformat(listed["expires_at"])
    header, row = ferrule("approvals", "list", cwd=project).stdout.splitlines()
    assert header.startswith("approval\tsince\t") and row.startswith(approval_id)
    approved = ferrule("approvals", "approve", approval_id[:6], cwd=project)
    assert f"ferrule call --approval {approval_id} add" in approved.stdout
    first = ferrule("call", "--approval", approval_id, "add", "a:=1", "b:=2", cwd=project)
    assert (first.stdout, first.returncode) == ("3\n", 0)
    assert ferrule("call", "--approval", approval_id, "add", "a:=1", "b:=2", cwd=project).returncode == 8
    assert "used already" in ferrule("approvals", "show", approval_id, cwd=project).stdout
    late = ferrule("approvals", "deny", approval_id, cwd=project)
    assert late.returncode == 2 and "used already by the call" in late.stderr


def test_a_refusal_says_why(project: Path):
    approval_id = request_approval(project)
    ferrule("approvals", "deny", approval_id, "--reason", "Not today.", cwd=project)
    refused = ferrule("call", "--approval", approval_id, "add", "a:=1", "b:=2", cwd=project)
    assert (refused.returncode, refused.stderr) == (6, "ferrule: The user refused this call. Not today.\n")


def test_other_arguments_can_be_approved(project: Path):
    approval_id = request_approval(project)
    shown = ferrule("approvals", "approve", approval_id, "b:=40", cwd=project)
    assert 'with other arguments: {"a":1,"b":40}' in shown.stdout
    assert ferrule("call", "--approval", approval_id, "add", "a:=1", "b:=2", cwd=project).stdout == "41\n"
    used = ferrule("approvals", "show", approval_id, cwd=project).stdout
    assert 'with other arguments: {"a":1,"b":40}' in used and "used already" in used


def test_requests_beyond_the_limit_are_counted(project: Path):
    first = request_approval(project)
    calls = ferrule("call", "add", "a:=2", "b:=2", cwd=project)
    assert calls.returncode == 8
    listed = ferrule("approvals", "list", "--limit", "1", cwd=project)
    assert first not in listed.stdout and len(listed.stdout.splitlines()) == 2
    assert "1 more are not shown. Show them with: --limit 2" in listed.stderr
    assert ferrule("approvals", "list", "--limit", "2", cwd=project).stderr == ""


def test_a_table_at_80_columns_shows_whole_ids(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    row = ("3f9a0c1d2e4b5a67", "2026-01-01 10:00", "approved", "agent:research#0a1b2c3d", "files__delete_all", "x" * 99)
    columns = ("approval", "since", "state", "who", "call", "arguments")
    printing.print_table(columns, [row], empty="", cut=(5, 4, 3))
    lines = capsys.readouterr().out.splitlines()
    assert row[0] in lines[1] and row[1] in lines[1] and len(lines[1]) <= 80
    printing.print_table(("id", "text"), [("a" * 90, "b" * 90)], empty="", cut=(1,))
    assert "a" * 90 in capsys.readouterr().out


@pytest.mark.parametrize(("width", "names"), [(80, ["tool", "about"]), (130, ["tool", "about", "tags"])])
def test_a_narrow_terminal_gives_the_room_of_optional_columns_to_texts(monkeypatch, capsys, width, names):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    row = ("advanced_web_search (not set up)", "Search the web with filters for language.", "search, " * 9)
    printing.print_table(("tool", "about", "tags"), [row], empty="", cut=(1, 2), optional=(2,))
    heading, line = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out).splitlines()
    assert heading.split() == names and "Search the web with filters for langu" in line


def test_a_table_that_does_not_fit_shows_each_row_as_a_paragraph(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "44")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    name = "list_workspace_files (not set up)"
    rows = [(name, "列出文件。" * 20, "", "builtin"), ("echo", "Echoes.", "test", "x")]
    printing.print_table(("tool", "about", "tags", "source"), rows, empty="", cut=(1, 2))
    shown = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)
    lines = [line.rstrip() for line in shown.splitlines()]
    assert lines[0] == name and lines[1].startswith("  about: 列出文件。") and lines[1].endswith("…")
    assert lines[2:] == ["  source: builtin", "echo", "  about: Echoes.", "  tags: test", "  source: x"]
    assert max(map(cell_len, lines)) <= 44


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("approvals", "show", "nothing"), "There is no approval request 'nothing'"),
        (("approvals", "list", "--state", "odd"), "There is no state 'odd'"),
        (("policy", "explain", "nothing"), "There is no tool 'nothing'"),
        (
            ("policy", "explain", "add", "a=x"),
            "add cannot be called so: b: is required. a: must be a whole number, not 'x'.",
        ),
        (("policy", "explain", "add", "--as", "king"), "--as takes user, agent, client, token, not 'king'"),
    ],
)
def test_mistakes_are_explained(project: Path, command: tuple[str, ...], message: str):
    answer = ferrule(*command, cwd=project)
    assert answer.returncode == 2 and message in answer.stderr


def test_nothing_to_approve_is_said(project: Path):
    assert ferrule("approvals", "list", cwd=project).stdout == "Nothing waits for your approval.\n"


def test_the_policy_is_explained(project: Path):
    asked = ferrule("policy", "explain", "add", "a:=1", "b:=2", cwd=project)
    assert asked.returncode == 8
    assert asked.stdout.splitlines() == [
        "ask: a call of add by agent:local",
        "rule: ask: tool add",
        "why: Sums are serious.",
    ]
    denied = ferrule("policy", "explain", "add", "a:=1000", "b:=2", "--json", cwd=project)
    assert denied.returncode == 6 and json.loads(denied.stdout)["reason"] == "Too large."
    allowed = ferrule("policy", "explain", "calculator", "--as", "user", cwd=project)
    assert (allowed.returncode, "none matches" in allowed.stdout) == (0, True)
    open_question = ferrule("policy", "explain", "add", cwd=project)
    assert "It depends on the arguments" in open_question.stdout


def test_rules_that_match_no_tool_are_reported(project: Path):
    assert "every rule matches a tool" in ferrule("doctor", cwd=project).stdout
    path = project / "ferrule.toml"
    path.write_text(f'{path.read_text()}\n[[policy.rules]]\nverdict = "deny"\ntool = "ad"\n')
    warning = "Rule 3 of the policy matches no known tool (deny: tool ad)."
    assert warning in " ".join(ferrule("doctor", cwd=project).stdout.split())
    assert warning in ferrule("policy", "explain", "add", "a:=1", "b:=2", cwd=project).stderr


def test_what_others_wrote_cannot_look_like_another_line(project: Path):
    path = project / "ferrule.toml"
    path.write_text(path.read_text().replace("Sums are serious.", "One.\\nwhy it asks: nothing \\u001b[2J"))
    shown = ferrule("approvals", "show", request_approval(project), cwd=project).stdout
    assert sum(line.startswith("why it asks:") for line in shown.splitlines()) == 1 and "\x1b" not in shown, shown
