"""A fleet of servers behind a balancer under live load: servers are killed, Postgres restarts, clocks disagree."""

from __future__ import annotations

import glob
import json
import random
import time
from contextlib import ExitStack
from pathlib import Path

from tests.server.balancing import balance

from chaos.live_load import Answers, Host, LiveClient, LiveLoad, compare, wait_until
from chaos.scenario import Load, Outcome, duplicates, read_lines

SERVERS = 3
CLIENTS = 4
KILL_INTERVAL = 1.0
FASTER_CLOCK = "+26h"
"""More than a day, after which idempotency keys are forgotten."""
SLOWER_CLOCK = "-3h"


def kill_servers(load: Load) -> Outcome:
    """Every second a server is killed and started again, as long as another one is ready."""
    from tests.support.postgres import find_postgres_programs, run_postgres

    if find_postgres_programs() is None:
        return Outcome(figures={"skipped": "no Postgres programs on this machine"})
    outcome, answers, kills = Outcome(), Answers(), 0
    chance = random.Random(load.seed)
    with run_postgres() as server, ExitStack() as stack:
        hosts = _start_hosts(
            stack, load.folder, server.url, {f"server{n}": {} for n in range(min(SERVERS, load.count(3, 2)))}
        )
        url = stack.enter_context(balance([host.url for host in hosts]))
        with LiveLoad([LiveClient(f"client{n}", [url], answers) for n in range(CLIENTS)], answers) as clients:
            clients.wait_for_answers("no client got an answer")
            deadline = time.monotonic() + load.seconds
            while time.monotonic() < deadline or kills < 1:
                ready = [host for host in hosts if host.is_ready()]
                if len(ready) < 2:  # one has to answer
                    time.sleep(0.1)
                    continue
                victim = chance.choice(ready)
                victim.kill()
                victim.start()
                kills += 1
                time.sleep(KILL_INTERVAL if time.monotonic() < deadline else 0)
            clients.wait_for_answers("after the last kill, not every client got an answer")
        _kill_all(hosts)
        outcome.figures |= {"servers": len(hosts), "kills": kills}
        compare(hosts, answers, outcome)
    return outcome


def restart_database(load: Load) -> Outcome:
    """Postgres restarts in the middle of a batch, while clients pay on two servers."""
    from tests.support.postgres import find_postgres_programs, run_postgres

    if find_postgres_programs() is None:
        return Outcome(figures={"skipped": "no Postgres programs on this machine"})
    outcome, answers, restarts = Outcome(), Answers(), 0
    chance, tasks = random.Random(load.seed), load.count(200, 20)
    with run_postgres() as server, ExitStack() as stack:
        (host,) = _start_hosts(stack, load.folder, server.url, {"server": {}})
        worker = Host(load.folder, "batch", server.url)
        lines = [json.dumps({"id": f"t{n}", "task": f"pay order=batch-{n}"}) for n in range(tasks)]
        (worker.folder / "tasks.jsonl").write_text("\n".join(lines))
        batch = worker.ferrule("batch", "run", "tasks.jsonl", "--out", "out", "--concurrency", "8")
        stack.callback(batch.kill)
        trajectories = worker.folder / "out" / "trajectories.jsonl"
        with LiveLoad([LiveClient(f"client{n}", [host.url], answers) for n in range(CLIENTS)], answers) as clients:
            clients.wait_for_answers("no client got an answer")
            moments = sorted(chance.sample(range(tasks // 5, 4 * tasks // 5), load.count(4, 1)))
            for moment in moments:
                wait_until(
                    lambda moment=moment: len(read_lines(trajectories)) >= moment or batch.poll() is not None,  # type: ignore[misc]
                    f"the batch did not finish {moment} tasks",
                )
                server.restart()
                restarts += 1
            clients.wait_for_answers("after the last restart, not every client got an answer")
        wait_until(lambda: batch.poll() is not None, "the batch did not end")
        outcome.check(batch.returncode == 0, f"the batch ended with exit code {batch.returncode}")
        _check_batch(trajectories, load.folder, tasks, outcome)
        _kill_all([host])
        outcome.figures |= {"restarts": restarts, "tasks of the batch": tasks}
        compare([host, worker], answers, outcome)
    return outcome


def disagree_about_time(load: Load) -> Outcome:
    """Three servers: one is right, the clock of one is a day ahead, that of one hours behind."""
    from tests.support.postgres import find_postgres_programs, run_postgres

    library = next(iter(glob.glob("/usr/lib/*/faketime/libfaketime.so.1")), None)
    if library is None:
        return Outcome(figures={"skipped": "faketime is not installed; on Debian: apt-get install faketime"})
    if find_postgres_programs() is None:
        return Outcome(figures={"skipped": "no Postgres programs on this machine"})
    outcome, answers = Outcome(), Answers()
    # Only the clock of the calendar differs: no machine's time since its start depends on it.
    wrong = {"LD_PRELOAD": library, "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_NO_CACHE": "1"}
    clocks = {
        "right": {},
        "faster": {**wrong, "FAKETIME": FASTER_CLOCK},
        "slower": {**wrong, "FAKETIME": SLOWER_CLOCK},
    }
    clocks = dict(list(clocks.items())[: load.count(3, 2)])
    with run_postgres() as server, ExitStack() as stack:
        hosts = _start_hosts(stack, load.folder, server.url, clocks)
        urls = [host.url for host in hosts]
        loads = [
            LiveClient(f"client{n}", [*urls[n % len(urls) :], *urls[: n % len(urls)]], answers) for n in range(CLIENTS)
        ]
        with LiveLoad(loads, answers) as clients:
            clients.wait_for_answers("no client got an answer")
            time.sleep(load.seconds)
            clients.wait_for_answers("not every client got another answer")
        _kill_all(hosts)
        compare(hosts, answers, outcome)
    outcome.figures["clocks"] = ", ".join(variables.get("FAKETIME", "right") for variables in clocks.values())
    return outcome


def _start_hosts(stack: ExitStack, folder: Path, store: str, environments: dict[str, dict[str, str]]) -> list[Host]:
    hosts = [Host(folder, name, store, environment=variables) for name, variables in environments.items()]
    for host in hosts:
        stack.callback(host.kill)
        host.start()
    for host in hosts:
        host.wait_until_ready()
    return hosts


def _kill_all(hosts: list[Host]) -> None:
    for host in hosts:
        host.kill()


def _check_batch(trajectories: Path, folder: Path, tasks: int, outcome: Outcome) -> None:
    lines = [json.loads(line) for line in read_lines(trajectories)]
    ids, effects = [line["id"] for line in lines], set(read_lines(folder / "effects"))
    outcome.check_none({f"t{n}" for n in range(tasks)} - set(ids), "tasks are lost")
    outcome.check_none(duplicates(ids), "tasks have two lines")
    outcome.check_none(
        ((line["id"], line["state"], line["reason"]) for line in lines if line["state"] != "finished"),
        "tasks did not finish",
    )
    outcome.check_none({f"batch-{n}" for n in range(tasks)} - effects, "tasks of the batch did not pay")
