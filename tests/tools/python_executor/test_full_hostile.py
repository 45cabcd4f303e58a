"""Scripts that want out of a full Python, or more than their share: each ends with a reason, and harms nothing."""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ferrule.tools.python_executor.full import run_in_full_python
from ferrule.tools.python_executor.process import Command, run_process
from ferrule.tools.python_executor.script import Script
from tests.tools.python_executor.leftovers import gone, processes_with

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what holds scripts is Linux")

MARK = "4242.4242"
"""An argument by which processes are found again."""


@pytest.fixture
def asleep():
    """A process of ours, with a secret."""
    with subprocess.Popen(["sleep", "60"], env={"SECRET_TOKEN": "hunter2"}) as process:
        yield process
        process.kill()


async def run(isolation, code, seconds=None):
    config = isolation.config if seconds is None else replace(isolation.config, seconds=seconds)
    return await run_in_full_python(Script(code=code), config, isolation)


async def failure(isolation, code, seconds=None):
    ran = await run(isolation, code, seconds)
    assert ran.failure is not None, ran.value
    return ran.failure


# Out


@pytest.mark.parametrize(
    "code",
    [
        "open('/etc/passwd').read()",
        "open('/etc/shadow').read()",
        "open('/usr/escaped', 'w')",
        "open('/dev/escaped', 'w')",
        "open('/escaped', 'w')",
        "import os\nos.symlink('/etc', 'etc')\nopen('etc/passwd').read()",
        "import os\nos.link('/usr/bin/env', 'env')",
        "import os\nos.chroot('/usr')",
        "import os\nos.mknod('disk', 0o60666, os.makedev(254, 0))\nopen('disk', 'rb').read(1)",
        "open('/proc/sysrq-trigger', 'w')",
        "open('/proc/1/mem', 'rb').read(1)" if os.geteuid() else "open('/proc/kmsg').read()",
    ],
)
async def test_no_file_of_this_machine_is_reached(isolation, code):
    told = await failure(isolation, code)
    assert told.how == "raised" and told.message.startswith(("PermissionError", "OSError", "FileNotFoundError"))


async def test_files_of_ours_are_not_seen(isolation, tmp_path):
    (tmp_path / "secret.txt").write_text("hunter2")
    for path in (tmp_path / "secret.txt", Path(__file__), Path("/home"), Path("/var/log")):
        code = f"import os\nos.listdir({str(path)!r}) if os.path.isdir({str(path)!r}) else open({str(path)!r}).read()"
        told = await failure(isolation, code)
        assert told.message.startswith(("PermissionError", "FileNotFoundError")), path


async def test_no_network_is_reached(isolation):
    listening = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with listening:
        for code in (
            f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)",
            "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 53))",
            "import socket\nsocket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
            "import socket\nsocket.socket(socket.AF_VSOCK)",
        ):
            told = await failure(isolation, code)
            assert told.message == "PermissionError: [Errno 1] Operation not permitted"


async def test_no_program_is_reached_that_waits_for_datagrams(isolation):
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as waiting:
        Path(folder).chmod(0o755)
        waiting.bind(f"{folder}/log")
        Path(f"{folder}/log").chmod(0o777)
        waiting.setblocking(False)
        for kind in ("SOCK_DGRAM", "SOCK_RAW"):
            code = f"import socket\na, b = socket.socketpair(socket.AF_UNIX, socket.{kind})\n"
            await failure(isolation, f"{code}a.sendto(b'x', '{folder}/log')")
        with pytest.raises(BlockingIOError):
            waiting.recv(10)


async def test_no_other_process_is_reached(isolation, asleep):
    for target in (os.getpid(), asleep.pid, -1, "os.getppid()"):
        ran = await run(isolation, f"import os\nos.kill({target}, 9)\n'killed'")
        # Behind walls these are numbers of nobody, or of the first process there, which nobody kills from within.
        assert ran.failure is not None or (isolation.kind == "bubblewrap" and ran.value == "killed"), target
    assert asleep.poll() is None


async def test_the_environment_and_memory_of_others_are_not_read(isolation, asleep):
    code = f"""
import glob
seen, opened = "", []
for path in glob.glob("/proc/[0-9]*/environ") + ["/proc/{asleep.pid}/environ", "/proc/{os.getpid()}/environ"]:
    try:
        seen += open(path).read()
    except OSError:
        pass
for number in (1, {asleep.pid}, {os.getpid()}):
    try:
        open(f"/proc/{{number}}/mem", "r+b")
        opened.append(number)
    except OSError:
        pass
[opened, "hunter2" in seen]
"""
    assert (await run(isolation, code)).value == [[], False]


@pytest.mark.parametrize(
    "call",
    [
        "ptrace(16, 1, 0, 0)",
        "unshare(0x10000000)",
        "shmget(0, 1000000, 0o1600)",
        "mount(b'a', b'/tmp', b'tmpfs', 0, 0)",
    ],
)
async def test_calls_into_the_kernel_that_nobody_needs_are_refused(isolation, call):
    ran = await run(
        isolation, f"import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n[libc.{call}, ctypes.get_errno()]"
    )
    assert ran.value == [-1, 1]


async def test_a_script_has_no_rights_and_cannot_get_any(walls):
    code = (
        "import os\n[line.split() for line in open('/proc/self/status') if line.startswith(('CapEff', 'NoNewPrivs'))]"
    )
    assert (await run(walls, code)).value == [["CapEff:", "0" * 16], ["NoNewPrivs:", "1"]]
    told = await failure(walls, "import os\nos.setuid(0) if os.getuid() else os.setuid(1)")
    assert "PermissionError" in told.message or "OSError" in told.message


async def test_limits_cannot_be_lifted(isolation):
    told = await failure(isolation, "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))")
    assert "not allowed to raise maximum limit" in told.message
    ours = await failure(isolation, f"import resource\nresource.prlimit({os.getpid()}, resource.RLIMIT_NOFILE, (1, 1))")
    assert "Error" in ours.message


# More than their share


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time\ntime.sleep(1000)",
        "import signal\nfor s in (1, 2, 3, 15, 24): signal.signal(s, signal.SIG_IGN)\nwhile True: pass",
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "import threading, time\nfor _ in range(5): threading.Thread(target=time.sleep, args=(1000,)).start()",
    ],
)
async def test_a_script_without_end_is_stopped(isolation, code):
    assert (await failure(isolation, code, 0.7)).how == "timeout"


async def test_there_are_only_so_many_processes(isolation):
    code = """
import os, time
made = 0
try:
    while made < 200:
        if os.fork() == 0:
            time.sleep(1000)
        made += 1
except BlockingIOError:
    pass
made
"""
    assert (await run(isolation, code)).value <= isolation.config.processes


@pytest.mark.parametrize(
    "code",
    [
        "bytearray(10**10)",
        "x = []\nwhile True: x.append(bytearray(10**6))",
        "x = 'x'\nwhile True: x += x",
        "import mmap\nm = mmap.mmap(-1, 10**10)",
    ],
)
async def test_a_process_that_wants_all_memory_is_stopped(isolation, code):
    told = await failure(isolation, code)
    assert told.how == "memory" or "Cannot allocate memory" in told.message


@pytest.mark.parametrize("memory", ["bytearray(b'x') * 80_000_000", "mmap.mmap(-1, 80_000_000)"])
async def test_many_processes_have_no_more_memory_together(isolation, memory):
    code = f"""
import mmap, os, time
for _ in range(8):
    if os.fork() == 0:
        held = {memory}
        for at in range(0, 80_000_000, 4096):
            held[at] = 1
        time.sleep(1000)
time.sleep(1000)
"""
    assert (await failure(isolation, code)).how == "memory"


async def test_memory_that_belongs_to_no_process_is_refused(isolation):
    told = await failure(isolation, "import os\nos.memfd_create('x')")
    assert told.message == "PermissionError: [Errno 1] Operation not permitted"


async def test_a_flood_of_output_is_stopped(isolation):
    ran = await run(isolation, "while True: print('x' * 1_000)")
    assert ran.failure is not None and ran.failure.how == "printed" and len(ran.printed) == 20_000


async def test_a_flood_of_reports_is_stopped(isolation):
    code = """
import os
for number in range(3, 30):
    try:
        while True: os.write(number, b"[" * 10_000)
    except OSError: pass
"""
    ran = await run(isolation, code)
    assert ran.failure is not None and ran.failure.how == "result"


@pytest.mark.parametrize(
    "report", [b"[" * 5_000, b'{"result": ', b"9" * 10_000, b'{"error": 5}', b'{"error": "x", "lines": [[1]]}', b"\xff"]
)
async def test_a_report_that_a_script_wrote_itself_breaks_nothing(isolation, report):
    code = (
        f"import os\nfor fd in range(3, 30):\n    try: os.write(fd, {report!r})\n    except OSError: pass\nos._exit(0)"
    )
    assert (await failure(isolation, code)).how in ("broken", "raised")


async def test_a_result_that_nobody_could_write_down_is_not_taken(isolation):
    half = await run(isolation, "['half \\ud800', float('nan'), {'\\udfff': 1}]")
    assert half.value == ["half ?", None, {"?": 1}]
    assert "ValueError: ?" in (await failure(isolation, "raise ValueError('\\ud800')")).message
    deep = await failure(isolation, "a = 1\nfor _ in range(300): a = [a]\na")
    assert deep.how == "result" and "more than 100 deep" in deep.message


async def test_a_huge_result_is_not_taken(isolation):
    told = await failure(isolation, "'x' * 5_000_000")
    assert told.how == "result" and "5,000,002 bytes" in told.message
    doubled = "a = []\nfor _ in range(60): a = [a, a]\na"
    assert (await failure(isolation, doubled, 1.0)).how in ("timeout", "memory")


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("def f(n): return f(n + 1)\nf(0)", "raised"),
        ("import sys\nsys.setrecursionlimit(10**9)\ndef f(n): return f(n + 1)\nf(0)", "memory timeout broken"),
        ("import ctypes\nctypes.string_at(0)", "broken"),
        ("import os\nos._exit(7)", "broken"),
        ("eval('(' * 5_000)", "raised memory"),
    ],
)
async def test_a_python_that_breaks_is_told(isolation, code, how):
    assert (await failure(isolation, code, 1.0)).how in how


async def test_a_file_grows_only_so_far(isolation):
    for code in ("f = open('a', 'wb')\nwhile True: f.write(b'x' * 10**6)", "open('a', 'wb').truncate(10**12)"):
        assert "[Errno 27] File too large" in (await failure(isolation, code)).message


async def test_behind_walls_all_files_together_grow_only_so_far(walls):
    for folder in (".", "/dev/shm"):
        code = f"for n in range(10_000):\n    open(f'{folder}/{{n}}', 'wb').write(b'x' * 100_000)"
        assert "[Errno 28] No space left" in (await failure(walls, code)).message


# What is left


@pytest.mark.parametrize(
    "code",
    [
        f"import subprocess\nsubprocess.Popen(['sleep', '{MARK}'])\n1",
        f"import os\nif os.fork() == 0:\n    os.fork()\n    os.execvp('sleep', ['sleep', '{MARK}'])\n1",
        f"import os\nos.setpgid(0, 0)\nos.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', '{MARK}')\n1",
        f"import subprocess\nsubprocess.Popen(['sleep', '{MARK}'])\nimport ctypes\nctypes.string_at(0)",
        f"import subprocess\nsubprocess.Popen(['sleep', '{MARK}'])\nwhile True: pass",
        f"import subprocess\nfor _ in range(5): subprocess.Popen(['setsid', 'sleep', '{MARK}'])\n1",
        f"import subprocess\nsubprocess.Popen(['nohup', 'sleep', '{MARK}'], start_new_session=True)",
    ],
)
async def test_no_process_is_left(isolation, code):
    await run(isolation, code, 1.0)
    assert gone(lambda: processes_with(MARK))


async def test_a_cancelled_script_is_killed_with_all_it_started(isolation):
    code = f"import subprocess\nsubprocess.Popen(['sleep', '{MARK}'])\nwhile True: pass"
    running = asyncio.create_task(run(isolation, code, 60.0))
    while not processes_with(MARK):
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert gone(lambda: processes_with(MARK))


def test_a_script_ends_with_who_started_it(walls):
    code = f"import subprocess\nsubprocess.Popen(['sleep', '{MARK}'])\nwhile True: pass"
    starter = f"""
import subprocess, sys
process = subprocess.Popen({walls.arguments()!r}, stdin=subprocess.PIPE, env={{}}, start_new_session=True)
process.stdin.write(sys.stdin.buffer.read())
process.stdin.close()
process.wait()
"""
    job = walls.job(Script(code=code), "/tmp", None if os.geteuid() else 1_900_000_001)(0)
    with subprocess.Popen([sys.executable, "-c", starter], stdin=subprocess.PIPE) as started:
        assert started.stdin is not None
        started.stdin.write(job)
        started.stdin.close()
        while not processes_with(MARK):
            time.sleep(0.01)
        started.kill()
    assert gone(lambda: processes_with(MARK))


async def test_no_folder_is_left(limits, monkeypatch):
    code = """
import os
for _ in range(1_200):
    os.mkdir("deep")
    os.chdir("deep")
os.mkdir("closed")
os.chmod("closed", 0)
os.symlink("/etc", "link")
"""
    with tempfile.TemporaryDirectory(dir="/tmp") as around:
        Path(around).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", around)
        ran = await run(limits, code)
        assert ran.failure is None and list(Path(around).iterdir()) == []


async def test_as_the_same_user_a_script_still_reaches_nobody(limits, asleep):
    """Where Ferrule is not root it can make nobody else of its scripts."""
    if not limits.has_landlock:
        pytest.skip("this kernel has no Landlock, which keeps a script of the same user from its files")
    code = f"""
import os
said = []
for attempt in (
    lambda: os.kill({asleep.pid}, 0),
    lambda: os.kill({os.getpid()}, 0),
    lambda: open("/proc/{asleep.pid}/environ").read(),
    lambda: open("/etc/passwd").read(),
    lambda: open({str(Path(__file__))!r}).read(),
    lambda: open("/tmp/escaped", "w"),
    lambda: __import__("fcntl").fcntl(0, 8, {os.getpid()}),
):
    try:
        said.append(repr(attempt()))
    except OSError as error:
        said.append(type(error).__name__)
said
"""
    with tempfile.TemporaryDirectory() as folder:
        ended = await run_process(
            Command(
                arguments=limits.arguments(),
                environment=limits.environment(folder),
                stdin=limits.job(Script(code=code), folder, None),
                seconds=5,
                memory=300_000_000,
                printed=1_000,
                reported=10_000,
                has_keeper=False,
            )
        )
    assert ended.report == b'{"result": [' + b", ".join([b'"PermissionError"'] * 7) + b"]}", ended


async def test_as_the_same_user_a_script_slows_and_ends_nobody(limits, asleep):
    code = f"""
import fcntl, os, socket, struct, time
def send_signal():
    near, far = socket.socketpair()
    fcntl.ioctl(near, 0x8901, struct.pack("i", {asleep.pid}))
    fcntl.fcntl(near, fcntl.F_SETFL, os.O_ASYNC)
    far.send(b"x")
    time.sleep(0.2)
said = []
for attempt in (
    lambda: os.setpriority(os.PRIO_PROCESS, {asleep.pid}, 19),
    lambda: os.sched_setaffinity({asleep.pid}, [0]),
    lambda: os.sched_setscheduler({asleep.pid}, os.SCHED_IDLE, os.sched_param(0)),
    send_signal,
):
    try:
        said.append(repr(attempt()))
    except OSError as error:
        said.append(type(error).__name__)
said
"""
    alike = replace(limits, has_landlock=False)
    with tempfile.TemporaryDirectory() as folder:
        ended = await run_process(
            Command(
                arguments=alike.arguments(),
                environment=alike.environment(folder),
                stdin=alike.job(Script(code=code), folder, None),
                seconds=5,
                memory=300_000_000,
                printed=1_000,
                reported=10_000,
                has_keeper=False,
            )
        )
    assert ended.report == b'{"result": [' + b", ".join([b'"PermissionError"'] * 4) + b"]}", ended
    assert asleep.poll() is None
