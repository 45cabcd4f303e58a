"""An MCP server on standard input and output that misbehaves at random: `python hostile_server.py SEED`. 0 is honest.

It has no dependencies, because it is started very often.
"""

import json
import os
import random
import signal
import sys
import time

SEED = int(sys.argv[1])
chance = random.Random(f"{SEED}-{time.monotonic_ns()}")
ACTIONS = ("echo", "look")


def write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def send(**message: object) -> None:
    write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def answer(identity: object, result: object) -> None:
    send(id=identity, result=result)


def text_result(text: str) -> dict[str, object]:
    return {"content": [{"type": "text", "text": text}]}


def list_actions() -> dict[str, object]:
    actions: list[dict[str, object]] = [{"name": name, "inputSchema": {"type": "object"}} for name in ACTIONS]
    if SEED:
        levels = {f"level{n}": {"anyOf": [{"$ref": f"#/$defs/level{n + 1}"}] * 10} for n in range(12)}
        wide = {"type": "object", "$defs": {**levels, "level12": {}}, "properties": {"a": {"$ref": "#/$defs/level0"}}}
        actions.append({"name": "wide", "inputSchema": wide})
        actions.append({"name": "broken", "inputSchema": {"type": "objekt"}})
        actions.append({"name": "slow_pattern", "inputSchema": {"properties": {"a": {"pattern": "(a+)+$"}}}})
        actions += [{"name": f"tool_{n}\u202e", "inputSchema": {}} for n in range(chance.randrange(500))]
    return {"tools": actions}


# ---- what it does instead of answering


def say_nothing(identity: object) -> None:
    pass


def die(identity: object) -> None:
    os._exit(3)


def hang(identity: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def send_garbage(identity: object) -> None:
    write(bytes(chance.randrange(256) for _ in range(500)) + b"\n{broken\n[]\n42\n\n")


def send_long_line(identity: object) -> None:
    for _ in range(70):
        write(b"x" * 1_000_000)
    write(b"\n")


def send_deep_answer(identity: object) -> None:
    deep = b"[" * 50_000 + b"]" * 50_000
    write(b'{"jsonrpc":"2.0","id":%s,"result":%s}\n' % (json.dumps(identity).encode(), deep))


def answer_others(identity: object) -> None:
    for other in (987_654_321, "no-such-call", None, [], {}):
        answer(other, text_result("for nobody"))


def flood_log(identity: object) -> None:
    for _ in range(20):
        sys.stderr.write("x" * 100_000 + "\n")


def announce_changes(identity: object) -> None:
    for _ in range(200):
        send(method="notifications/tools/list_changed")


def ask_client(identity: object) -> None:
    for number in range(300):
        send(id=f"ask{number}", method="sampling/createMessage", params={"messages": [], "maxTokens": 1})
        send(id=f"elicit{number}", method="elicitation/create", params={"message": "?", "requestedSchema": {}})


def send_odd_result(identity: object) -> None:
    odd = [None, 42, [], {"content": "text"}, {"content": [{"type": "hologram"}]}, {"content": [None]}]
    answer(identity, chance.choice(odd))


def send_error(identity: object) -> None:
    code = chance.choice([-32000, -32001, -32600, -32700, 0, "high"])
    send(id=identity, error={"code": code, "message": "x" * chance.randrange(100_000)})


MISBEHAVIOURS = (
    *(say_nothing, die, hang, send_garbage, send_long_line, send_deep_answer),
    *(answer_others, flood_log, announce_changes, ask_client, send_odd_result, send_error),
)


def call(identity: object, arguments: dict[str, object]) -> None:
    if SEED and chance.random() < 0.4:
        misbehaviour = chance.choice(MISBEHAVIOURS)
        misbehaviour(identity)
        if misbehaviour not in (answer_others, flood_log, announce_changes, ask_client, send_garbage):
            return
    answer(identity, text_result(str(arguments.get("text"))))
    if SEED and chance.random() < 0.1:
        answer(identity, text_result("a second answer"))


def handle(message: dict[str, object]) -> None:
    identity, params = message.get("id"), message.get("params")
    values: dict[str, object] = params if isinstance(params, dict) else {}
    if message.get("method") == "initialize":
        about = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": True}}}
        answer(identity, {**about, "serverInfo": {"name": "hostile", "version": "1"}})
    elif message.get("method") == "tools/list":
        answer(identity, list_actions())
    elif message.get("method") == "tools/call":
        arguments = values.get("arguments")
        call(identity, arguments if isinstance(arguments, dict) else {})
    elif message.get("method") == "ping":
        answer(identity, {})
    elif identity is not None and "method" in message:
        send(id=identity, error={"code": -32601, "message": "Method not found"})


for line in sys.stdin:
    handle(json.loads(line))
