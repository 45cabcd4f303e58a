"""Programs that are made by a process that has loaded Ferrule behave like those of a new interpreter."""

import os
import signal
import subprocess
import sys

import pytest

from tests.support.processes import PythonProcess, forwarded_python, run_python
from tests.support.waiting import is_running, until_sync

pytestmark = pytest.mark.integration

PROGRAM = """
import atexit, os, sys, threading
atexit.register(print, "at exit")
thread = threading.Thread(target=sys.stdout.write, args=("thread\\n",))
thread.start()
sys.stdout.write(f"{{os.getcwd(), sys.argv, sys.stdin.read(), os.environ.get('COLOUR'), __name__, sys.path[0]}}\\n")
print("an error", file=sys.stderr)
sys.stdout.flush()
{end}
"""
ENDS = [
    "pass",
    "sys.exit(7)",
    "sys.exit('no')",
    "sys.exit(None)",
    "raise ValueError('wrong')",
    "thread.join(); sys.stdout.flush(); os.kill(os.getpid(), 9)",
]


@pytest.mark.parametrize("end", ENDS)
def test_streams_folder_environment_and_end_are_those_of_a_new_interpreter(end, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM.format(end=end))
    env = {**os.environ, "COLOUR": "red"}
    new = subprocess.run(
        [sys.executable, "program.py", "a b"], cwd=tmp_path, env=env, input="text", capture_output=True, text=True
    )
    made = run_python("program.py", "a b", cwd=tmp_path, env=env, stdin="text")
    assert (made.returncode, sorted(made.stdout.splitlines())) == (new.returncode, sorted(new.stdout.splitlines()))
    assert made.stderr.splitlines()[:1] == new.stderr.splitlines()[:1] == ["an error"]
    assert made.stderr.splitlines()[-1:] == new.stderr.splitlines()[-1:]


def test_a_program_is_signalled_and_its_end_is_seen(tmp_path):
    (tmp_path / "program.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(600)\n")
    with (tmp_path / "output").open("w+") as output, open(os.devnull) as nothing:
        process = PythonProcess("program.py", cwd=tmp_path, stdin=nothing, stdout=output, stderr=output)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)  # it does not end by itself
        assert process.poll() is None and is_running(process.pid)
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == process.poll() == -signal.SIGKILL and not is_running(process.pid)


def test_a_process_that_a_failed_test_leaves_is_ended(tmp_path):
    with (tmp_path / "output").open("w+") as output, open(os.devnull) as nothing:
        process = PythonProcess(
            *("-c", "import time; time.sleep(600)"), cwd=tmp_path, stdin=nothing, stdout=output, stderr=output
        )
    pid, connection = process.pid, process.connection
    assert is_running(pid)
    del process
    assert connection.fileno() == -1
    until_sync(lambda: not is_running(pid))


def test_a_text_is_a_program(tmp_path):
    done = run_python("-c", "import sys; print(sys.argv, __name__)", "a", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("['-c', 'a'] __main__\n", "")


def test_a_module_of_the_folder_comes_first(tmp_path):
    (tmp_path / "own.py").write_text("import other\nprint(other.__file__)\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/other.py").touch()
    done = run_python("-m", "own", cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "elsewhere")})
    assert (done.stdout, done.stderr) == (f"{tmp_path / 'elsewhere/other.py'}\n", "")


def test_a_program_can_be_started_by_another_program(tmp_path):
    (tmp_path / "program.py").write_text("import sys\nprint(sys.argv, input())\nsys.exit(7)\n")
    with forwarded_python() as python:
        command = [*python, "program.py", "a b"]
        done = subprocess.run(command, input="text", cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("['program.py', 'a b'] text\n", "", 7)
