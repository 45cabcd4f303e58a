"""Which argument of a command is a script: the program would run what a caller puts into it.

Known are the usual shells (`sh -c …`), languages (`python -c …`, `perl -e …`) and `env -S …`, also when another
program starts them (`timeout 5 sh -c …`). What other programs take for code only their user can know.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from ferrule.executors.variables import placeholders_in

INSTEAD = """give it as an argument: [sh, -c, 'grep -- "$1" notes.txt', sh, "{pattern}"]"""
"""What to write for a value in a script."""


class Part(NamedTuple):
    """One argument: as the tool's description has it and, once there is a call, as the program gets it."""

    template: str
    text: str


class _Options(NamedTuple):
    """How a program reads its options, up to the first argument that is none."""

    script: re.Pattern[str]
    """Takes a script: the rest of the same argument, or the next one."""
    valued: re.Pattern[str] = re.compile("(?!)")
    """Takes the next argument with it."""
    last: re.Pattern[str] = re.compile("--")


_PYTHON = _Options(
    script=re.compile("-[A-Za-z]*?c(.*)", re.S),
    valued=re.compile("-[A-Za-z]*[WX]|--check-hash-based-pycs"),
    last=re.compile("--|-[A-Za-z]*m.*"),
)
_PERL = _Options(script=re.compile("-(?![MmI])[A-Za-z0-9.]*?[eE](.*)", re.S), valued=re.compile("-I"))
_RUBY = _Options(script=re.compile("-(?![rICE])[A-Za-z0-9]*?e(.*)", re.S), valued=re.compile("-[rICE]"))
_NODE = _Options(
    script=re.compile("-[pe]+()|--(?:eval|print)(?:=(.*))?", re.S), valued=re.compile("-[rC]|--require|--import")
)
_PHP = _Options(script=re.compile("-[A-Za-z]*?[rBRE](.*)", re.S), valued=re.compile("-[cdz]"))
_OTHERS = _Options(script=re.compile("-e(.*)", re.S), valued=re.compile("-l"))
_ENV = _Options(
    script=re.compile("-[A-Za-z0-9]*?S(.*)|--split-string(?:=(.*))?", re.S),
    valued=re.compile("-[uCPa]|--unset|--chdir"),
)
_LANGUAGES = {
    **dict.fromkeys(("python", "pypy"), _PYTHON),
    **dict.fromkeys(("node", "nodejs", "bun"), _NODE),
    **dict.fromkeys(("lua", "osascript", "Rscript"), _OTHERS),
    "perl": _PERL,
    "php": _PHP,
    "ruby": _RUBY,
}
_SHELLS = frozenset(
    {"sh", "bash", "rbash", "dash", "ash", "zsh", "ksh", "mksh", "pdksh", "yash", "csh", "tcsh", "fish"}
)
_SHELL_VALUED = re.compile("[-+][A-Za-z]*[oO][A-Za-z]*|--rcfile|--init-file")
_VERSION = re.compile(r"[-.\d]*$")


def script_of_caller(parts: Sequence[Part]) -> str | None:
    """The script that contains a `{param}`; None when there is no such thing."""
    return next((script.template for script in _scripts(list(parts)) if placeholders_in(script.template)), None)


def _scripts(parts: list[Part]) -> Iterator[Part]:
    for at, part in enumerate(parts):
        # What a caller names is no program: it is a file or a word that happens to be called like one.
        name = "" if placeholders_in(part.template) else _VERSION.sub("", os.path.basename(part.text))
        rest = parts[at + 1 :]
        if name == "env":
            yield from _scripts_of_env(rest)
        elif name in _SHELLS:
            yield from _scripts_of_shell(rest)
        elif name in _LANGUAGES:
            yield from (script for _, script in _scripts_of_options(_LANGUAGES[name], rest))


def _scripts_of_options(options: _Options, rest: list[Part]) -> Iterator[tuple[int, Part]]:
    """The scripts, each with the position of the argument it stands in."""
    at = 0
    while at < len(rest) and rest[at].text.startswith("-") and not options.last.fullmatch(rest[at].text):
        option = options.script.fullmatch(rest[at].text)
        attached = next(filter(None, option.groups()), "") if option else ""
        takes_next = options.valued.fullmatch(rest[at].text) or (option and not attached)
        if attached:
            yield at, rest[at]._replace(text=attached)
        elif option and at + 1 < len(rest):
            yield at + 1, rest[at + 1]
        at += 2 if takes_next else 1


def _scripts_of_env(rest: list[Part]) -> Iterator[Part]:
    """The text that `env -S` cuts into words, and what those words run together with the arguments that follow."""
    for at, text in _scripts_of_options(_ENV, rest):
        yield text
        with suppress(ValueError):  # env cannot cut it either
            yield from _scripts([*(Part(word, word) for word in shlex.split(text.text)), *rest[at + 1 :]])


def _scripts_of_shell(rest: list[Part]) -> Iterator[Part]:
    """A shell reads all its options first; then comes the script."""
    takes_script = is_value = are_over = False
    for part in rest:
        text = part.text
        if text.startswith(("-", "+")) and len(text) > 1 and not are_over:
            if text.startswith(("--command=", "--init-command=")):
                yield part
            is_long = text.startswith("--")
            takes_script |= text in ("--command", "--init-command") or (not is_long and "c" in text.lower())
            is_value = _SHELL_VALUED.fullmatch(text) is not None
            are_over = text == "--"
        elif is_value:
            is_value = False
        else:
            if takes_script:
                yield part
            return
