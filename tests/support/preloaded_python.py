"""A Python process that has loaded Ferrule, and makes a child for each program it is told about.

So a program of a test is a process of its own, with its own folder, environment, streams and exit code, but does not
spend most of its time on loading. `tests/support/processes.py` tells it what to run.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from ferrule.core.patterns import LazyPattern

PACKAGES = """
    ferrule.agent ferrule.batch ferrule.cli ferrule.kinds.yaml ferrule.library ferrule.orchestrator ferrule.server
    ferrule.web ferrule.workflow ferrule_tools
""".split()
OTHERS = """
    cryptography.hazmat.primitives.asymmetric.ec jsonschema_rs mcp mcp.client.streamable_http rich.markdown
    sqlalchemy.dialects.sqlite uvicorn.protocols.http.httptools_impl uvloop yaml
""".split()
"""What commands load when they use it."""


def load() -> None:
    for package in PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            importlib.import_module(module.name)
    for name in OTHERS:
        importlib.import_module(name)
    for pattern in gc.get_objects():
        if type(pattern) is LazyPattern:
            pattern.search  # noqa: B018  (compiles it)
    assert threading.active_count() == 1, "children would miss the other threads"


def serve(control: socket.socket) -> dict[str, Any]:
    """For each byte that comes with four files, make a process that watches a program. Returns in the program."""
    while files := socket.recv_fds(control, 1, 4)[1]:
        connection = socket.socket(fileno=files.pop())
        if os.fork() == 0:
            control.close()
            return watch(connection, files)
        connection.close()
        for file in files:
            os.close(file)
        with suppress(ChildProcessError):  # there are no more
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass  # of one that has ended, nothing was left but its entry in the table of processes
    sys.exit()


def watch(connection: socket.socket, files: list[int]) -> dict[str, Any]:
    """Make a child for the program, and say its number and how it ended. Returns in the child."""
    with connection, connection.makefile() as requests:
        program: dict[str, Any] = json.loads(requests.readline())
        if (child := os.fork()) != 0:
            for file in files:
                os.close(file)
            connection.sendall(f"{child}\n".encode())
            _, status = os.waitpid(child, 0)
            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os._exit(0)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    return program


def run(arguments: list[str], cwd: str, env: dict[str, str]) -> None:
    """What `python ARGUMENTS` does after its start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    search_path = [*filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    if arguments[0] == "-m":
        sys.path[:1], sys.argv = [cwd, *search_path], arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.path[:1], sys.argv = [cwd, *search_path], ["-c", *arguments[2:]]
        exec(arguments[1], {"__name__": "__main__"})
    else:
        sys.path[:1], sys.argv = [str(Path(arguments[0]).parent.resolve()), *search_path], arguments
        runpy.run_path(arguments[0], run_name="__main__")


def exit_code(program: dict[str, Any]) -> int:
    try:
        run(**program)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def end(code: int) -> None:
    """What an interpreter does at its end, but for taking apart everything that was loaded, which takes a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    load()
    gc.freeze()
    end(exit_code(serve(socket.socket(fileno=int(sys.argv[1])))))
