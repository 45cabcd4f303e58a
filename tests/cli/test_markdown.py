"""Answers in Markdown: rendered at a terminal, unchanged in a pipe."""

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.agent.answer import TextPiece
from ferrule.cli.markdown import MarkdownStream, render_markdown
from ferrule.cli.run_view import RunView

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
