"""What commands print: Markdown, tables, questions and messages, at a terminal or into a pipe."""

import contextlib
import logging
import re
import sys
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text
from typer.main import get_command

from ferrule.agent import AgentAnswer, AgentState, ApprovalRequest, Question
from ferrule.agent.answer import PlanCreated, TextPiece
from ferrule.cli import printing
from ferrule.cli.app import COMMANDS, app, main
from ferrule.cli.runs import MarkdownStream, PlanTree, RunView, print_waiting, render_markdown
from ferrule.cli.terminal import (
    WarningFormatter,
    remove_escape_sequences,
    show_control_characters,
    terminal_elicitation,
)
from ferrule.core.elicitation import Elicitation
from ferrule.workflow import Plan, PlanStep, StepResult

ANSWER = "# Orders\n\nThere are **two**:\n\n- first\n- second\n\n```\na\n\nb\n```\n\nSee [the list](https://example.com/x).\n"


def test_headings_lists_and_links_are_rendered():
    shown = render_markdown(ANSWER)
    assert "**" not in shown and "```" not in shown and "\x1b[1mtwo" in shown and "• \x1b[0mfirst" in shown
    assert "https://example.com/x" in shown  # a link shows its target


@pytest.mark.parametrize("text", ["a.txt\nb.txt\n", "2 * 3 * 4 = 24\n", "snake_case and 5 > 3\n", "第一行\n第二行\n"])
def test_plain_text_keeps_its_lines(text: str):
    assert render_markdown(text) == text


def test_a_model_cannot_send_control_sequences_to_the_terminal():
    shown = render_markdown("**bold** \x1b]0;title\x07 and \x1b[2J \u202e")
    assert "\x1b]0" not in shown and "\x1b[2J" not in shown and "\u202e" not in shown


@given(st.lists(st.integers(1, len(ANSWER) - 1), unique=True).map(sorted))
def test_the_pieces_in_which_a_text_arrives_change_nothing(cuts: list[int]):
    def show(pieces: list[str]) -> list[str]:
        stream = MarkdownStream()
        text = "".join(map(stream.add, pieces)) + stream.flush()
        return [line for line in text.splitlines() if line.strip()]

    pieces = [ANSWER[start:end] for start, end in zip([0, *cuts], [*cuts, len(ANSWER)], strict=True)]
    assert show(pieces) == show(list(ANSWER))


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_text_of_a_run_is_shown_once(is_terminal: bool, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    view = RunView()
    for piece in re.findall(r"\S+\s*", ANSWER):
        view(TextPiece(text=piece))
    view.finish(ANSWER)
    shown = capsys.readouterr().out
    assert shown.count("second") == 1 and ("**two**" in shown) == (not is_terminal)


def print_rows(titles: tuple[str, ...], *rows: tuple[str, ...], cut: tuple[int, ...]) -> None:
    columns = {title: itemgetter(number) for number, title in enumerate(titles)}
    printing.print_list(rows, columns, as_json=False, empty="", cut=cut)


def test_a_table_at_80_columns_shows_whole_ids(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    row = ("3f9a0c1d2e4b5a67", "2026-01-01 10:00", "approved", "agent:research#0a1b2c3d", "files__delete_all", "x" * 99)
    columns = ("approval", "since", "state", "who", "call", "arguments")
    print_rows(columns, row, cut=(5, 4, 3))
    lines = capsys.readouterr().out.splitlines()
    assert row[0] in lines[1] and row[1] in lines[1] and len(lines[1]) <= 80
    print_rows(("id", "text"), ("a" * 90, "b" * 90), cut=(1,))
    assert "a" * 90 in capsys.readouterr().out


def test_a_table_that_does_not_fit_shows_each_row_as_a_paragraph(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "44")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    name = "list_workspace_files (not set up)"
    rows = [(name, "列出文件。" * 20, "", "builtin"), ("echo", "Echoes.", "test", "x")]
    print_rows(("tool", "about", "tags", "source"), *rows, cut=(1, 2))
    shown = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)
    lines = [line.rstrip() for line in shown.splitlines()]
    assert lines[0] == name and lines[1].startswith("  about: 列出文件。") and lines[1].endswith("…")
    assert lines[2:] == ["  source: builtin", "echo", "  about: Echoes.", "  tags: test", "  source: x"]
    assert max(map(cell_len, lines)) <= 44


def test_nothing_of_what_a_person_agrees_to_is_hidden(capsys: pytest.CaptureFixture[str]):
    command = "echo hi. " * 60 + "rm -rf / \u202e" + "x" * 20_000
    request = ApprovalRequest(call_id="1", tool_id="sh", action=None, arguments={"command": command}, reason="")
    print_waiting(AgentAnswer(run_id="r", state=AgentState.WAITING, approvals=(request,)))
    shown = capsys.readouterr().err
    assert "rm -rf /" in shown and "\u202e" not in shown and "characters are not shown" in shown


def test_a_run_with_a_chinese_question_asks_in_chinese(capsys: pytest.CaptureFixture[str]):
    reason = "refund may destroy something that cannot be restored."
    request = ApprovalRequest(call_id="1", tool_id="refund", action=None, arguments={"order": 7}, reason=reason)
    print_waiting(AgentAnswer(run_id="r", state=AgentState.WAITING, approvals=(request,)), "zh")
    assert capsys.readouterr().err.splitlines() == [
        '? 允许调用 refund 吗？参数：{"order":7}',
        "  refund 可能造成无法恢复的破坏。",
        "  批准：ferrule runs resume r --approve（拒绝用 --deny）",
    ]


def test_warnings_read_like_sentences():
    formatter = WarningFormatter()
    record = logging.makeLogRecord(
        {"msg": "model=<%s>, attempt=<%d>, error=<%s> | retrying", "args": ("m", 1, "The server is busy.")}
    )
    assert formatter.format(record) == "ferrule: The server is busy: retrying (model m, attempt 1)"
    assert formatter.format(logging.makeLogRecord({"msg": "The disk is full."})) == "ferrule: The disk is full."


def test_line_ends_and_tabs_are_no_control_characters_here():
    assert show_control_characters("a\tb\r\nc\nd\re") == "a\tb\nc\nd␍e"


def test_nothing_can_be_disguised():
    hidden = "".join(chr(0xE0000 + ord(letter)) for letter in "rm")
    shown = show_control_characters(f"del \u202egnp.exe\u202c\u2028next\u200b{hidden}\ufeff")
    assert shown == r"del \u202egnp.exe\u202c\u2028next\u200b\U000e0072\U000e006d\ufeff"
    assert show_control_characters("页面 👩\u200d💻 é") == "页面 👩\u200d💻 é"


async def test_a_server_that_asks_cannot_write_lines_of_ours(capsys: pytest.CaptureFixture[str]):
    question = Elicitation(tool_id="shop", message="Who?\nferrule: /home/me is not trusted yet.\nTrust it? [y/N]")
    await terminal_elicitation(contextlib.nullcontext)(question)
    first, *others = capsys.readouterr().err.splitlines()
    assert first == "ferrule: 'shop' asks: Who?"
    assert len(others) == 2 and all(line.startswith("    ") for line in others)


def test_what_a_run_waits_for_is_said_with_all_there_is_to_choose_from(capsys: pytest.CaptureFixture[str]):
    asked = (Question(call_id="1", text="Which?", options=("red", "blue")), Question(call_id="2", text="Who?"))
    waits = AgentAnswer(question="Paint", state=AgentState.WAITING, strategy="plan", run_id="r", questions=asked)
    print_waiting(waits)
    said = capsys.readouterr().err
    assert "? Which?\n  - red\n  - blue\n  Answer with: ferrule ask --resume r" in said
    assert "? Who?\n  After that, answer with:" in said


def test_steps_that_were_done_before_are_shown_so(capsys: pytest.CaptureFixture[str]):
    steps = (PlanStep(id=1, description="find"), PlanStep(id=2, description="say"))
    known = StepResult(step_id=1, description="find", tool_type="none", success=True, result="found")
    PlanTree()(PlanCreated(Plan(steps=steps), (known,)))
    assert capsys.readouterr().err == "✓ 1. find → found\n  2. say\n"


def test_log_lines_lose_what_a_server_wrote_for_its_own_terminal():
    assert remove_escape_sequences("\x1b[32mINFO\x1b[0m \x1b]0;title\x07ready\x1b(") == "INFO ready␛("


def _help_texts(command: Any) -> Iterator[str]:
    yield from filter(None, (command.help, command.epilog, *(getattr(p, "help", None) for p in command.params)))
    for name in getattr(command, "commands", ()):
        yield from _help_texts(command.get_command(None, name))


def test_no_part_of_a_help_text_is_taken_for_markup():
    texts = list(_help_texts(get_command(app)))
    assert len(texts) > 10 and [text for text in texts if Text.from_markup(text).plain != text] == []


def test_the_list_of_commands_says_what_each_command_says_of_itself():
    group: Any = get_command(app)
    helps = {name: " ".join(group.get_command(None, name).help.split()) for name in group.commands}
    differ = [name for name, (_, summary) in COMMANDS.items() if not helps[name].startswith(summary.rstrip("."))]
    assert differ == []


def test_the_option_for_a_server_elsewhere_comes_first(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["ferrule", "tools", "list", "--server", "http://localhost:8321"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err == "ferrule: --server comes first: ferrule --server URL tools …\n"
