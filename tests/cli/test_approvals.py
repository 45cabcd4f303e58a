"""`ferrule approvals` and `ferrule policy explain`."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from tests.cli.commands import ferrule, show_in_terminal, trusted

pytestmark = pytest.mark.integration

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
    return trusted(tmp_path)


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
    assert (refused.returncode, refused.stderr) == (6, "ferrule: The user refused this call: Not today.\n")


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


MISTAKES = {
    ("approvals", "show", "nothing"): "There is no approval request 'nothing'",
    ("approvals", "list", "--state", "odd"): "There is no state 'odd'",
    ("policy", "explain", "nothing"): "There is no tool 'nothing'",
    ("policy", "explain", "add", "a=x"): "add are not valid: b: is required. a: must be a whole number, not 'x'.",
    ("policy", "explain", "add", "--as", "king"): "--as takes user, agent, client, token, not 'king'",
}


def test_mistakes_are_explained(project: Path):
    assert ferrule("approvals", "list", cwd=project).stdout == "Nothing waits for your approval.\n"
    for command, message in MISTAKES.items():
        answer = ferrule(*command, cwd=project)
        assert answer.returncode == 2 and message in answer.stderr, answer.stderr


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


def test_what_a_run_is_asked_about_is_explained(project: Path):
    (project / "tools" / "mail.py").write_text(
        "from ferrule import tool\n\n"
        "@tool\ndef send_note(recipient: str, text: str) -> str:\n"
        '    """Send a note."""\n    return recipient\n'
    )
    path = project / "ferrule.toml"
    path.write_text(f'{path.read_text()}\n[policy]\nuntrusted_targets = "ask"\n')
    explained = ferrule("policy", "explain", "send_note", cwd=project)
    sentence = "In a run that has read text from outside, it asks a person if recipient has a value"
    assert explained.returncode == 0 and sentence in explained.stdout, explained.stdout
    shown = ferrule("tools", "show", "send_note", cwd=project).stdout
    assert "recipient: target, because its name says 'recipient'" in shown
    assert "text: content, because its name says 'text'" in shown


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


def test_the_names_of_calls_are_not_cut_off(project: Path):
    names = ("transfer_money_between_two_accounts", "close_all_accounts_of_one_customer")
    for name in names:
        (project / "tools" / f"{name}.py").write_text(ADD.replace("def add", f"def {name}"))
    rules = "".join(f'\n[[policy.rules]]\nverdict = "ask"\ntool = "{name}"\nreason = "Money."\n' for name in names)
    (project / "ferrule.toml").write_text((project / "ferrule.toml").read_text() + rules)
    for name in names:
        assert ferrule("call", name, "a:=1", "b:=2", cwd=trusted(project)).returncode == 8
    shown = show_in_terminal("approvals", "list", cwd=project)
    assert all(name in shown for name in names), shown
