"""Runs one script in a Python of its own: confines itself, runs it, and reports what came of it.

This is the text that the other Python is given to run, so it stands alone and takes any Python from 3.8 on. The job
comes on standard input. What the script prints goes to standard output, also what it writes to standard error; the
report goes to what was standard error at the start. Nothing that comes from here is trusted by who reads it.
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


def main() -> None:
    job = json.loads(sys.stdin.buffer.read())
    if job["has_keeper"]:
        leave_a_keeper()
    report = os.dup(2)
    os.dup2(1, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    confine(job)
    told = json.dumps(run(job["code"], job["inputs"], job["most"])).encode("ascii")
    sys.stdout.flush()
    while told:
        told = told[os.write(report, told) :]
    os._exit(0)  # what is left, or registered for the end, shall not go on


def leave_a_keeper() -> None:
    """One process stays behind as the first of its namespace: it ends with who has started it, and all others with it.

    It has not become nobody, so its end can be brought about by those who have not either. Nothing limits it, so its
    memory is closed to others.
    """
    libc = ctypes.CDLL(None)
    end_with_parent()
    libc.prctl(4, 0, 0, 0, 0)
    script = os.fork()
    if not script:
        libc.prctl(4, 1, 0, 0, 0)
    while script:
        ended, status = os.wait()
        if ended == script:
            os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


def end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)


def confine(job: dict[str, Any]) -> None:
    """From here on nothing can be taken back."""
    os.umask(0o077)
    if job["uid"] is not None:
        os.setgroups([])
        os.setgid(job["uid"])
        os.setuid(job["uid"])
    end_with_parent()
    os.chdir(job["folder"])
    others = count_processes()
    for name, most in {**job["limits"], "NPROC": others + job["processes"]}.items():
        kind = getattr(resource, "RLIMIT_" + name, None)
        if kind is not None:
            hard = resource.getrlimit(kind)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            try:
                resource.setrlimit(kind, (most, most))
            except (OSError, ValueError):
                if sys.platform != "darwin":  # which has the names of some limits, and not the limits
                    raise
    if job["readable"] is not None:
        use_landlock(job["readable"], job["folder"])
    if job["program"] is not None:
        use_seccomp(b64decode(job["program"]))


def count_processes() -> int:
    """Processes and threads of this user: the limit is one for all of them."""
    count = 0
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        try:
            if name.isdigit() and os.stat("/proc/" + name).st_uid == os.getuid():
                count += len(os.listdir("/proc/" + name + "/task"))
        except OSError:
            pass
    return count


def use_seccomp(program: bytes) -> None:
    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]

    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    forbidding = Program(len(program) // 8, program)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.addressof(forbidding), 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel takes no seccomp filter")


def use_landlock(readable: list[str], folder: str) -> None:
    """Only these paths can be read, and only the folder can be changed."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    version = libc.syscall(444, None, 0, 1)
    known = 0x1FFF | (0x2000 if version >= 2 else 0) | (0x4000 if version >= 3 else 0) | (0x8000 if version >= 5 else 0)
    handled = (ctypes.c_uint64 * 3)(known, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = libc.syscall(444, ctypes.byref(handled), size, 0)
    if rules < 0:
        raise OSError(ctypes.get_errno(), "the kernel takes no Landlock rules")

    class Beneath(ctypes.Structure):
        _pack_ = 1
        _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]

    def allow(path: str, rights: int) -> None:
        try:
            parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return
        if not os.path.isdir(path):
            rights &= 0x4007
        rule = Beneath(rights & known, parent)
        if libc.syscall(445, rules, 1, ctypes.byref(rule), 0):
            raise OSError(ctypes.get_errno(), "Landlock does not take " + path)
        os.close(parent)

    for path in readable:
        allow(path, 0b1101)
    for path in ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"):
        allow(path, 0b110)
    allow(folder, 0x7FFF)
    libc.prctl(38, 1, 0, 0, 0)
    if libc.syscall(446, rules, 0):
        raise OSError(ctypes.get_errno(), "Landlock cannot be used")
    os.close(rules)


def run(code: str, inputs: dict[str, Any], most: int) -> dict[str, Any]:
    """The report: `result`, or `error` with where it came from."""
    names = dict(inputs, __name__="__main__", __builtins__=__builtins__)
    try:
        waits = eval(compiled(code), names)
        if inspect.iscoroutine(waits):
            asyncio.run(waits)
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        return written(names.get(RESULT), most)
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            return {"result": None}
        return {"error": said(error), "lines": places(error, code)}


def compiled(code: str) -> CodeType:
    """The script, with its last expression kept; it may await at the top level."""
    tree = ast.parse(code, SCRIPT)
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = tree.body[-1]
        keep = ast.Assign(targets=[ast.Name(id=RESULT, ctx=ast.Store())], value=last.value)
        tree.body[-1] = ast.fix_missing_locations(ast.copy_location(keep, last))
    made: CodeType = compile(tree, SCRIPT, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return made


def written(value: Any, most: int) -> dict[str, Any]:
    """The value as JSON can say it, in words where it cannot."""
    try:
        size = len(json.dumps(value, default=nearest))
        value = json.loads(json.dumps(value, default=nearest))
    except (TypeError, ValueError, RecursionError):
        value = repr(value)
        size = len(value)
    return {"result": value} if size <= most else {"too_large": size}


def nearest(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    for name in ("isoformat", "tolist"):  # dates; arrays and numbers of numpy
        method = getattr(value, name, None)
        if callable(method) and not isinstance(value, type):
            return method()
    return repr(value)


def said(error: BaseException) -> str:
    name = type(error).__name__
    try:
        text = str(error)
    except BaseException:
        text = ""
    return (name + ": " + text if text else name)[:4000]


def places(error: BaseException, code: str) -> list[list[Any]]:
    lines = code.split("\n")
    found = [
        (frame.lineno, frame.name)
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == SCRIPT and frame.lineno
    ]
    if isinstance(error, SyntaxError) and error.filename == SCRIPT and error.lineno:
        found.append((error.lineno, "<module>"))
    found = found if len(found) <= 20 else found[:10] + found[-10:]
    return [
        [number, "" if name == "<module>" else name, (lines[number - 1].strip() if number <= len(lines) else "")[:500]]
        for number, name in found
    ]


if __name__ == "__main__":
    main()
