"""Runs one script inside bubblewrap: confines itself, runs the script, and writes a report.

The text of this file is passed to the other Python with `-c`, so it imports only the standard library and works with
Python 3.8 and later. The job comes on standard input. Everything the script prints, to standard output or standard
error, goes to standard output; the report goes to the original standard error. The reader must not trust the report:
the script may have written it.
"""

from __future__ import annotations

import ast
import asyncio
import ctypes
import inspect
import json
import os
import resource
import sys
import threading
import traceback
from base64 import b64decode
from types import CodeType
from typing import Any

SCRIPT = "<script>"
RESULT = "__result__"

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
SECCOMP_MODE_FILTER = 2
SIGKILL = 9


def main() -> None:
    job = json.loads(sys.stdin.buffer.read())
    fork_from_init()
    report_file = os.dup(2)
    os.dup2(1, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    drop_privileges(job)
    report = json.dumps(run(job["code"], job["inputs"], job["max_result"])).encode("ascii")
    sys.stdout.flush()
    while report:
        report = report[os.write(report_file, report) :]
    os._exit(0)  # without running exit handlers or waiting for threads of the script


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def fork_from_init() -> None:
    """Continue in a child; this process stays behind as PID 1 of the namespace, waits, and passes the exit code on.

    It keeps the user id that bubblewrap was started with, so Ferrule can kill it, and with it all others. It is not
    confined, so its memory is closed to the script.
    """
    prctl(PR_SET_PDEATHSIG, SIGKILL)
    prctl(PR_SET_DUMPABLE, 0)
    script = os.fork()
    if not script:
        prctl(PR_SET_DUMPABLE, 1)
    while script:
        process, status = os.wait()
        if process == script:
            os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


def drop_privileges(job: dict[str, Any]) -> None:
    """Give up rights for good: user, resource limits, system calls."""
    os.umask(0o077)
    if job["user"] is not None:
        os.setgroups([])
        os.setgid(job["user"])
        os.setuid(job["user"])
    prctl(PR_SET_PDEATHSIG, SIGKILL)  # again: a change of user clears it
    for name, limit in {**job["limits"], "NPROC": count_processes() + job["processes"]}.items():
        kind = getattr(resource, "RLIMIT_" + name)
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))
    if job["filter"]:
        install_syscall_filter(b64decode(job["filter"]))


def count_processes() -> int:
    """Count processes and threads of this user: the limit is for all of them together."""
    count = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat("/proc/" + name).st_uid == os.getuid():
                count += len(os.listdir("/proc/" + name + "/task"))
        except OSError:
            pass
    return count


def install_syscall_filter(program: bytes) -> None:
    class SeccompProgram(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]

    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    filter_program = SeccompProgram(len(program) // 8, program)
    address = ctypes.addressof(filter_program)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, address, 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel does not accept the seccomp filter")


def run(code: str, inputs: dict[str, Any], max_result: int) -> dict[str, Any]:
    """Run the script. Return the report: `result`, `too_large`, or `error` with the lines it came from."""
    names = dict(inputs, __name__="__main__", __builtins__=__builtins__)
    try:
        coroutine = eval(compile_script(code), names)
        if inspect.iscoroutine(coroutine):
            asyncio.run(coroutine)
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        return result_report(names.get(RESULT), max_result)
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            return {"result": None}
        return {"error": describe_error(error), "lines": traceback_lines(error, code)}


def compile_script(code: str) -> CodeType:
    """Compile the script, with its last expression assigned to a name; it may await at the top level."""
    tree = ast.parse(code, SCRIPT)
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = tree.body[-1]
        assignment = ast.Assign(targets=[ast.Name(id=RESULT, ctx=ast.Store())], value=last.value)
        tree.body[-1] = ast.fix_missing_locations(ast.copy_location(assignment, last))
    compiled: CodeType = compile(tree, SCRIPT, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return compiled


def result_report(value: Any, max_result: int) -> dict[str, Any]:
    """Return the value as JSON; its `repr` where JSON cannot represent it."""
    try:
        text = json.dumps(value, default=json_default)
        value = json.loads(text)
        size = len(text)
    except (TypeError, ValueError, RecursionError):
        value = repr(value)
        size = len(value)
    return {"result": value} if size <= max_result else {"too_large": size}


def json_default(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    for name in ("isoformat", "tolist"):  # dates; numpy arrays and numbers
        method = getattr(value, name, None)
        if callable(method) and not isinstance(value, type):
            return method()
    return repr(value)


def describe_error(error: BaseException) -> str:
    name = type(error).__name__
    try:
        text = str(error)
    except BaseException:
        text = ""
    return (name + ": " + text if text else name)[:4000]


def traceback_lines(error: BaseException, code: str) -> list[list[Any]]:
    source = code.split("\n")
    frames = [
        (frame.lineno, frame.name)
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == SCRIPT and frame.lineno
    ]
    if isinstance(error, SyntaxError) and error.filename == SCRIPT and error.lineno:
        frames.append((error.lineno, "<module>"))
    frames = frames if len(frames) <= 20 else frames[:10] + frames[-10:]
    return [
        [
            number,
            "" if name == "<module>" else name,
            (source[number - 1].strip() if number <= len(source) else "")[:500],
        ]
        for number, name in frames
    ]


if __name__ == "__main__":
    main()
