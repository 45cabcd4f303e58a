"""A server without the SDK, which starts at once and behaves badly on request. It speaks the protocol of 2025.

python rough_server.py [--tools N] [--ignore-eof] [--strict-greeting] [--child FILE] [--silent]
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

reader = argparse.ArgumentParser()
reader.add_argument("--tools", type=int, default=0, help="so many more actions, a hundred a page")
reader.add_argument("--ignore-eof", action="store_true")
reader.add_argument("--strict-greeting", action="store_true", help="end when the first message is no initialize")
reader.add_argument("--child", help="start a process that stays, and write its number here")
reader.add_argument("--silent", action="store_true", help="never answer")
reader.add_argument("--log", help="append every message that comes to this file")
given = reader.parse_args()
OBJECT = {"type": "object"}
ACTIONS = {
    "echo": {"annotations": {"readOnlyHint": True}},
    "die": {"annotations": {"idempotentHint": True}},
    "pay": {"annotations": {"destructiveHint": True}},
    "hang": {},
    "flood": {},
    "never": {},
    "refuse": {},
    "noise": {},
    "environment": {},
}


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def tools(cursor):
    names = [*ACTIONS, *(f"tool_{number}" for number in range(given.tools))]
    start = int(cursor or 0)
    page = [{"name": n, "inputSchema": OBJECT, **ACTIONS.get(n, {})} for n in names[start : start + 100]]
    return {"tools": page, **({"nextCursor": str(start + 100)} if start + 100 < len(names) else {})}


def call(identity, name, arguments):
    if name == "die" and not os.path.exists(arguments["once"]):
        Path(arguments["once"]).touch()
        print("I am dying", file=sys.stderr, flush=True)
        os._exit(3)
    if name == "pay":
        os._exit(4)
    if name == "hang":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        time.sleep(600)
    if name == "never":
        return
    if name == "flood":
        for _ in range(10 * 1024):
            sys.stderr.write("x" * 1023 + "\n")
    if name == "noise":
        print("Loading model… 100 %\n\n{broken", flush=True)
    if name == "refuse":
        send({"id": identity, "error": {"code": arguments["code"], "message": "no"}})
        return
    if name == "environment":
        arguments = {variable: os.environ.get(variable) for variable in arguments["names"]}
    send({"id": identity, "result": {"content": [{"type": "text", "text": json.dumps(arguments)}]}})


def answer(message):
    identity, params = message.get("id"), message.get("params") or {}
    if message["method"] == "initialize":
        info = {"name": "rough", "version": "1"}
        about = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        send({"id": identity, "result": about})
    elif message["method"] == "tools/list":
        send({"id": identity, "result": tools(params.get("cursor"))})
    elif message["method"] == "tools/call":
        call(identity, params["name"], params.get("arguments") or {})
    elif message["method"] == "ping":
        send({"id": identity, "result": {}})
    elif identity is not None:
        send({"id": identity, "error": {"code": -32601, "message": "Method not found"}})


if given.child:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(given.child).write_text(str(child.pid))
for position, line in enumerate(sys.stdin):
    if given.log:
        with open(given.log, "a") as file:
            file.write(line)
    message = json.loads(line)
    if given.strict_greeting and position == 0 and message["method"] != "initialize":
        sys.exit("expected initialize")
    if not given.silent:
        answer(message)
while given.ignore_eof:
    time.sleep(1)
