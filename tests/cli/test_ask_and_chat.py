"""Asking and chatting at a terminal, on the offline model: real processes, a real pseudo-terminal."""

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ferrule import ToolKnowledgeStore
from ferrule.agent.run import lock_run
from ferrule.memory.conversation import Turn
from ferrule.orchestrator.orchestrator import history_as_messages
from tests.cli.commands import RunningCommand, Terminal, environment, ferrule, trusted
from tests.models.model_server import answer_chat
from tests.support.http_servers import HANG, AnyAnswer, Request, serve_http_in_thread
from tests.support.processes import forwarded_python, run_python
from tests.support.waiting import until_sync

pytestmark = pytest.mark.integration


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A project with a tool that destroys things, a slow one and a broken one."""
    (tmp_path / "ferrule.toml").write_text('[store]\nurl = "sqlite:///calls.db"\n')
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/shop.py").write_text(
        "import asyncio, pathlib\n"
        "from ferrule import tool\n\n"
        "@tool(destructive=True)\n"
        "async def delete_order(number: int) -> str:\n"
        '    """Delete an order by its number."""\n'
        "    pathlib.Path('deleted').write_text(str(number))\n"
        "    return f'order {number} is deleted'\n\n"
        "@tool\n"
        "async def brew_coffee(cups: int) -> str:\n"
        '    """Brew coffee."""\n'
        "    await asyncio.Event().wait()\n"
        "    return 'ready'\n\n"
        "@tool(read_only=True)\n"
        "async def find_invoice(number: int) -> str:\n"
        '    """Find an invoice by its number."""\n'
        "    raise ValueError(f'invoice {number} not found')\n"
    )
    return trusted(tmp_path)


def test_questions_are_answered_without_any_key(tmp_path: Path):
    done = ferrule("ask", "what is 15% of 80?", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "15% of 80 is 12.\n", "· calculator 15% * 80\n")
    continued = ferrule("ask", "-q", "--continue", "what did I ask?", cwd=tmp_path)
    assert (continued.stdout, continued.stderr) == ("Your last question was: what is 15% of 80?\n", "")
    negative = ferrule("ask", "-q", "-5 + 12", cwd=tmp_path)
    assert (negative.returncode, negative.stdout) == (0, "-5 + 12 = 7\n")
    piped = ferrule("ask", "-", "--json", cwd=tmp_path, stdin="what is 2 + 2?\n")
    without_dash = ferrule("ask", "-q", cwd=tmp_path, stdin="what is 3 + 3?\n")
    assert (without_dash.returncode, without_dash.stdout) == (0, "3 + 3 = 6\n")
    answer = json.loads(piped.stdout)
    assert answer["state"] == "finished" and answer["steps"][0]["result"] == "4" and piped.stderr == ""


def test_as_many_decimals_are_printed_as_the_question_asks_for(tmp_path: Path):
    answers = {
        "round 3.14159265 to 5 decimals": "Round 3.14159265 to 5 decimals is 3.14159.\n",
        "what is 1/7 to 10 decimal places?": "1/7 to 10 decimal places is 0.1428571429.\n",
        "1/7 保留10位小数是多少？": "1/7保留10位小数是 0.1428571429。\n",
    }
    assert {question: ferrule("ask", "-q", question, cwd=tmp_path).stdout for question in answers} == answers


def test_files_of_the_project_are_read_or_the_tool_that_could_is_named(tmp_path: Path):
    assert ferrule("init", "shop", cwd=tmp_path).returncode == 0
    (tmp_path / "shop" / "笔记.txt").write_text("买牛奶")
    (tmp_path / "shop" / "sales.csv").write_text("item,price\na,3\n")
    reading = ferrule("ask", "-q", "笔记.txt 里写了什么？", cwd=tmp_path / "shop")
    assert (reading.returncode, reading.stdout) == (0, "买牛奶\n")
    listing = ferrule("ask", "-q", "这个文件夹里有什么文件？", cwd=tmp_path / "shop")
    assert (listing.returncode, "- 笔记.txt\n" in listing.stdout) == (0, True), listing.stdout
    total = ferrule("ask", "what is the total of price in sales.csv?", cwd=tmp_path / "shop")
    assert (total.returncode, "which could use data_analyzer__query for it" in total.stdout) == (9, True), total.stdout
    outside = ferrule("ask", "what is the total of price in sales.csv?", cwd=tmp_path)
    assert 'data_analyzer could do this: set [tools] workspace = "."' in outside.stdout + outside.stderr


@pytest.mark.parametrize("model", ["openai:gpt-5.4", "litellm:groq/llama-4-scout"])
def test_a_model_whose_package_is_missing_is_refused_also_for_small_talk(tmp_path: Path, model: str):
    command = f"import sys; sys.modules[{model.partition(':')[0]!r}] = None; from ferrule.cli import main; main()"
    done = run_python("-c", command, "ask", "-m", model, "hi", cwd=tmp_path, env=environment(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"The model {model!r} cannot be used: {model.partition(':')[0]} is not installed." in done.stderr


def test_wrong_usage_says_what_to_write(tmp_path: Path):
    nothing = ferrule("ask", cwd=tmp_path)
    assert nothing.returncode == 2 and "No question given" in nothing.stderr
    unknown = ferrule("ask", "hello", "--model", "opnai:gpt", cwd=tmp_path)
    assert unknown.returncode == 2 and "Did you mean 'openai'" in unknown.stderr
    wrong = ferrule("ask", "hello", "--strategy", "plann", cwd=tmp_path)
    assert wrong.returncode == 2 and "Did you mean 'plan'" in wrong.stderr
    missing = ferrule("ask", "-t", "calculater", "what is 2+2?", cwd=tmp_path)
    assert missing.returncode == 2 and "Did you mean 'calculator'" in missing.stderr
    gone = ferrule("ask", "--resume", "nope", "yes", cwd=tmp_path)
    assert gone.returncode == 2 and "There is no run 'nope'" in gone.stderr


def test_a_call_that_needs_leave_waits_until_it_is_given(shop: Path):
    waiting = ferrule("ask", "delete order number 7", cwd=shop)
    assert waiting.returncode == 8 and not (shop / "deleted").exists()
    run_id = re.search(r"runs resume (\w+) --approve", waiting.stderr)
    assert run_id is not None
    listed = ferrule("runs", "list", cwd=shop).stdout
    assert run_id[1] in listed and "waiting" in listed
    done = ferrule("ask", "--resume", run_id[1], "--approve", cwd=shop)
    assert done.returncode == 0 and (shop / "deleted").read_text() == "7"
    assert "order 7 is deleted" in ferrule("runs", "show", run_id[1], cwd=shop).stdout


def test_a_call_may_be_denied_or_agreed_to_beforehand(shop: Path):
    waiting = ferrule("ask", "delete order number 7", "--json", cwd=shop)
    run_id = json.loads(waiting.stdout)["run_id"]
    denied = ferrule("ask", "--resume", run_id, "--deny", cwd=shop)
    assert not (shop / "deleted").exists() and "refused" in denied.stdout + denied.stderr
    assert ferrule("ask", "--yes", "delete order number 8", cwd=shop).returncode == 0
    assert (shop / "deleted").read_text() == "8"


def test_what_failed_is_remembered_and_can_be_forgotten(shop: Path):
    ferrule("ask", "find invoice number 99", cwd=shop)
    listed = ferrule("failures", "list", cwd=shop).stdout
    assert "find_invoice" in listed and "not_found" in listed
    assert json.loads(ferrule("failures", "list", "--json", cwd=shop).stdout)[0]["tool_id"] == "find_invoice"
    assert ferrule("failures", "forget", "find_invoice", cwd=shop).stdout == "1 failure deleted.\n"
    assert "No failures are stored" in ferrule("failures", "list", cwd=shop).stdout


async def test_runs_can_be_looked_at_and_forgotten_unless_another_process_works_on_them(tmp_path: Path):
    ferrule("ask", "-q", "what is 3 * 3?", cwd=tmp_path)
    (listed,) = json.loads(ferrule("runs", "list", "--json", cwd=tmp_path).stdout)
    assert listed["task"] == "what is 3 * 3?" and listed["calls"] == 1
    history = json.loads(ferrule("runs", "show", listed["run_id"], "--json", cwd=tmp_path).stdout)
    assert [message["role"] for message in history] == ["system", "user", "assistant", "tool", "assistant"]
    store = ToolKnowledgeStore(f"sqlite:///{tmp_path}/state/ferrule/calls.db")
    async with store, lock_run(store, listed["run_id"]):
        refused = await asyncio.to_thread(ferrule, "runs", "forget", listed["run_id"], cwd=tmp_path)
    assert refused.returncode == 2 and "is in progress, here or in another process" in refused.stderr
    assert ferrule("runs", "forget", listed["run_id"], cwd=tmp_path).returncode == 0
    assert "No runs yet" in ferrule("runs", "list", cwd=tmp_path).stdout


def test_a_chat_reads_lines_and_commands(tmp_path: Path):
    lines = "what is 6 * 7?\n/history\n/tools\n/nonsense\n/model nonsense\n/new\n/history\n/quit\n"
    done = ferrule("chat", cwd=tmp_path, stdin=lines)
    assert done.returncode == 0 and "42" in done.stdout and "user: what is 6 * 7?" in done.stdout
    assert "calculator" in done.stdout and "Unknown command /nonsense." in done.stdout
    assert "Unknown model 'nonsense'" in done.stderr and "A new conversation." in done.stderr
    assert (tmp_path / "state/ferrule/chat_history").exists()


@pytest.fixture(scope="module")
def python() -> Iterator[list[str]]:
    with forwarded_python() as command:
        yield command


def test_two_questions_at_once_are_asked_one_after_the_other(shop: Path):
    (shop / "tools/more.py").write_text(
        "from ferrule import tool\n\n"
        "@tool(destructive=True)\n"
        "async def delete_customer(number: int) -> str:\n"
        '    """Delete a customer by the number."""\n'
        "    return f'customer {number} is deleted'\n"
    )
    terminal = Terminal("ask", "delete order number 7 and delete customer number 8", cwd=shop)
    terminal.wait_for("[y]es, or the reason for no:")
    terminal.type("y\n")
    terminal.wait_for("[y]es, or the reason for no:")
    terminal.type("y\n")
    terminal.wait_for("customer 8 is deleted")
    assert terminal.end() == 0 and (shop / "deleted").read_text() == "7"


def test_a_person_who_hangs_up_leaves_a_run_that_waits(shop: Path):
    terminal = Terminal("ask", "delete order number 7", cwd=shop)
    terminal.wait_for("[y]es, or the reason for no:")
    terminal.type("\x04")
    terminal.wait_for("--approve")
    assert terminal.end() == 8 and not (shop / "deleted").exists()


def test_a_pipe_that_nobody_reads_ends_the_run_quietly(tmp_path: Path, python: list[str]):
    command = f"{shlex.join(python)} -m ferrule ask -q 'what is 2 + 2?' | true"
    options: dict[str, Any] = {"cwd": tmp_path, "env": environment(tmp_path), "capture_output": True, "text": True}
    done = subprocess.run(["bash", "-c", command], check=False, **options)
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
    for run in json.loads(ferrule("runs", "list", "--json", cwd=tmp_path).stdout):
        assert (run["state"], run["reason"]) in (("finished", ""), ("interrupted", "it was cancelled"))


def test_ctrl_c_stops_the_turn_and_not_the_chat(shop: Path):
    terminal = Terminal("chat", cwd=shop)
    terminal.wait_for("> ")
    terminal.type("brew coffee for 2 cups\n")
    terminal.wait_for("brew_coffee")
    terminal.process.send_signal(signal.SIGINT)
    terminal.wait_for("Stopped.")
    terminal.type("what is 5 + 6?\n")
    terminal.wait_for("11")
    terminal.type("/quit\n")
    assert terminal.end() == 0


def test_half_a_character_is_shown_as_its_escape(tmp_path: Path):
    assert ferrule("call", "echo", 'message:="half \\ud800"', cwd=tmp_path).returncode == 0
    (shown,) = json.loads(ferrule("calls", "--json", cwd=tmp_path).stdout)
    assert shown["params"] == {"message": "half \ud800"}


def test_old_data_is_counted_and_deleted(tmp_path: Path):
    ferrule("ask", "-q", "what is 3 * 3?", cwd=tmp_path)
    expected = {"calls": 1, "runs": 1, "conversation_entries": 2, "failures": 0, "cached_answers": 1}
    expected |= {"model_replies": 0, "approvals": 0, "responses": 0, "tokens": 0, "artifacts": 0}
    for options in (["--dry-run"], []):
        cleaned = ferrule("store", "clean", "--older-than", "2999-01-01", "--json", *options, cwd=tmp_path)
        assert json.loads(cleaned.stdout) == expected
    again = ferrule("store", "clean", "--older-than", "0d", "--dry-run", cwd=tmp_path).stdout
    assert "runs: 0\n" in again and "Nothing was deleted: this was a dry run." in again
    wrong = ferrule("store", "clean", "--older-than", "soon", cwd=tmp_path)
    assert wrong.returncode == 2 and "--older-than takes 10m, 2h, 7d or a date" in wrong.stderr


def test_a_plan_is_shown_kept_and_exported(tmp_path: Path):
    done = ferrule("ask", "--strategy", "plan", "what is 6*7 and what is 5+5?", cwd=tmp_path)
    assert done.returncode == 0 and "42" in done.stdout and "10" in done.stdout
    assert "1. what is 6*7 [calculator]" in done.stderr and "✓ 1. " in done.stderr
    (listed,) = json.loads(ferrule("runs", "list", "--json", cwd=tmp_path).stdout)
    assert listed["calls"] == 2 and listed["state"] == "finished"
    shown = ferrule("runs", "show", listed["run_id"], cwd=tmp_path).stdout
    assert "assistant calls calculator" in shown
    (line,) = ferrule("runs", "export", cwd=tmp_path).stdout.splitlines()
    assert [m["role"] for m in json.loads(line)["messages"]] == ["user", *["assistant", "tool"] * 2, "assistant"]
    again = ferrule("runs", "resume", listed["run_id"], "-q", cwd=tmp_path)
    assert again.returncode == 0 and again.stdout == done.stdout


def test_a_tool_that_asks_the_user_asks_at_the_terminal(tmp_path: Path):
    terminal = Terminal("call", "ask_user", "question=Which colour?", 'options:=["red","blue"]', cwd=tmp_path)
    terminal.wait_for("one of red, blue")
    terminal.type("green\n")
    terminal.wait_for("one of")
    terminal.type("blue\n")
    terminal.wait_for('"answer": "blue"')
    assert terminal.end() == 0


def test_where_nobody_can_be_asked_the_tool_says_so(tmp_path: Path):
    done = ferrule("call", "ask_user", "question=Which colour?", cwd=tmp_path)
    assert done.returncode == 6 and "There is no terminal to ask in" in done.stderr


def test_a_question_that_is_stopped_says_how_to_go_on(shop: Path):
    terminal = Terminal("ask", "brew coffee for 2 cups", cwd=shop)
    terminal.wait_for("brew_coffee")
    terminal.process.send_signal(signal.SIGINT)
    terminal.wait_for("Stopped. Resume with: ferrule runs resume ")
    assert terminal.end() == 130
    (listed,) = json.loads(ferrule("runs", "list", "--json", cwd=shop).stdout)
    assert (listed["state"], listed["reason"]) == ("interrupted", "it was cancelled")
    shown = ferrule("runs", "show", listed["run_id"], cwd=shop).stdout
    assert f"run: interrupted (it was cancelled)\nResume with: ferrule runs resume {listed['run_id']}\n" in shown


def test_a_project_says_how_plans_are_done_and_what_answers_cost(tmp_path: Path):
    (tmp_path / "ferrule.toml").write_text(
        '[store]\nurl = "sqlite:///calls.db"\n[agent]\nworkflow = "langgraph"\nstrategy = "plan"\ninput_price = 1.0\n'
    )
    trusted(tmp_path)
    done = ferrule("ask", "--json", "what is 6*7 and what is 5+5?", cwd=tmp_path)
    said = json.loads(done.stdout)
    assert (done.returncode, said["strategy"], said["cost"]) == (0, "plan", 0.0)


def test_text_that_is_piped_or_attached_belongs_to_the_question(tmp_path: Path):
    (tmp_path / "a.txt").write_text("The dog ran. It barked.")
    piped = ferrule("ask", "-q", "summarize this", cwd=tmp_path, stdin="The cat sat. It slept.\n")
    assert (piped.returncode, piped.stdout) == (0, "The cat sat. It slept.\n")
    attached = ferrule("ask", "-q", "summarize this", "--attach", "a.txt", cwd=tmp_path)
    assert (attached.returncode, attached.stdout) == (0, "The dog ran. It barked.\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff")
    for name, reason in (("picture.png", "is not a text file"), ("missing.txt", "Cannot read missing.txt")):
        failed = ferrule("ask", "summarize this", "--attach", name, cwd=tmp_path)
        assert failed.returncode == 2 and reason in failed.stderr


def test_an_inherited_pipe_that_nobody_writes_to_does_not_hold_up_the_question(tmp_path: Path, python: list[str]):
    reading, writing = os.pipe()
    try:
        done = subprocess.run(
            [*python, "-m", "ferrule", "ask", "-q", "what is 2 + 2?"],
            cwd=tmp_path,
            stdin=reading,
            capture_output=True,
            text=True,
            timeout=120,
            env=environment(tmp_path),
        )
    finally:
        os.close(reading)
        os.close(writing)
    assert done.stdout == "2 + 2 = 4\n" and "without data" in done.stderr


def test_a_cached_answer_says_so_and_can_be_refused(tmp_path: Path):
    assert "calculator" in ferrule("ask", "what is 6 * 7?", cwd=tmp_path).stderr
    cached = ferrule("ask", "what is 6 * 7?", cwd=tmp_path)
    assert cached.stdout == "6 * 7 = 42\n" and "from the cache; --no-cache asks again" in cached.stderr
    again = ferrule("ask", "--no-cache", "what is 6 * 7?", cwd=tmp_path)
    assert again.stdout == "6 * 7 = 42\n" and "calculator" in again.stderr and "cache" not in again.stderr


def test_a_question_that_was_stopped_or_failed_is_not_part_of_the_conversation(tmp_path: Path):
    def answer(request: Request) -> AnyAnswer:
        return HANG if b"slow" in request.body else answer_chat("Fine.", request)

    command = ["ask", "-q", "-m", "openai:m"]
    with serve_http_in_thread(answer) as server:
        environ = {**environment(tmp_path), "OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "zz-key"}
        assert ferrule(*command, "a first question", cwd=tmp_path, env=environ).returncode == 0
        slow = RunningCommand(*command, "a slow question", cwd=tmp_path, env=environ)
        until_sync(lambda: any(b"slow" in request.body for request in server.requests))
        code, errors = slow.interrupt()
        assert code == 130 and "Stopped." in errors
        assert ferrule(*command, "--continue", "a last question", cwd=tmp_path, env=environ).returncode == 0
        messages = server.bodies[-1]["messages"]
    talk = [(message["role"], message["content"]) for message in messages[1:]]
    assert talk == [("user", "a first question"), ("assistant", "Fine."), ("user", "a last question")]
    assert history_as_messages([Turn(question="a question", answer="The server is down.", state="failed")]) == []


def test_output_that_cannot_be_written_is_told_in_one_line(tmp_path: Path, python: list[str]):
    for arguments in (["ask", "-q", "2 + 2"], ["tools", "list"], ["call", "echo", "message=x"]):
        with open("/dev/full", "w") as full:
            done = run_into(full, [*python, "-m", "ferrule", *arguments], tmp_path)
        lines = [line for line in done.stderr.splitlines() if line.startswith("ferrule: The output")]
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert lines == ["ferrule: The output cannot be written: No space left on device."]


def run_into(stdout: Any, command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    options: dict[str, Any] = {"cwd": cwd, "env": environment(cwd), "text": True, "timeout": 120}
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, **options)


def test_a_closed_pipe_ends_silently(tmp_path: Path, python: list[str]):
    for arguments in (["ask", "-q", "2 + 2"], ["tools", "list", "--json"], ["models"]):
        reading, writing = os.pipe()
        os.close(reading)
        done = run_into(writing, [*python, "-m", "ferrule", *arguments], tmp_path)
        os.close(writing)
        assert (done.returncode, done.stderr) == (141, "")


def test_a_long_text_is_written_whole_and_not_escaped(tmp_path: Path):
    (tmp_path / "ferrule.toml").write_text('[store]\nurl = "sqlite:///calls.db"\n')
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/big.py").write_text(
        "from ferrule import tool\n\n@tool(read_only=True)\ndef big() -> str:\n"
        '    """A long text."""\n    return \'one "line" of é\\n\' * 20_000\n'
    )
    trusted(tmp_path)
    text = 'one "line" of é\n' * 20_000
    assert ferrule("call", "big", cwd=tmp_path).stdout.rstrip() == text.rstrip()
    artifact = json.loads(ferrule("call", "big", "--json", cwd=tmp_path).stdout)["metadata"]["artifact_id"]
    assert ferrule("artifacts", "get", artifact, cwd=tmp_path).stdout.rstrip() == text.rstrip()
    assert ferrule("artifacts", "get", "nope", cwd=tmp_path).returncode == 2


def test_a_folder_that_is_gone_is_named_and_not_a_traceback(tmp_path: Path):
    program = Path(sys.executable).with_name("ferrule")
    command = f'mkdir "{tmp_path}/gone" && cd "{tmp_path}/gone" && rmdir "{tmp_path}/gone" && "{program}" ask "2 + 2"'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "ferrule: The folder you are in does not exist any more. Change to another one.\n"
