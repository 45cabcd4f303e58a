"""A CPython inside bubblewrap: Linux namespaces without network, other processes, or files other than Python's own.

Three things confine a script. The namespaces hide the machine from it. Inside, the runner gives up all rights and sets
resource limits. A system call filter refuses what neither of them covers (see below). Whether bubblewrap works on
this machine is found out by running a tiny script in it.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import secrets
import shutil
import signal
import struct
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from ferrule.core.aio import finish_despite_cancellation, wait_at_most
from ferrule.core.content import is_nested_deeper, plain_json
from ferrule.errors import ExecutionFailed
from ferrule.process.groups import WatchedProcess, end_process_group, find_session_processes
from ferrule_tools.python.script import (
    INSTALL_BUBBLEWRAP,
    MAX_JSON_BYTES,
    MAX_JSON_DEPTH,
    FailureKind,
    PythonExecutorConfig,
    Script,
    ScriptFailure,
    ScriptResult,
    TracebackLine,
)

# ---- a system call filter for scripts in bubblewrap (a seccomp program, in the kernel's BPF)
#
# It refuses what namespaces, dropped capabilities and resource limits leave open:
#
# - memory that belongs to no process, which neither the kernel's limits nor our monitoring would count (memfd, shared
#   memory, message queues, keys);
# - new user namespaces, in which a script would have capabilities again and reach much more of the kernel;
# - sockets other than local ones: network namespaces do not cover AF_VSOCK, which reaches the host of a VM;
# - `setsid`: the memory of all processes together is counted by session;
# - system calls with a long history of holes that no script needs (bpf, io_uring, perf, userfaultfd …).


class _Architecture(NamedTuple):
    """A processor architecture: the kernel's number for it, and its system call numbers."""

    architecture: int
    calls: dict[str, int]


_COMMON_CALLS: Final = dict(
    pidfd_send_signal=424, io_uring_setup=425, io_uring_enter=426, io_uring_register=427, open_tree=428,
    move_mount=429, fsopen=430, fsconfig=431, fsmount=432, pidfd_open=434, clone3=435, pidfd_getfd=438,
    process_madvise=440, mount_setattr=442, memfd_secret=447,
)  # fmt: skip
_MACHINES: Final = {
    "x86_64": _Architecture(0xC000003E, _COMMON_CALLS | dict(
        shmget=29, shmat=30, shmctl=31, socket=41, clone=56, semget=64, semop=65, semctl=66, msgget=68, msgsnd=69,
        msgrcv=70, msgctl=71, ptrace=101, syslog=103, setsid=112, rt_sigqueueinfo=129, pivot_root=155, chroot=161,
        mount=165, umount2=166, init_module=175, delete_module=176, semtimedop=220, mq_open=240, kexec_load=246,
        add_key=248, request_key=249, keyctl=250, unshare=272, rt_tgsigqueueinfo=297, perf_event_open=298,
        prlimit64=302, name_to_handle_at=303, open_by_handle_at=304, setns=308, process_vm_readv=310,
        process_vm_writev=311, kcmp=312, finit_module=313, memfd_create=319, kexec_file_load=320, bpf=321,
        userfaultfd=323,
    )),
    "aarch64": _Architecture(0xC00000B7, _COMMON_CALLS | dict(
        umount2=39, mount=40, pivot_root=41, chroot=51, unshare=97, kexec_load=104, init_module=105,
        delete_module=106, syslog=116, ptrace=117, rt_sigqueueinfo=138, setsid=157, mq_open=180, msgget=186,
        msgctl=187, msgrcv=188, msgsnd=189, semget=190, semctl=191, semtimedop=192, semop=193, shmget=194, shmctl=195,
        shmat=196, socket=198, add_key=217, request_key=218, keyctl=219, clone=220, rt_tgsigqueueinfo=240,
        perf_event_open=241, prlimit64=261, name_to_handle_at=264, open_by_handle_at=265, setns=268,
        process_vm_readv=270, process_vm_writev=271, kcmp=272, finit_module=273, memfd_create=279, bpf=280,
        userfaultfd=282, kexec_file_load=294,
    )),
}  # fmt: skip
_REFUSED_CALLS: Final = (
    # memory that belongs to no process
    *("memfd_create", "memfd_secret", "shmget", "shmat", "shmctl", "semget", "semop", "semctl", "semtimedop"),
    *("msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "add_key", "request_key", "keyctl"),
    # other processes
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_open", "pidfd_getfd"),
    *("pidfd_send_signal", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "setsid"),
    # namespaces and mounts
    *("unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen"),
    *("fsconfig", "fsmount", "mount_setattr", "name_to_handle_at", "open_by_handle_at"),
    # the kernel itself
    *("bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "syslog"),
)
_NAMESPACE_FLAGS: Final = 0x7E020000
_LOCAL_SOCKET: Final = 1
_X32_CALLS: Final = 0x40000000

# Offsets in the kernel's `struct seccomp_data`, BPF instruction codes, and verdicts (SECCOMP_RET_… and an errno).
_CALL_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_LOAD, _RETURN, _EQUALS, _AT_LEAST, _HAS_BITS = 0x20, 0x06, 0x15, 0x35, 0x45
_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026

Instruction: TypeAlias = tuple[int, int, int, int]
"""Code, instructions to skip if true, instructions to skip if false, operand."""


def build_syscall_filter() -> bytes:
    """Return the filter as the bytes that the kernel reads; nothing for an architecture without rules."""
    machine = _MACHINES.get(platform.machine())
    if machine is None or platform.system() != "Linux":
        return b""
    # Programs for another architecture or for x32 are killed: they have other call numbers.
    instructions: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUALS, 1, 0, machine.architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _CALL_NUMBER),
        (_AT_LEAST, 0, 1, _X32_CALLS),
        (_RETURN, 0, 0, _KILL),
    ]
    # The flags of clone3 are in memory, which a filter cannot read. So the filter reports that clone3 does not exist,
    # and libc uses clone instead.
    for name, verdict in [*((name, _EPERM) for name in _REFUSED_CALLS), ("clone3", _ENOSYS)]:
        instructions += [(_EQUALS, 0, 1, machine.calls[name]), (_RETURN, 0, 0, verdict)]
    for name, test, if_true, if_false in (
        ("clone", (_HAS_BITS, 0, 1, _NAMESPACE_FLAGS), _EPERM, _ALLOW),
        ("prlimit64", (_EQUALS, 0, 1, 0), _ALLOW, _EPERM),  # limits of the calling process (0) only
        ("socket", (_EQUALS, 0, 1, _LOCAL_SOCKET), _ALLOW, _EPERM),
    ):
        instructions += [
            (_EQUALS, 0, 4, machine.calls[name]),
            (_LOAD, 0, 0, _FIRST_ARGUMENT),
            test,
            (_RETURN, 0, 0, if_true),
            (_RETURN, 0, 0, if_false),
        ]
    instructions.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)


_MEMORY_FOLDER: Final = "/tmp"
"""In memory, gone with the script; it also has the Python, if that lies under `/tmp`."""
WORK_FOLDER: Final = f"{_MEMORY_FOLDER}/script-files"
"""The script's working directory inside the namespace: empty."""
ENVIRONMENT: Final = {
    "PATH": "/usr/bin:/bin",
    "HOME": WORK_FOLDER,
    "TMPDIR": WORK_FOLDER,
    "LANG": "C.UTF-8",
    "MALLOC_ARENA_MAX": "2",
    "MPLBACKEND": "Agg",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_SYSTEM_FOLDERS: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SYSTEM_FILES: Final = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
_PYTHON_PARTS: Final = ("bin", "lib", "lib64", "pyvenv.cfg")
_PRINT_PREFIXES: Final = "import sys, json; print(json.dumps([sys.prefix, sys.exec_prefix, sys.base_prefix]))"
_ROOT_CAPABILITIES: Final = ("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
"""What the runner needs to become an unprivileged user, which is the first thing it does."""
_SHARED_MEMORY_BYTES: Final = 16_000_000
_MAX_OPEN_FILES: Final = 128
_FIRST_USER_ID: Final = 1_900_000_000
_TRIAL_TIMEOUT: Final = 10.0
_TRIAL_SCRIPT: Final = "import statistics, socket\nstatistics.mean([41, 43])"
"""It imports modules: an unprivileged user may not be allowed to read the folder that they are in."""


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    path: str

    @property
    def command(self) -> list[str]:
        """Return the command of the runner, without the user's environment variables, folders and packages."""
        return [self.path, "-I", "-B", "-c", Path(__file__).with_name("runner.py").read_text(encoding="utf-8")]

    @cached_property
    def paths(self) -> list[str]:
        """Return the files of the Python outside of the system's folders, without other files of the same prefix."""
        prefixes = [sys.prefix, sys.exec_prefix, sys.base_prefix]
        if self.path != sys.executable:
            command = [self.path, "-I", "-c", _PRINT_PREFIXES]
            try:
                trial = subprocess.run(command, capture_output=True, timeout=_TRIAL_TIMEOUT, check=True, env={})
                prefixes = [str(folder) for folder in json.loads(trial.stdout)]
            except (OSError, subprocess.SubprocessError, ValueError):
                prefixes = []  # it does not work, which the trial script will show
        folders = dict.fromkeys([*prefixes, *map(str, Path(self.path).resolve().parents[1:2])])
        paths = [os.path.join(os.path.abspath(folder), part) for folder in folders for part in _PYTHON_PARTS]
        system = tuple(f"{folder}/" for folder in _SYSTEM_FOLDERS)
        return [path for path in paths if os.path.exists(path) and not f"{path}/".startswith(system)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bubblewrap:
    """A bubblewrap and a Python that work together on this machine."""

    executable: str
    interpreter: Interpreter
    config: PythonExecutorConfig

    def arguments(self) -> list[str]:
        """Return the command line that runs the Python inside namespaces."""
        return [
            self.executable,
            *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
            # Root uses no user namespace: in one, all scripts would count as root's processes for RLIMIT_NPROC.
            *(_ROOT_CAPABILITIES if os.geteuid() == 0 else ("--unshare-user",)),
            # The runner's init process is PID 1 of the namespace: when it ends, the kernel kills all others.
            *("--as-pid-1", "--die-with-parent"),
            *_system_mounts(),
            *("--proc", "/proc", "--dev", "/dev"),
            *("--perms", "1777", "--size", str(_SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"),
            *("--perms", "1777", "--size", str(self.config.files_mb * 1_000_000), "--tmpfs", _MEMORY_FOLDER),
            *("--perms", "1777", "--dir", WORK_FOLDER),
            *_python_mounts(self.interpreter.paths),  # last: the Python may be in a folder under /tmp
            *("--remount-ro", "/dev", "--remount-ro", "/"),
            *("--chdir", WORK_FOLDER, "--"),
            *self.interpreter.command,
        ]

    def encode_job(self, script: Script) -> bytes:
        """Encode what the runner reads from its standard input."""
        limits = {
            "AS": self.config.memory,
            "CPU": int(self.config.seconds) + 1,
            "FSIZE": self.config.files_mb * 1_000_000,
            "NOFILE": _MAX_OPEN_FILES,
            "CORE": 0,
            "MEMLOCK": 0,
            "MSGQUEUE": 0,
        }
        # As root, each script gets a user id that no other process has, so it cannot affect other processes.
        user = _FIRST_USER_ID + secrets.randbelow(100_000_000) if os.geteuid() == 0 else None
        return json.dumps(
            {
                "code": script.code,
                "inputs": script.inputs,
                "max_result": MAX_JSON_BYTES,
                "user": user,
                "limits": limits,
                "processes": self.config.processes,
                "filter": b64encode(build_syscall_filter()).decode(),
            }
        ).encode()


def _system_mounts() -> Iterator[str]:
    for folder in _SYSTEM_FOLDERS:
        if os.path.islink(folder):
            yield from ("--symlink", os.readlink(folder), folder)
        elif os.path.isdir(folder):
            yield from ("--ro-bind", folder, folder)
    yield from ("--perms", "0755", "--dir", "/etc")
    for file in _SYSTEM_FILES:
        yield from ("--ro-bind-try", file, file)


def _python_mounts(paths: Sequence[str]) -> Iterator[str]:
    parents = {Path(_MEMORY_FOLDER)}
    for path in map(Path, paths):
        for parent in reversed(path.parents[:-1]):
            if parent not in parents:  # made by bubblewrap itself, it would be closed to all users but root
                parents.add(parent)
                yield from ("--perms", "0755", "--dir", str(parent))
        if path.is_symlink():
            yield from ("--symlink", os.readlink(path), str(path))
        else:
            yield from ("--ro-bind", str(path), str(path))


def find_bubblewrap(config: PythonExecutorConfig) -> Bubblewrap | str:
    """Find a bubblewrap that runs the configured Python; otherwise return what is missing."""
    # A name without a folder is looked up in the PATH that scripts have. Looked up in the current folder, files
    # around that folder would be taken for parts of the Python.
    path = shutil.which(config.interpreter or sys.executable, path=ENVIRONMENT["PATH"])
    if path is None:
        return (
            f"a Python that can be run here, which {config.interpreter!r} is not. "
            'Name one with [tools.python_executor] interpreter = "/usr/bin/python3"'
        )
    executable = shutil.which("bwrap")
    if executable is None:
        return f"bubblewrap, which is not installed: {INSTALL_BUBBLEWRAP}"
    bubblewrap = Bubblewrap(executable=executable, interpreter=Interpreter(path=os.path.abspath(path)), config=config)
    problem = _run_trial_script(bubblewrap)
    if problem:
        return (
            f"a bubblewrap that can run {path!r} here; it said: {problem} "
            "(in a container it needs permission to create namespaces)"
        )
    return bubblewrap


def _run_trial_script(bubblewrap: Bubblewrap) -> str:
    """Run a tiny script exactly as a real one would run; returns why it failed, or an empty string."""
    try:
        with subprocess.Popen(
            bubblewrap.arguments(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env=ENVIRONMENT,
            start_new_session=True,
        ) as process:
            try:
                _, report = process.communicate(bubblewrap.encode_job(Script(code=_TRIAL_SCRIPT)), _TRIAL_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                return f"no response within {_TRIAL_TIMEOUT:g} seconds"
    except OSError as error:
        return str(error)
    if _parse_report(report) == {"result": 42}:
        return ""
    return report.decode("utf-8", "replace").strip()[-300:] or "no message"


# Running a script

StopReason: TypeAlias = Literal["timeout", "memory", "printed", "result"]

_MAX_REPORT: Final = 2 * MAX_JSON_BYTES + 100_000
"""Bytes: characters may be written as escape sequences in it."""
_MEMORY_CHECK_INTERVAL: Final = 0.1
_INIT_EXIT_TIMEOUT: Final = 1.0


async def run_in_full_python(script: Script, config: PythonExecutorConfig, bubblewrap: Bubblewrap) -> ScriptResult:
    """Run a script; its failures are in the result. When this returns or raises, nothing of it runs any more."""
    process = _ScriptProcess(max_output={1: config.printed_bytes, 2: _MAX_REPORT})
    watcher: asyncio.Task[None] | None = None
    try:
        arguments = bubblewrap.arguments()
        start = process.start(*arguments, stdin=bubblewrap.encode_job(script), directory="/", environment=ENVIRONMENT)
        try:
            await finish_despite_cancellation(start)
        except OSError as error:
            raise ExecutionFailed(f"{arguments[0]!r} could not be started: {error}") from error
        watcher = asyncio.create_task(_watch_memory(process, config.memory))
        with suppress(TimeoutError):
            async with asyncio.timeout(config.seconds):
                await process.finished.wait()
        if not process.finished.is_set():
            process.stop("timeout")
    finally:
        if watcher is not None:
            watcher.cancel()
        if process.transport is not None:
            await finish_despite_cancellation(_kill_session(process, process.transport))
    return _script_result(process)


# The process


class _ScriptProcess(WatchedProcess):
    """The process: it writes what the script prints to descriptor 1, and the report of the runner to 2."""

    stop_reason: StopReason | None = None

    def stop(self, reason: StopReason) -> None:
        if not self.finished.is_set():
            self.stop_reason = reason
            self.finished.set()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        super().pipe_data_received(fd, data)
        if self.exceeded_descriptor is not None:
            self.stop_reason = "printed" if self.exceeded_descriptor == 1 else "result"


async def _kill_session(process: _ScriptProcess, transport: asyncio.SubprocessTransport) -> None:
    """Kill what remains of the session, read what was written, close the pipes."""
    bubblewrap = transport.get_pid()
    # Bubblewrap itself gets some time to end: it waits for its children, which would stay as zombies without it.
    for other in find_session_processes(bubblewrap) - {bubblewrap}:
        with suppress(OSError):
            os.kill(other, signal.SIGKILL)
    await wait_at_most(process.exited, _INIT_EXIT_TIMEOUT)
    await end_process_group(bubblewrap, grace=0.0)
    await process.close_pipes(transport)


async def _watch_memory(process: _ScriptProcess, limit: int) -> None:
    """Limit the memory of all processes together; the kernel limits each process by itself.

    A script cannot leave its session: the system call filter refuses `setsid`.
    """
    assert process.transport is not None
    session = process.transport.get_pid()
    while not process.finished.is_set():
        if sum(map(_read_process_memory, find_session_processes(session))) > limit:
            process.stop("memory")
        await asyncio.sleep(_MEMORY_CHECK_INTERVAL)


def _read_process_memory(process: int) -> int:
    """Return the bytes that a process has for itself, or shares with others of its session."""
    try:
        with open(f"/proc/{process}/status", "rb") as file:
            lines = file.read().splitlines()
    except OSError:  # it has just ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith((b"RssAnon:", b"RssShmem:")))


# Its report, which a script may have forged


def _script_result(process: _ScriptProcess) -> ScriptResult:
    printed = process.output[1].decode("utf-8", "replace")

    def make_failure(kind: FailureKind, message: str = "", lines: list[TracebackLine] | None = None) -> ScriptResult:
        return ScriptResult(printed=printed, failure=ScriptFailure(kind=kind, message=message, lines=lines or []))

    if process.stop_reason is not None:
        return make_failure(process.stop_reason, "it is too large." if process.stop_reason == "result" else "")
    report = _parse_report(process.output[2])
    if is_nested_deeper(report, MAX_JSON_DEPTH):
        return make_failure("result", f"it is nested more than {MAX_JSON_DEPTH} deep: make it flatter.")
    report = plain_json(report)  # Python's JSON may contain lone surrogates, NaN and Infinity
    match report:
        case {"result": value}:
            return ScriptResult(value=value, printed=printed)
        case {"error": str(message)}:
            return make_failure(
                "memory" if message.startswith("MemoryError") else "raised", message, _parse_traceback(report)
            )
        case {"too_large": int(size)}:
            return make_failure(
                "result", f"it has {size:,} bytes, more than {MAX_JSON_BYTES:,}: use a part or a summary of it."
            )
        case _:
            return make_failure(*_failure_without_report(process))


def _parse_report(report: bytes | bytearray) -> Any:
    try:
        return json.loads(report)
    except (ValueError, RecursionError):
        return None


def _parse_traceback(report: dict[str, Any]) -> list[TracebackLine]:
    lines = report.get("lines")
    return [
        TracebackLine(*line)
        for line in (lines if isinstance(lines, list) else ())
        if isinstance(line, list) and [type(part) for part in line] == [int, str, str]
    ]


def _failure_without_report(process: _ScriptProcess) -> tuple[FailureKind, str]:
    # Like a shell, bubblewrap and the runner's init process exit with 128 and the number of the signal.
    number = -process.exit_code if process.exit_code < 0 else process.exit_code - 128
    if number == signal.SIGXCPU:
        return "timeout", ""
    if 0 < number < signal.NSIG:
        return "broken", f"it was ended by signal {number} ({signal.strsignal(number)})."
    text = process.output[2].decode("utf-8", "replace").strip()[-500:]
    message = f" and the message: {text}" if text else ""
    return "broken", f"it ended with exit code {process.exit_code}{message}, before the script's end."
