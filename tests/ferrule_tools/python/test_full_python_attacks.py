"""Scripts in a full Python that try to escape or to exceed their limits: each ends with a reason and harms nothing."""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from ferrule_tools.python.bubblewrap import run_in_full_python
from ferrule_tools.python.script import Script
from tests.ferrule_tools.python.processes import processes_with
from tests.support.waiting import until, until_sync

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap exists only on Linux"),
]

MARK = f"4242.{os.getpid()}"
"""An argument of `sleep` by which processes of this test run are found."""


@pytest.fixture
def asleep():
    """A process of ours, with a secret."""
    with subprocess.Popen(["sleep", "60"], env={"SECRET_TOKEN": "hunter2"}) as process:
        yield process
        process.kill()


async def run(bubblewrap, code, seconds=None):
    config = bubblewrap.config if seconds is None else replace(bubblewrap.config, seconds=seconds)
    return await run_in_full_python(Script(code=code), config, bubblewrap)


async def run_failing(bubblewrap, code, seconds=None):
    ran = await run(bubblewrap, code, seconds)
    assert ran.failure is not None, ran.value
    return ran.failure


# Isolation


async def failures_of(bubblewrap, attempts):
    """The errors of several attempts in one script, each by its own; "none" of one that succeeds."""
    code = f"""
errors = []
for attempt in {attempts!r}:
    try:
        exec(attempt, {{}})
        errors.append("none")
    except Exception as error:
        errors.append(f"{{type(error).__name__}}: {{error}}")
errors
"""
    return dict(zip(attempts, (await run(bubblewrap, code)).value, strict=True))


async def test_no_file_of_this_machine_is_reached(bubblewrap):
    attempts = [
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
    ]
    errors = await failures_of(bubblewrap, attempts)
    refused = ("PermissionError", "OSError", "FileNotFoundError")
    assert {code: error for code, error in errors.items() if not error.startswith(refused)} == {}


async def test_files_of_ours_are_not_seen(bubblewrap, tmp_path):
    (tmp_path / "secret.txt").write_text("hunter2")
    paths = [str(path) for path in (tmp_path / "secret.txt", Path(__file__), Path("/home"), Path("/var/log"))]
    look = "import os\nos.listdir({0!r}) if os.path.isdir({0!r}) else open({0!r}).read()"
    errors = await failures_of(bubblewrap, [look.format(path) for path in paths])
    assert all(error.startswith(("PermissionError", "FileNotFoundError")) for error in errors.values()), errors


async def test_no_network_is_reached(bubblewrap):
    listening = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    attempts = [
        f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)",
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 53))",
        "import socket\nsocket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        "import socket\nsocket.socket(socket.AF_VSOCK)",
    ]
    async with listening:
        errors = await failures_of(bubblewrap, attempts)
    assert set(errors.values()) == {"PermissionError: [Errno 1] Operation not permitted"}


async def test_no_local_datagram_socket_is_reached(bubblewrap):
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as waiting:
        Path(folder).chmod(0o755)
        waiting.bind(f"{folder}/log")
        Path(f"{folder}/log").chmod(0o777)
        waiting.setblocking(False)
        for kind in ("SOCK_DGRAM", "SOCK_RAW"):
            code = f"import socket\na, b = socket.socketpair(socket.AF_UNIX, socket.{kind})\n"
            await run_failing(bubblewrap, f"{code}a.sendto(b'x', '{folder}/log')")
        with pytest.raises(BlockingIOError):
            waiting.recv(10)


async def test_no_other_process_is_reached(bubblewrap, asleep):
    for target in (os.getpid(), asleep.pid, -1, "os.getppid()"):
        ran = await run(bubblewrap, f"import os\nos.kill({target}, 9)\n'killed'")
        # Behind bubblewrap these are numbers of nobody, or of the first process there, which nobody kills from within.
        assert ran.failure is not None or ran.value == "killed", target
    assert asleep.poll() is None


async def test_the_environment_and_memory_of_others_are_not_read(bubblewrap, asleep):
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
    assert (await run(bubblewrap, code)).value == [[], False]


async def test_dangerous_system_calls_are_refused(bubblewrap):
    calls = [
        "ptrace(16, 1, 0, 0)",
        "unshare(0x10000000)",
        "shmget(0, 1000000, 0o1600)",
        "mount(b'a', b'/tmp', b'tmpfs', 0, 0)",
    ]
    pairs = ", ".join(f"[libc.{call}, ctypes.get_errno()]" for call in calls)
    ran = await run(bubblewrap, f"import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n[{pairs}]")
    assert ran.value == [[-1, 1]] * len(calls)


async def test_a_script_has_no_rights_and_cannot_get_any(bubblewrap):
    code = (
        "import os\n[line.split() for line in open('/proc/self/status') if line.startswith(('CapEff', 'NoNewPrivs'))]"
    )
    assert (await run(bubblewrap, code)).value == [["CapEff:", "0" * 16], ["NoNewPrivs:", "1"]]
    failure = await run_failing(bubblewrap, "import os\nos.setuid(0) if os.getuid() else os.setuid(1)")
    assert "PermissionError" in failure.message or "OSError" in failure.message


async def test_limits_cannot_be_raised(bubblewrap):
    failure = await run_failing(bubblewrap, "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))")
    assert "not allowed to raise maximum limit" in failure.message
    ours = await run_failing(
        bubblewrap, f"import resource\nresource.prlimit({os.getpid()}, resource.RLIMIT_NOFILE, (1, 1))"
    )
    assert "Error" in ours.message


# Limits


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
async def test_an_endless_script_is_stopped(bubblewrap, code):
    assert (await run_failing(bubblewrap, code, 0.7)).kind == "timeout"


async def test_the_number_of_processes_is_limited(bubblewrap):
    code = """
import os, time
made = 0
try:
    while made < 200:
        if os.fork() == 0:
            time.sleep(1000)  # until it is killed
        made += 1
except BlockingIOError:
    pass
made
"""
    assert (await run(bubblewrap, code)).value <= bubblewrap.config.processes


@pytest.mark.parametrize(
    "code",
    [
        "bytearray(10**10)",
        "x = []\nwhile True: x.append(bytearray(10**6))",
        "x = 'x'\nwhile True: x += x",
        "import mmap\nm = mmap.mmap(-1, 10**10)",
    ],
)
async def test_the_memory_of_a_process_is_limited(bubblewrap, code):
    failure = await run_failing(bubblewrap, code)
    assert failure.kind == "memory" or "Cannot allocate memory" in failure.message


@pytest.mark.parametrize("memory", ["bytearray(b'x') * 80_000_000", "mmap.mmap(-1, 80_000_000)"])
async def test_the_memory_of_all_processes_together_is_limited(bubblewrap, memory):
    code = f"""
import mmap, os, time
for _ in range(8):
    if os.fork() == 0:
        held = {memory}
        for at in range(0, 80_000_000, 4096):
            held[at] = 1
        time.sleep(1000)  # until it is killed
time.sleep(1000)  # until it is killed
"""
    assert (await run_failing(bubblewrap, code)).kind == "memory"


async def test_memory_that_belongs_to_no_process_is_refused(bubblewrap):
    failure = await run_failing(bubblewrap, "import os\nos.memfd_create('x')")
    assert failure.message == "PermissionError: [Errno 1] Operation not permitted"


async def test_a_flood_of_output_is_stopped(bubblewrap):
    ran = await run(bubblewrap, "while True: print('x' * 1_000)")
    assert ran.failure is not None and ran.failure.kind == "printed" and len(ran.printed) == 20_000


async def test_a_flood_of_reports_is_stopped(bubblewrap):
    code = """
import os
for number in range(3, 30):
    try:
        while True: os.write(number, b"[" * 10_000)
    except OSError: pass
"""
    ran = await run(bubblewrap, code)
    assert ran.failure is not None and ran.failure.kind == "result"


async def test_a_forged_report_is_harmless(bubblewrap):
    for report in (
        b"[" * 5_000,
        b'{"result": ',
        b"9" * 10_000,
        b'{"error": 5}',
        b'{"error": "x", "lines": [[1]]}',
        b"\xff",
    ):
        write = f"import os\nfor fd in range(3, 30):\n    try: os.write(fd, {report!r})\n    except OSError: pass\n"
        assert (await run_failing(bubblewrap, write + "os._exit(0)")).kind in ("broken", "raised"), report


async def test_a_result_that_is_not_valid_json_is_converted_or_refused(bubblewrap):
    half = await run(bubblewrap, "['half \\ud800', float('nan'), {'\\udfff': 1}]")
    assert half.value == ["half ?", None, {"?": 1}]
    assert "ValueError: ?" in (await run_failing(bubblewrap, "raise ValueError('\\ud800')")).message
    deep = await run_failing(bubblewrap, "a = 1\nfor _ in range(300): a = [a]\na")
    assert deep.kind == "result" and "more than 100 deep" in deep.message


async def test_a_huge_result_is_refused(bubblewrap):
    failure = await run_failing(bubblewrap, "'x' * 5_000_000")
    assert failure.kind == "result" and "5,000,002 bytes" in failure.message
    doubled = "a = []\nfor _ in range(60): a = [a, a]\na"
    assert (await run_failing(bubblewrap, doubled, 1.0)).kind in ("timeout", "memory")


@pytest.mark.parametrize(
    ("code", "kinds"),
    [
        ("def f(n): return f(n + 1)\nf(0)", "raised"),
        pytest.param(
            "import sys\nsys.setrecursionlimit(10**9)\ndef f(n): return f(n + 1)\nf(0)",
            "raised memory timeout broken",
            marks=pytest.mark.long,
        ),
        ("import ctypes\nctypes.string_at(0)", "broken"),
        ("import os\nos._exit(7)", "broken"),
        ("eval('(' * 5_000)", "raised memory"),
    ],
)
async def test_a_broken_python_is_reported(bubblewrap, code, kinds):
    assert (await run_failing(bubblewrap, code)).kind in kinds


async def test_the_size_of_a_file_is_limited(bubblewrap):
    for code in ("f = open('a', 'wb')\nwhile True: f.write(b'x' * 10**6)", "open('a', 'wb').truncate(10**12)"):
        assert "[Errno 27] File too large" in (await run_failing(bubblewrap, code)).message


async def test_the_size_of_all_files_together_is_limited(bubblewrap):
    for folder in (".", "/dev/shm"):
        code = f"for n in range(10_000):\n    open(f'{folder}/{{n}}', 'wb').write(b'x' * 100_000)"
        assert "[Errno 28] No space left" in (await run_failing(bubblewrap, code)).message


# What remains afterwards


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess\nsubprocess.Popen(['sleep', 'MARK'])\n1",
        "import os\nif os.fork() == 0:\n    os.fork()\n    os.execvp('sleep', ['sleep', 'MARK'])\n1",
        "import os\nos.setpgid(0, 0)\nos.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', 'MARK')\n1",
        "import subprocess\nsubprocess.Popen(['sleep', 'MARK'])\nimport ctypes\nctypes.string_at(0)",
        "import subprocess\nsubprocess.Popen(['sleep', 'MARK'])\nwhile True: pass",
        "import subprocess\nfor _ in range(5): subprocess.Popen(['setsid', 'sleep', 'MARK'])\n1",
        "import subprocess\nsubprocess.Popen(['nohup', 'sleep', 'MARK'], start_new_session=True)",
    ],
)
async def test_no_process_remains(bubblewrap, code):
    await run(bubblewrap, code.replace("MARK", MARK), 1.0 if "while True" in code else None)
    until_sync(lambda: not processes_with(MARK))


async def test_a_cancelled_script_is_killed_with_all_it_started(bubblewrap):
    code = f"import subprocess\nsubprocess.Popen(['sleep', '{MARK}'])\nwhile True: pass"
    running = asyncio.create_task(run(bubblewrap, code, 60.0))
    await until(lambda: processes_with(MARK))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    until_sync(lambda: not processes_with(MARK))


def test_a_script_ends_with_the_process_that_started_it(bubblewrap):
    code = f"import subprocess\nsubprocess.Popen(['sleep', '{MARK}'])\nwhile True: pass"
    starter = f"""
import subprocess, sys
process = subprocess.Popen({bubblewrap.arguments()!r}, stdin=subprocess.PIPE, env={{}}, start_new_session=True)
process.stdin.write(sys.stdin.buffer.read())
process.stdin.close()
process.wait()
"""
    job = bubblewrap.encode_job(Script(code=code))
    with subprocess.Popen([sys.executable, "-c", starter], stdin=subprocess.PIPE) as started:
        assert started.stdin is not None
        started.stdin.write(job)
        started.stdin.close()
        until_sync(lambda: processes_with(MARK))
        started.kill()
    until_sync(lambda: not processes_with(MARK))
