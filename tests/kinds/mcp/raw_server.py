"""A server without the SDK, which starts at once and behaves badly on request. It speaks the protocol of 2025.

python raw_server.py --help
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
reader.add_argument("--stubborn", action="store_true", help="ignore the end of its input, and SIGTERM")
reader.add_argument("--crash", help="write this to standard error and end at once")
reader.add_argument("--banner", action="store_true", help="greet people, not programs, on standard output")
reader.add_argument("--ignore-unknown", action="store_true", help="do not answer what it does not know")
reader.add_argument("--version", default="2025-11-25", help="the protocol it says it speaks")
reader.add_argument("--actions", help="a JSON file with more entries of its listing, read each time")
reader.add_argument("--instructions", help="a file with its instructions, read when it is connected to")
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
    "twice": {},
    "stray": {},
    "big": {},
    "changed": {},
    "ask_model": {},
}


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def tools(cursor):
    names = [*ACTIONS, *(f"tool_{number}" for number in range(given.tools))]
    start = int(cursor or 0)
    page = [{"name": n, "inputSchema": OBJECT, **ACTIONS.get(n, {})} for n in names[start : start + 100]]
    if given.actions and not start:
        page += json.loads(Path(given.actions).read_text())
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
        for _ in range(arguments["megabytes"]):
            sys.stderr.write(("x" * 1023 + "\n") * 1024)
    if name == "noise":
        print("Loading model… 100 %\n\n{broken", flush=True)
    if name == "refuse":
        send({"id": identity, "error": {"code": arguments["code"], "message": "no"}})
        return
    if name == "twice":
        send({"id": identity, "result": {"content": [{"type": "text", "text": "first"}]}})
    if name == "stray":
        for other in (987654, "no-such", None):
            send({"id": other, "result": {"content": [{"type": "text", "text": "for nobody"}]}})
    if name == "big":
        arguments = {"filler": "x" * arguments["size"]}
    if name == "changed":
        for _ in range(arguments["times"]):
            send({"method": "notifications/tools/list_changed"})
    if name == "ask_model":
        send({"id": "s1", "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}})
        send({"id": "r1", "method": "roots/list"})
        arguments = [json.loads(sys.stdin.readline()) for _ in range(2)]
    if name == "environment":
        arguments = {variable: os.environ.get(variable) for variable in arguments["names"]}
    result = {"content": [{"type": "text", "text": json.dumps(arguments)}]}
    if name == "structured" and "structured" in arguments:
        result["structuredContent"] = arguments["structured"]
    send({"id": identity, "result": result})


def answer(message):
    identity, params = message.get("id"), message.get("params") or {}
    if message["method"] == "initialize":
        info = {"name": "rough", "version": "1"}
        about = {"protocolVersion": given.version, "capabilities": {"tools": {}}, "serverInfo": info}
        if given.instructions:
            about["instructions"] = Path(given.instructions).read_text()
        send({"id": identity, "result": about})
    elif message["method"] == "tools/list":
        send({"id": identity, "result": tools(params.get("cursor"))})
    elif message["method"] == "tools/call":
        call(identity, params["name"], params.get("arguments") or {})
    elif message["method"] == "ping":
        send({"id": identity, "result": {}})
    elif identity is not None and not given.ignore_unknown:
        send({"id": identity, "error": {"code": -32601, "message": "Method not found"}})


if given.crash:
    sys.exit(given.crash)
if given.stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if given.banner:
    os.write(1, b"Welcome!\n\x00\xff\xfe not a message\n[]\n{}\n42\n")
if given.child:
    # A child and a grandchild in a group of its own, as a shell with job control makes them.
    grandchild = (
        f"import os, time; os.setpgid(0, 0); open({given.child!r}, 'a').write(f'{{os.getpid()}} '); time.sleep(600)"
    )
    child = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {grandchild!r}]); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", child])
    with open(given.child, "a") as file:
        file.write(f"{process.pid} ")
for position, line in enumerate(sys.stdin):
    if given.log:
        with open(given.log, "a") as file:
            file.write(line)
    message = json.loads(line)
    if given.strict_greeting and position == 0 and message["method"] != "initialize":
        sys.exit("expected initialize")
    if not given.silent:
        answer(message)
while given.ignore_eof or given.stubborn:
    time.sleep(1)  # until it is killed
