import asyncio
import json
import logging
import os
import re
import shlex
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ferrule.core.call import Progress
from ferrule.errors import ExecutionFailed, Retry, SetupError
from ferrule.kinds.command import CommandExecutor, build_command_line
from ferrule.process.groups import end_process_group
from tests.kinds.invocations import invocation
from tests.support.waiting import until

pytestmark = pytest.mark.integration

SHOW = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))"]
"""Prints its arguments."""


async def run(command: list[Any], *, config: dict[str, Any] | None = None, **params: Any) -> Any:
    return await CommandExecutor().execute(invocation(params, {"command": command, **(config or {})}))


async def cancel_when(condition: Callable[[], bool], command: list[Any], *, grace: float = 600) -> None:
    """End a running command as the engine does when its time-out comes."""
    call = asyncio.create_task(CommandExecutor(grace=grace).execute(invocation({}, {"command": command})))
    await until(condition)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


WRITE_WITHOUT_END = 'while :; do sleep 0.01; echo x >> "$1/late"; done'
"""What a command would still do if it were not ended."""


def polled(times: int) -> Callable[[], bool]:
    """A condition that is true when it has been asked so often: somewhere in the start of a command."""
    remaining = iter(range(times))
    return lambda: next(remaining, None) is None


def processes_with(word: str) -> list[str]:
    """Every process that has the word in its command line."""
    processes = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just gone
            if word.encode() in file.read_bytes():
                processes.append(file.parent.name)
    return processes


def children() -> set[str]:
    """Processes this one has started, zombies too."""
    processes = set()
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            _, parent, *_ = file.read_text(errors="replace").rpartition(")")[2].split()
            if parent == str(os.getpid()):
                processes.add(file.parent.name)
    return processes


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    before = children()
    yield
    assert children() <= before


def shell(script: str, *arguments: str) -> list[str]:
    return ["sh", "-c", script, "sh", *arguments]


async def test_json_that_is_printed_is_the_result_and_so_is_any_other_text():
    assert await run(["echo", '{"a": [1, 123456789012345678901]}']) == {"a": [1, 123456789012345678901]}
    assert await run(["echo", "[1, 2]"]) == [1, 2]
    for text in ("你好", "42", "{broken"):
        assert await run(["echo", text]) == text


async def test_a_value_is_text_of_one_argument_and_no_shell_reads_it():
    value = "a b; rm -rf / $(id) `id` 'x' \"y\" *\n"
    assert await run([*SHOW, "{text}", "--text={text}"], text=value) == [value, f"--text={value}"]


async def test_values_that_are_not_text_are_written_as_json():
    got = await run([*SHOW, "{n}", "{on}", "{many}"], n=1.5, on=True, many=["a", 1])
    assert got == ["1.5", "true", '["a",1]']


async def test_items_without_a_value_are_left_out():
    command = [*SHOW, "{a}", ["--limit", "{limit}"], "--page={page}", "end"]
    assert await run(command, a=None) == ["end"]
    assert await run(command, a="x", limit=-5, page=2) == ["x", "--limit", "-5", "--page=2", "end"]


@pytest.mark.parametrize(
    "command",
    [["rm", "-f", "{path}"], ["rm", "{path}.txt"], ["rm", ["-w", "80", "{path}"]], ["rm", "${FERRULE_UNSET:-}{path}"]],
)
async def test_a_value_cannot_become_an_option(command):
    with pytest.raises(Retry, match=r"'path' begins with '-'.*'\./'"):
        await run(command, path="--no-preserve-root")


async def test_after_two_dashes_a_value_may_begin_with_one():
    assert await run([*SHOW, "--", "{path}"], path="-x") == ["--", "-x"]


async def test_parameters_not_named_are_read_from_standard_input():
    got = await run([sys.executable, "-c", "print(input())"], city="北京", days=3, nothing=None)
    assert got == {"city": "北京", "days": 3}


async def test_standard_input_can_be_a_text_with_values_or_empty_or_not_read():
    assert await run(["cat"], config={"stdin": "hello {name}"}, name="you", other=1) == "hello you"
    assert await run(["cat"]) == ""
    assert await run(["true"], text="x" * 1_000_000) == ""


async def test_a_program_gets_a_small_environment_without_secrets(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "s")
    monkeypatch.setenv("LC_TIME", "C")
    got = await run(["env"], config={"env": {"CITY": "{city}", "KEY": "k-${SECRET_TOKEN}"}}, city="北京")
    assert {"CITY=北京", "KEY=k-s", "LC_TIME=C", f"PATH={os.environ['PATH']}"} <= set(got.splitlines())
    assert "SECRET_TOKEN=" not in got


async def test_a_program_can_inherit_the_whole_environment_and_runs_in_its_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("SECRET_TOKEN", "s")
    assert "SECRET_TOKEN=s" in (await run(["env"], config={"inherit_env": True}))
    assert await run(["pwd"], config={"cwd": str(tmp_path)}) == f"{tmp_path}"


@pytest.mark.parametrize(
    ("script", "message", "details"),
    [
        ("echo no such file >&2; exit 3", r"'sh' ended with exit code 3: no such file", {"exit_code": 3}),
        ("exit 1", r"'sh' ended with exit code 1\.$", {"exit_code": 1}),
        ("kill -9 $$", r"was ended by signal 9 \(Killed\)", {"exit_code": -9}),
    ],
)
async def test_a_failing_program_tells_its_code_or_signal_and_what_it_said(script, message, details):
    with pytest.raises(ExecutionFailed, match=message) as failed:
        await run(shell(script))
    assert failed.value.details == details


async def test_of_a_long_complaint_the_end_is_told():
    with pytest.raises(ExecutionFailed) as failed:
        await run(shell("seq 100000 >&2; echo the reason >&2; exit 1"))
    assert str(failed.value).endswith("100000\nthe reason")
    assert len(str(failed.value)) < 2_500


@pytest.mark.parametrize(
    ("command", "cwd", "message"),
    [
        (["no-such-program-anywhere"], None, "was not found. Install it"),
        (["/etc/passwd"], None, "Is it a program, and executable"),
        (["true"], "/no/such/folder", "the directory '/no/such/folder'"),
    ],
)
async def test_a_program_that_cannot_be_started_is_explained(command, cwd, message):
    with pytest.raises(ExecutionFailed, match=message):
        await run(command, config={"cwd": cwd})


async def test_text_no_argument_can_hold_is_refused():
    for value in ("a\0b", "\ud800"):
        with pytest.raises(Retry, match="cannot contain NUL"):
            await run(["echo", "{text}"], text=value)
    with pytest.raises(Retry, match="too long for a command line"):
        await run(["echo", "{text}"], text="x" * 10_000_000)


@pytest.mark.parametrize("command", [None, [], "echo hi", [["echo"]]])
def test_a_command_is_a_list(command):
    with pytest.raises(SetupError, match="must be a list"):
        build_command_line({"command": command}, {}, {})


def test_the_program_cannot_be_chosen_by_the_caller():
    with pytest.raises(SetupError, match="the program of a command is fixed"):
        build_command_line({"command": ["{program}", "x"]}, {"program": "rm"}, {})


def test_a_script_cannot_come_from_the_caller_however_it_is_handed_over():
    for line in """
        /bin/bash -c 'grep {word} x'
        env zsh -lc 'grep {word} x'
        bash -c {word}
        bash -ce 'echo {word}'
        sh -c -- 'echo {word}'
        bash -c -e 'echo {word}'
        bash -euo pipefail -c {word}
        tcsh -fc {word}
        bash -c -o pipefail {word}
        timeout 5 mksh -c {word}
        ${SHELL} -c {word}
        env -S "sh -c 'echo {word}'"
        env -iS'sh -c' {word}
        env -S 'sh -c' 'echo {word}'
        python3.12 -c "print('{word}')"
        python -I -W error -c {word}
        python3 -c{word}
        perl -Mstrict -ne "print '{word}'"
        perl -e 1 -e {word}
        ruby -rjson -e {word}
        node -pe "'{word}'"
        node --eval={word}
        php -r {word}
        fish --command={word}
    """.strip().splitlines():
        assert_refused_as_code(shlex.split(line))
    assert_refused_as_code(["sh", ["-c", "grep {word} x"]])


def assert_refused_as_code(command: list[Any]) -> None:
    try:
        build_command_line({"command": command}, {"word": "$(id)"}, {"SHELL": "/bin/bash"})
    except SetupError as error:
        assert "would be run as code" in str(error), command
    else:
        pytest.fail(f"{command} was not refused")


def test_what_only_looks_like_a_script_may_come_from_the_caller():
    for command in """
        sh -c 'echo "$1"' sh {word}
        bash run.sh -c {word}
        sh -- {word}
        python tool.py -c {word}
        python -m tool -c {word}
        python -c 1 {word}
        env A=1 git log -S {word}
        grep -c {word} sh
        perl -Mre {word}
        lint {language} -e {word}
        node app.js -e {word}
    """.strip().splitlines():
        params = {"word": "notes", "language": "perl"}
        assert "notes" in build_command_line({"command": shlex.split(command)}, params, {}).arguments, command


def test_whoever_wants_to_run_code_hands_it_over_on_standard_input():
    config = {"command": ["bash", "-s"], "stdin": "{script}"}
    assert build_command_line(config, {"script": "ls | wc"}, {}).stdin == b"ls | wc"


async def test_too_much_output_ends_the_program():
    executor = CommandExecutor(max_output=1000)
    with pytest.raises(ExecutionFailed, match="wrote more than 1,000 bytes and was ended"):
        await executor.execute(invocation({}, {"command": ["yes"]}))


async def test_output_of_any_size_below_the_limit_arrives_whole():
    text = await run([sys.executable, "-c", "print('x' * 3_000_000)"])
    assert len(text) == 3_000_000


async def test_values_of_variables_do_not_come_back(monkeypatch, caplog):
    monkeypatch.setenv("TEST_API_KEY", "s3cret/k3y")
    monkeypatch.setenv("HOME", "/home/somebody")
    reports: list[Progress] = []
    script = 'echo "$KEY $1"; echo "$KEY" >&2'
    config = {"command": [*shell(script), "${HOME}"], "env": {"KEY": "${TEST_API_KEY}"}, "stream": True}
    with caplog.at_level(logging.INFO, "ferrule.kinds"):
        result = await CommandExecutor().execute(invocation({}, config, reports))
    assert result == reports[0].message == "[redacted] /home/somebody"
    assert "stderr: [redacted]" in caplog.text


async def test_values_of_variables_show_neither_in_json_nor_in_complaints(monkeypatch):
    monkeypatch.setenv("TEST_API_KEY", "s3cret/k3y")
    echo = ["echo", '{"${TEST_API_KEY}": ["a ${TEST_API_KEY} b", 5]}']
    assert await run(echo) == {"[redacted]": ["a [redacted] b", 5]}
    with pytest.raises(ExecutionFailed) as failed:
        await run([*shell('printf %1995s "" >&2; echo "$1" >&2; exit 3'), "${TEST_API_KEY}"])
    assert str(failed.value).endswith("[redacted]") and "s3c" not in str(failed.value)


async def test_lines_are_reported_while_the_program_runs():
    reports: list[Progress] = []
    config = {"command": shell("echo one; echo two; printf three"), "stream": True}
    await CommandExecutor().execute(invocation({}, config, reports))
    assert [progress.message for progress in reports] == ["one", "two", "three"]


async def test_what_a_program_says_on_stderr_is_logged(caplog):
    with caplog.at_level(logging.INFO, "ferrule.kinds"):
        await run(shell("echo careful >&2"))
    assert "tool=<it>, call=<call-1> | stderr: careful" in caplog.text


@pytest.mark.parametrize("script", ["yes", "yes ''", "tr '\\0' x < /dev/zero"])
async def test_of_stderr_only_the_beginning_is_logged(script, caplog):
    with caplog.at_level(logging.INFO, "ferrule.kinds"):
        assert await run(shell(f"{script} | head -c 6000000 >&2; echo done")) == "done"
    assert len(caplog.text) < 2_000_000 and len(caplog.records) <= 1001
    assert re.search(r"stderr: \[[45],\d{3},\d{3} more bytes, which are not logged\]$", caplog.text.rstrip())


async def test_cancelled_commands_never_do_the_rest_of_their_work(tmp_path):
    command = shell(f"sleep 600 & {WRITE_WITHOUT_END}", str(tmp_path))
    for start in (0, 10):
        await asyncio.gather(*(cancel_when(polled(start + n), command) for n in range(10)))
        assert processes_with(str(tmp_path)) == []


STARTERS = {
    "children": f'for i in 1 2; do sh -c \'touch "$1/begun$2"; {WRITE_WITHOUT_END}\' sh "$1" $i & done; wait',
    "without a parent": f'(sh -c \'touch "$1/begun1" "$1/begun2"; {WRITE_WITHOUT_END}\' sh "$1" &); sleep 600',
    "ignore SIGTERM": f'trap "" TERM HUP INT; touch "$1/begun1"; (touch "$1/begun2"; {WRITE_WITHOUT_END}) & wait',
    "timeout": f'timeout 600 sh -c \'touch "$1/begun1" "$1/begun2"; {WRITE_WITHOUT_END}\' sh "$1"',
    "job control": f'set -m; (touch "$1/begun1" "$1/begun2"; {WRITE_WITHOUT_END}) & wait',
}


@pytest.mark.parametrize("starter", STARTERS)
async def test_everything_that_a_command_has_started_ends_when_it_is_cancelled(starter, tmp_path):
    command = ["bash", "-c", STARTERS[starter], "bash", str(tmp_path)]
    has_begun = lambda: len(list(tmp_path.glob("begun*"))) == 2  # noqa: E731
    await cancel_when(has_begun, command, grace=0.1 if starter == "ignore SIGTERM" else 600)
    assert processes_with(str(tmp_path)) == []


async def test_a_command_may_tidy_up_when_it_is_asked_to_end(tmp_path):
    script = 'trap \'echo yes > "$1/tidied"; exit\' TERM; sleep 600 & echo > "$1/ready"; wait'
    await cancel_when((tmp_path / "ready").exists, shell(script, str(tmp_path)))
    assert (tmp_path / "tidied").read_text() == "yes\n"


async def test_background_children_do_not_outlive_a_command_that_succeeded(tmp_path):
    assert await run(shell(f"({WRITE_WITHOUT_END}) & echo done", str(tmp_path))) == "done"
    assert processes_with(str(tmp_path)) == []


async def test_a_process_that_left_the_group_and_holds_the_pipes_is_not_waited_for():
    leave = "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)"
    result = await asyncio.wait_for(run([sys.executable, "-c", leave], text="x" * 1_000_000), 120)
    is_asleep = "sleep" in Path(f"/proc/{int(result)}/cmdline").read_text()
    os.kill(int(result), signal.SIGKILL)
    assert is_asleep  # it was still there: leaving the group means leaving our care


async def test_a_second_cancellation_does_not_cut_the_ending_short(tmp_path):
    script = "trap '' TERM; echo > \"$1/ready\"; while :; do sleep 0.01; done"
    config = {"command": shell(script, str(tmp_path))}
    call = asyncio.create_task(CommandExecutor(grace=0.2).execute(invocation({}, config)))
    await until((tmp_path / "ready").exists)
    for _ in range(3):
        call.cancel()
        await asyncio.sleep(0.02)  # it is being ended, or has ended
    with pytest.raises(asyncio.CancelledError):
        await call
    assert processes_with(str(tmp_path)) == []


async def test_a_group_that_is_gone_already_is_ended_at_once():
    process = await asyncio.create_subprocess_exec("true", start_new_session=True)
    await process.wait()
    await asyncio.wait_for(end_process_group(process.pid, grace=600), 60)
    assert process.returncode == 0


async def test_a_group_is_ended_whoever_started_it():
    script = "trap '' TERM; echo ready; sleep 600 & wait"
    process = await asyncio.create_subprocess_exec("sh", "-c", script, start_new_session=True, stdout=PIPE)
    assert process.stdout is not None and await process.stdout.readline() == b"ready\n"
    await end_process_group(process.pid, grace=0.05)
    assert await process.wait() == -signal.SIGKILL


async def test_json_on_standard_input_is_one_object():
    line = build_command_line({"command": ["x", "{a}"]}, {"a": 1, "b": {"c": [2]}}, {})
    assert json.loads(line.stdin or b"") == {"b": {"c": [2]}}
