"""The network between a server and its database is cut, while another server keeps its connection.

Everything happens in network namespaces of its own: this process runs in one, with Postgres; each server runs in
another, and reaches Postgres through a cable (a pair of virtual interfaces) of its own. A cable that is down loses
packets without an answer, as a broken switch does. Clients of a server are on its machine: their threads enter its
namespace, so they reach it while its database is away.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from chaos.live_load import LEASE_SECONDS, Answers, Host, LiveClient, LiveLoad, compare, wait_until
from chaos.scenario import Load, Outcome

ROOT = Path(__file__).parents[1]
NEW_NETWORK = 0x40000000
"""CLONE_NEWNET of the kernel."""
HOLD = 'read line <&0; exec "$@" </dev/null'
"""A server waits for its cable before it starts."""
CLIENTS_PER_SERVER = 4
"""Every other one uses idempotency keys."""
TIMEOUT = 600.0


def cut_network(load: Load) -> Outcome:
    from tests.support.postgres import find_postgres_programs

    if reason := _find_reason_to_skip():
        return Outcome(figures={"skipped": reason})
    if find_postgres_programs() is None:
        return Outcome(figures={"skipped": "no Postgres programs on this machine"})
    arguments = [str(load.folder), str(load.seconds), str(load.seed)]
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-m", "chaos.network", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=load.seconds + TIMEOUT,
    )
    return Outcome(**json.loads(done.stdout))


def _find_reason_to_skip() -> str:
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need root on Linux"
    if not (shutil.which("ip") and shutil.which("unshare") and shutil.which("nsenter")):
        return "no programs ip, unshare and nsenter; on Debian: apt-get install iproute2 util-linux"
    probe = "ip link add probe0 type veth peer name probe1"
    done = subprocess.run(["unshare", "--net", "sh", "-c", probe], capture_output=True, text=True)
    return "" if done.returncode == 0 else f"this machine allows no virtual interfaces: {done.stderr.strip()}"


class CabledHost(Host):
    """A server in a namespace of its own, with one cable to the database."""

    def __init__(self, folder: Path, name: str, number: int) -> None:
        self.cable, self.database_address = f"db{number}", f"10.9.{number}.1"
        store = f"postgresql://ferrule@{self.database_address}/postgres"
        super().__init__(folder, name, store, prefix=["unshare", "--net", "sh", "-c", HOLD, "hold"])
        self._own_address = f"10.9.{number}.2"
        _run("ip", "link", "add", self.cable, "type", "veth", "peer", "name", f"{self.cable}-end")
        _run("ip", "address", "add", f"{self.database_address}/24", "dev", self.cable)
        _run("ip", "link", "set", self.cable, "up")
        # The cable is gone with the namespace of a killed server, and then its journal is still to be imported.
        _run("ip", "address", "add", f"{self.database_address}/32", "dev", "lo")

    def start(self) -> None:
        super().start()
        assert self.process is not None
        own = os.stat("/proc/self/ns/net").st_ino
        wait_until(lambda: os.stat(self._namespace).st_ino != own, "the namespace of a server was not made")
        _run("ip", "link", "set", f"{self.cable}-end", "netns", str(self.process.pid))
        for command in (
            f"ip address add {self._own_address}/24 dev {self.cable}-end",
            f"ip link set {self.cable}-end up",
            "ip link set lo up",
        ):
            _run("nsenter", f"--net={self._namespace}", *command.split())
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.close()

    def set_cable(self, state: str) -> None:
        """`up` or `down`."""
        _run("ip", "link", "set", self.cable, state)

    def enter(self) -> None:
        """Let the sockets of this thread be those of the server's machine."""
        with open(self._namespace) as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), NEW_NETWORK) != 0:
                raise OSError(ctypes.get_errno(), "the thread cannot enter the namespace of the server")

    def is_ready(self) -> bool:
        return in_thread(self.enter, super().is_ready)

    @property
    def _namespace(self) -> str:
        assert self.process is not None
        return f"/proc/{self.process.pid}/ns/net"


def in_thread(prepare: Callable[[], None], work: Callable[[], bool]) -> bool:
    """Do something in a thread of its own, which ends with the namespace that it has entered."""
    results: list[bool] = []

    def run() -> None:
        prepare()
        results.append(work())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return bool(results and results[0])


def cut_cables(load: Load) -> Outcome:
    """In the namespace of the database: the cable of one of two servers is cut, several times."""
    from tests.support.postgres import run_postgres

    outcome, answers, cuts, chance = Outcome(), Answers(), 0, random.Random(load.seed)
    _run("ip", "link", "set", "lo", "up")
    hosts = [CabledHost(load.folder, f"server{number}", number) for number in (1, 2)]
    addresses = ",".join(host.database_address for host in hosts)
    with run_postgres(addresses), ExitStack() as stack:
        for host in hosts:
            stack.callback(host.kill)
            host.start()
        for host in hosts:
            host.wait_until_ready()
        clients = [
            LiveClient(
                f"{host.folder.name}-{number}", [host.url], answers, has_keys=number % 2 == 0, prepare=host.enter
            )
            for host in hosts
            for number in range(CLIENTS_PER_SERVER)
        ]
        deadline, longest = time.monotonic() + load.seconds, 0.0
        with LiveLoad(clients, answers) as live:
            live.wait_for_answers("no client got an answer")
            while time.monotonic() < deadline or cuts < 1:
                victim = chance.choice(hosts)
                victim.set_cable("down")
                others = LiveLoad([each for each in clients if not each.name.startswith(victim.folder.name)], answers)
                others.wait_for_answers("the server whose network was not cut did not go on", 3)
                time.sleep(1.5 * LEASE_SECONDS + chance.uniform(0, load.seconds / 4))
                victim.set_cable("up")
                healed_at = time.monotonic()
                live.wait_for_answers("after a cut, not every client got an answer")
                longest, cuts = max(longest, time.monotonic() - healed_at), cuts + 1
        for host in hosts:
            host.kill()
        outcome.figures |= {"cuts": cuts, "longest recovery, s": round(longest, 1)}
        compare(hosts, answers, outcome)
    return outcome


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)} failed: {done.stderr.strip()}")


if __name__ == "__main__":
    given = Load(seconds=float(sys.argv[2]), fraction=1.0, seed=int(sys.argv[3]), folder=Path(sys.argv[1]))
    print(json.dumps(cut_cables(given).to_dict()))
