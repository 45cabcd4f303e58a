"""Without a cluster, tools for one run in worker processes of this machine, and nothing needs Ray."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ferrule import UnifiedToolLibrary, tool
from ferrule.batch import BatchTask
from ferrule.cli.batch import NodeProject, TaskSettings, identify_folder, open_node_backend
from ferrule.cluster import connect
from ferrule.cluster.connection import actor_options
from ferrule.config import FerruleConfig
from ferrule.core.spec import Limits
from ferrule.engine import ToolEngineConfig
from ferrule.errors import MissingExtra, SetupError, SpecError
from tests.cluster import remote_tools


@pytest.mark.integration
async def test_a_tool_for_a_cluster_runs_in_a_process_of_this_machine():
    async with UnifiedToolLibrary(ToolEngineConfig(builtin_tools=False)) as library:
        library.register(remote_tools.find_process, remote_tools.open_page, remote_tools.fail)
        place = (await library.execute("find_process")).output
        assert place["pid"] != os.getpid() and place["parent"] == os.getpid()
        page = await library.execute("open_page", {"url": "about:blank"})
        assert page.output["url"] == "about:blank"
        # An async function too: it would run on a node, not in this event loop.
        failure = await library.execute("fail", {"reason": "no"})
        assert failure.error is not None and "no" in failure.error


def test_options_are_checked_where_they_are_written():
    with pytest.raises(SpecError, match="placement must be one of local, cluster, not 'moon'"):
        tool(placement="moon")(remote_tools.find_process)  # type: ignore[call-overload]
    with pytest.raises(SpecError, match="resources: the amount of 'gpu' must be more than 0, not 0"):
        tool(resources={"gpu": 0})(lambda: None)
    assert Limits(resources={"gpu": 1}).is_for_cluster and not Limits().is_for_cluster


def test_resources_are_those_of_ray():
    assert actor_options({"cpu": 2, "gpu": 0.5, "browser": 1}) == {
        "num_cpus": 2,
        "num_gpus": 0.5,
        "resources": {"browser": 1},
    }
    assert actor_options({"browser": 1}) == {"num_cpus": 0, "resources": {"browser": 1}}


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r'pip install "ferrule\[cluster\]"'):
        connect("127.0.0.1:1")


def make_project(folder: Path, *, is_same_machine: bool, model_name: str = "offline") -> NodeProject:
    (folder / "ferrule.toml").write_text('[store]\nurl = "sqlite:///calls.db"\n')
    machine, device, number = identify_folder(folder)
    return NodeProject(
        config=FerruleConfig.read(folder / "ferrule.toml"),
        settings=TaskSettings(model="offline"),
        model_name=model_name,
        variables={"FERRULE_SAMPLE": "1"},
        is_sent_along=False,
        store_folder=(machine if is_same_machine else "another", device, number),
    )


@pytest.mark.parametrize("is_same_machine", [True, False])
async def test_a_worker_shares_the_file_of_a_store_only_on_its_machine(tmp_path, monkeypatch, is_same_machine):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FERRULE_SAMPLE", "0")
    async with open_node_backend(make_project(tmp_path, is_same_machine=is_same_machine)) as backend:
        trajectory = await backend.run_task(BatchTask(id="a", task="2 + 2"), "run-a", may_exist=False)
    assert trajectory["answer"] == "2 + 2 = 4" and os.environ["FERRULE_SAMPLE"] == "1"
    assert (tmp_path / "calls.db").exists() is is_same_machine


async def test_a_worker_that_misses_a_tool_logs_once_why_it_was_not_loaded(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FERRULE_SAMPLE", "0")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/lookup.yaml").write_text("name: lookup\n")
    project = make_project(tmp_path, is_same_machine=True)
    async with open_node_backend(project):
        assert [text.partition(":")[0] for text in caplog.messages if "lookup.yaml:1" in text] == ["not loaded"]
    caplog.clear()
    project = replace(project, settings=TaskSettings(model="offline", tools=["lookup"]))
    with pytest.raises(SetupError, match="There is no tool 'lookup'"):
        async with open_node_backend(project):
            pass
    assert [text.partition(":")[0] for text in caplog.messages if "lookup.yaml:1" in text] == ["not loaded"]


async def test_a_worker_that_would_use_another_model_is_not_used(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FERRULE_SAMPLE", "0")  # which a worker sets: restored after the test
    with pytest.raises(SetupError, match="would use the model 'offline', not 'gpt'"):
        async with open_node_backend(make_project(tmp_path, is_same_machine=True, model_name="gpt")):
            pass
