"""Processes that share a limit on one Postgres store: killed at random, while the database restarts."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from chaos.scenario import Load, Outcome

PROCESSES = 3
CALLERS = 4
LIMIT = 2
ROOT = Path(__file__).parents[1]
FINISH_TIMEOUT = 180


def share_limit(load: Load) -> Outcome:
    from tests.support.postgres import find_postgres_programs, run_postgres

    if find_postgres_programs() is None:
        return Outcome(figures={"skipped": "no Postgres programs on this machine"})
    os.environ["XDG_STATE_HOME"] = str(load.folder / "state")
    log = load.folder / "calls.log"
    outcome, kills, restarts = Outcome(), 0, 0
    killed: set[int] = set()
    chance, deadline = random.Random(load.seed), time.monotonic() + load.seconds
    with run_postgres() as server:

        def start(calls: int) -> subprocess.Popen[bytes]:
            arguments = [server.url, str(log), str(LIMIT), str(CALLERS), str(calls)]
            return subprocess.Popen([sys.executable, "-m", "tests.concurrency.fleet_process", *arguments], cwd=ROOT)

        processes = [start(1_000_000) for _ in range(PROCESSES)]
        try:
            while time.monotonic() < deadline or kills < 2:
                time.sleep(chance.uniform(0.5, 3.0))
                if chance.random() < 0.2:
                    server.restart()
                    restarts += 1
                    continue
                victim = processes.pop(chance.randrange(PROCESSES))
                killed.add(victim.pid)
                victim.kill()
                victim.wait()
                kills += 1
                processes.append(start(1_000_000))
        finally:
            for process in processes:
                killed.add(process.pid)
                process.kill()
                process.wait()
        last = start(5)
        outcome.check(last.wait(FINISH_TIMEOUT) == 0, "the last process got no slots")
        finished = _check_log(log, killed, outcome)
        outcome.check(finished[last.pid] == 5 * CALLERS, f"the last process made {finished[last.pid]} calls")
    outcome.figures |= {"calls": finished.total(), "kills": kills, "restarts of Postgres": restarts}
    return outcome


def _check_log(log: Path, killed: set[int], outcome: Outcome) -> Counter[int]:
    """The calls that have ended, by process; more than the limit at the same time are failures."""
    from tests.concurrency.fleet_process import count_most_running, read_log

    most = count_most_running(log, killed)
    outcome.figures["limit"], outcome.figures["most calls at the same time"] = LIMIT, most
    outcome.check(most <= LIMIT, f"{most} calls ran at the same time, the limit is {LIMIT}")
    return Counter(pid for _, pid, change in read_log(log) if change < 0)
