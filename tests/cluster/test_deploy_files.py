"""The examples in deploy/ are YAML that says what it means, and start Ray with options that it has."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"


def read_example(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def check_ray_command(arguments: list[str]) -> dict[str, Any]:
    """The options of a `ray` command, as Ray itself reads them; an unknown one is an error."""
    scripts = pytest.importorskip("ray.scripts.scripts", reason='Ray is not installed: pip install "ferrule[cluster]"')
    command = scripts.cli.get_command(None, arguments[0])
    assert command is not None, f"there is no `ray {arguments[0]}`"
    options: dict[str, Any] = command.make_context(arguments[0], arguments[1:]).params
    return options


@pytest.mark.long  # Ray is large
def test_the_compose_file_starts_a_head_and_workers_that_find_it():
    services = read_example("ray-compose.yaml")["services"]
    head = check_ray_command(shlex.split(services["head"]["command"])[1:])
    worker = check_ray_command(shlex.split(services["worker"]["command"])[1:])
    assert head["head"] and head["block"] and worker["address"] == f"head:{head['port']}"
    assert json.loads(worker["resources"]) == {"browser": 1}
    check_ray_command(services["head"]["healthcheck"]["test"][2:])
    assert {services[name]["image"] for name in ("head", "worker", "batch")} == {"ferrule-ray"}
    assert f"ray://head:{head['ray_client_server_port']}" in services["batch"]["command"]
    for service in services.values():
        assert "ports" not in service  # whoever reaches a head can run code on its nodes
        assert set(service.get("depends_on", {})) <= set(services)


def test_the_command_of_the_compose_file_is_one_of_ferrule(tmp_path):
    from typer.main import get_command

    from ferrule.cli.batch import batch_app

    command = shlex.split(read_example("ray-compose.yaml")["services"]["batch"]["command"])
    batch = get_command(batch_app)
    run = batch.get_command(None, "run")  # type: ignore[attr-defined]
    options = run.make_context("run", command[command.index("run") + 1 :]).params
    assert (options["on"], options["workers"], options["concurrency"]) == ("ray://head:10001", 4, 64)


@pytest.mark.long
def test_the_kuberay_file_describes_a_cluster_of_one_image_and_one_version():
    resource = read_example("kuberay.yaml")
    assert (resource["apiVersion"], resource["kind"]) == ("ray.io/v1", "RayCluster")
    spec = resource["spec"]
    assert f"rayproject/ray:{spec['rayVersion']}-" in (DEPLOY / "ray.Containerfile").read_text()
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    containers = [container for group in groups for container in group["template"]["spec"]["containers"]]
    assert {container["image"] for container in containers} == {"ferrule-ray"}
    for group in groups:
        # The operator makes `ray start --name=value` of them, for a shell.
        parameters = {name: shlex.split(value)[0] for name, value in group["rayStartParams"].items()}
        options = check_ray_command(["start", *(f"--{name}={value}" for name, value in parameters.items())])
        assert isinstance(json.loads(options["resources"] or "{}"), dict)
    for group in spec["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
