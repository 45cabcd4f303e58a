"""Tools and batches on a real Ray cluster of several nodes, which are lost in the middle of the work."""

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ferrule import UnifiedToolLibrary, tool
from ferrule.batch import BatchTask, ClusterBackend
from ferrule.cluster import ClusterExecutor, connect, disconnect
from ferrule.engine import ToolEngineConfig
from ferrule.errors import SetupError
from tests.batch.scripted_batch import read_lines
from tests.cluster import remote_tools
from tests.cluster.cluster_batch import FREE_TASKS, open_broken_backend, run_cluster_batch
from tests.support.ports import find_free_port
from tests.support.waiting import is_running, until, until_sync

ROOT = Path(__file__).parents[2]
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80_000_000}

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason='Ray is not installed: pip install "ferrule[cluster]"'),
    pytest.mark.long,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # Ray leaves the log files of its processes open
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def cluster():
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # with this, Ray uses loopback addresses only
    from ray.cluster_utils import Cluster

    # Ray's client server asks another process of the head for an environment, and must know its port.
    ports = {"ray_client_server_port": find_free_port(), "runtime_env_agent_port": find_free_port()}
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, **ports, "include_dashboard": False})
    cluster.client_address = f"ray://127.0.0.1:{ports['ray_client_server_port']}"  # type: ignore[attr-defined]
    try:
        cluster.add_node(**NODE, resources={"browser": 1, "batch": 1})
        connect(cluster.address)
        yield cluster
    finally:
        disconnect()
        cluster.shutdown()


@tool(isolation="inline")
def add_here(a: int, b: int) -> int:
    """Add, in the process of the caller."""
    return a + b


@asynccontextmanager
async def open_library(idle_time: float = 60.0):
    async with UnifiedToolLibrary(ToolEngineConfig(builtin_tools=False)) as library:
        library.engine.register_executor("cluster", ClusterExecutor(idle_time=idle_time))
        library.register(*remote_tools.TOOLS, add_here)
        yield library


def read_pids(file: Path) -> set[int]:
    return {int(line.split()[0]) for line in file.read_text().splitlines()} if file.exists() else set()


async def test_a_tool_runs_on_a_node_that_has_its_resources_and_reports_from_there(cluster, tmp_path, capfd):
    async with open_library() as library:
        place = (await library.execute("find_process")).output
        page = (await library.execute("open_page", {"url": "about:blank"})).output
        [node] = cluster.worker_nodes
        raylet = node.all_processes["raylet"][0].process.pid
        assert int(page["node"]) == raylet and place["parent"] != os.getpid()
        messages: list[str] = []
        params = {"file": str(tmp_path / "numbers"), "to": 3}
        result = await library.execute("count_slowly", params, on_progress=lambda p: messages.append(p.message))
        assert (result.output, messages) == ({"result": 3}, ["number 0", "number 1", "number 2"])
        # A call that the function makes comes back to the caller, with its limits and records.
        nested = await library.execute("add_on_node", {"a": 1, "b": 2})
        assert nested.text == "3"
        records = await library.engine.store.query_call_records(tool_name="add_here")
        assert [record.parent_id for record in records] == [nested.call_id]
        failure = await library.execute("fail", {"reason": "no reason"})
        assert failure.error == "ValueError: no reason"
        printed = ""

        def has_printed() -> bool:
            nonlocal printed
            printed += "".join(capfd.readouterr())
            return "counting to 3" in printed

        await until(has_printed, 60)


async def test_a_timeout_and_a_cancellation_end_the_work_on_the_node(cluster, tmp_path):
    async with open_library() as library:
        file = tmp_path / "timeout"
        result = await library.execute("count_slowly", {"file": str(file), "to": 10_000}, timeout=3.0)
        assert result.error_type == "timeout"
        assert not any(map(is_running, read_pids(file)))
        file = tmp_path / "cancelled"
        call = asyncio.create_task(library.execute("count_slowly", {"file": str(file), "to": 10_000}))
        await until(lambda: bool(read_pids(file)), 60)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not any(map(is_running, read_pids(file)))


async def test_only_an_idempotent_tool_is_repeated_when_its_process_is_lost(cluster, tmp_path):
    async with open_library() as library:
        once, again = tmp_path / "once", tmp_path / "again"
        result = await library.execute("end_process", {"file": str(once)})
        assert not result.is_success and result.metadata["outcome"] == "unknown"
        assert once.read_text() == "ran\n"
        result = await library.execute("end_process_once", {"file": str(again)})
        assert result.text == "done" and again.read_text() == "ran\nran\n"


async def test_what_an_idle_tool_has_reserved_is_given_back(cluster):
    import ray

    async with open_library(idle_time=0.01) as library:
        await library.execute("open_page", {"url": "about:blank"})
        await until(lambda: ray.available_resources().get("browser") == 1, 60)
        assert (await library.execute("open_page", {"url": "about:blank"})).is_success


async def test_a_lost_node_fails_its_call_and_loses_no_task_of_a_batch(cluster, tmp_path):
    node = cluster.add_node(**NODE, resources={"batch": 1, "counter": 1})
    number, lines, file = 60, tmp_path / "out" / "trajectories.jsonl", tmp_path / "numbers"
    (tmp_path / "hold").touch()
    batch = asyncio.create_task(run_cluster_batch(tmp_path, number, workers=2, resources={"batch": 1}))
    async with open_library() as library:
        library.register(tool(name="count_there", resources={"counter": 1})(remote_tools.count_for_ever))
        call = asyncio.create_task(library.execute("count_there", {"file": str(file)}, timeout=200))
        await until(lambda: lines.exists() and lines.read_bytes().count(b"\n") >= FREE_TASKS, 120)
        # Both workers are in the middle of tasks, and the other node runs the call.
        await until(lambda: len(read_pids(tmp_path / "started")) == 2 and bool(read_pids(file)), 120)
        cluster.remove_node(node, allow_graceful=False)
        (tmp_path / "hold").unlink()
        # The call may have had effects, and its tool is not idempotent: it fails, and nothing of it goes on.
        lost = await call
        assert lost.error is not None and "The node that ran tool 'count_there' was lost" in lost.error
        assert lost.metadata["outcome"] == "unknown"
        await until(lambda: not any(map(is_running, read_pids(file))), 60)
    # The tasks of the batch continue on the other node.
    result = await batch
    assert (result.stopped, result.summary["tasks"]) == ("", number)
    assert Counter(line["id"] for line in read_lines(tmp_path / "out")) == {f"t{n}": 1 for n in range(number)}
    assert {line["answer"] for line in read_lines(tmp_path / "out")} == {str(2 * n) for n in range(number)}
    assert any(line["is_resumed"] for line in read_lines(tmp_path / "out"))


async def test_a_killed_driver_takes_its_workers_with_it_and_the_batch_continues(cluster, tmp_path):
    number, lines = 40, tmp_path / "out" / "trajectories.jsonl"
    kill_driver_after(8, lines, [cluster.address, str(tmp_path), str(number)])
    finished = {line["task"].split()[0] for line in read_lines_up_to_the_last(lines)}
    await until(lambda: not any(map(is_running, read_pids(tmp_path / "workers"))), 60)
    result = await run_cluster_batch(tmp_path, number, workers=1)
    assert (result.progress.finished_before, result.summary["tasks"]) == (len(finished), number)
    assert Counter(line["id"] for line in read_lines(tmp_path / "out")) == {f"t{n}": 1 for n in range(number)}
    effects = Counter((tmp_path / "effects").read_text().split())
    assert all(effects[task] == 1 for task in finished)


def kill_driver_after(number: int, lines: Path, arguments: list[str]) -> None:
    """Start a batch in a process of its own, and kill that in the middle of its work."""
    process = subprocess.Popen([sys.executable, "-m", "tests.cluster.cluster_batch", *arguments], cwd=ROOT)
    try:
        until_sync(lambda: lines.exists() and lines.read_bytes().count(b"\n") >= number, 200)
    finally:
        process.kill()
        process.wait()


def read_lines_up_to_the_last(file: Path) -> list[dict[str, str]]:
    """The whole lines of a file that a killed process may have left with half a line."""
    return [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]


async def test_a_worker_that_cannot_be_set_up_stops_the_batch_with_the_reason(cluster):
    backend = ClusterBackend(open_broken_backend, workers=1, concurrency=1)
    try:
        with pytest.raises(SetupError, match="LookupError: the node has no model"):
            await backend.run_task(BatchTask(id="a", task="1 + 1"), "run", may_exist=False)
    finally:
        await backend.aclose()


@pytest.mark.parametrize("is_client", [False, True])
def test_the_command_runs_a_batch_on_a_cluster(cluster, tmp_path, is_client):
    """On a node that has the project's folder, and through Ray's client with the folder sent along."""
    settings = '[cluster]\nruntime_env = { working_dir = "." }\n' if is_client else ""
    (tmp_path / "ferrule.toml").write_text(settings)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "place.py").write_text(PLACE_TOOL)
    (tmp_path / "tasks.jsonl").write_text(
        '{"id": "a", "task": "what is 2 + 2"}\n{"id": "b", "task": "find the folder"}\n'
        '{"id": "c", "task": "find the browser"}\n'
    )
    command = [sys.executable, "-m", "ferrule", "--config", "ferrule.toml", "batch", "run", "tasks.jsonl"]
    address = cluster.client_address if is_client else cluster.address
    options = ["--out", "out", "--model", "offline", "--on", address, "--workers", "1", "--json"]
    done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["states"] == {"finished": 3}  # what tools print is not mixed with it
    answers = {line["id"]: line["answer"] for line in read_lines(tmp_path / "out")}
    assert answers["a"] == "2 + 2 = 4"
    assert (str(tmp_path) in answers["b"]) is not is_client, answers["b"]
    [node] = cluster.worker_nodes
    assert str(node.all_processes["raylet"][0].process.pid) in answers["c"]


PLACE_TOOL = """
import os
from ferrule import tool

@tool(read_only=True, isolation="inline")
def find_the_folder() -> str:
    \"\"\"Find the folder.\"\"\"
    print("looking for the folder")
    return "The folder is " + os.getcwd()

@tool(read_only=True, resources={"browser": 1})
def find_the_browser() -> str:
    \"\"\"Find the browser.\"\"\"
    return "The browser is on " + os.environ["RAY_RAYLET_PID"]
"""
