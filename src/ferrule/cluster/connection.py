"""The connection of this process to a Ray cluster: found, or started on this machine."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from typing import Any, Final

from ferrule.errors import MissingExtra, SetupError, error_text

logger = logging.getLogger("ferrule.cluster")

NAMESPACE: Final = "ferrule"
LOCAL: Final = "local"
AUTO: Final = "auto"
OBJECT_STORE_BYTES: Final = 128 * 1024 * 1024
"""Of a cluster that is started here: tasks and results are small, and Ray would reserve a third of the memory."""
_START_LOCK = threading.Lock()


def import_ray() -> Any:
    """Import Ray, which takes a second."""
    # Ray sends statistics to its makers unless this is set before it is imported.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Otherwise Ray warns with each start that a future version will leave the variables of GPUs alone.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise MissingExtra("ray", "cluster") from None
    return ray


def connect(address: str | None = None, *, runtime_env: Mapping[str, Any] | None = None) -> Any:
    """Connect this process to a cluster and return Ray; does nothing if it is connected.

    `address` is `host:port` of the head, `ray://host:10001`, `auto` for the cluster of this machine or of
    `RAY_ADDRESS`, or `local` for a new one on this machine. None: `auto`, and `local` if there is none.
    """
    ray = import_ray()
    with _START_LOCK:
        if ray.is_initialized():
            return ray
        try:
            _initialize(ray, address or AUTO, runtime_env)
        except ConnectionError as error:
            if address is not None:
                raise SetupError(
                    f"There is no Ray cluster at {address!r}: {error_text(error)}. Start one with `ray start --head`, "
                    "or leave the address out to use this machine."
                ) from error
            _initialize(ray, LOCAL, runtime_env)
        except (ValueError, RuntimeError) as error:  # a malformed address or runtime environment, another version
            raise SetupError(f"The Ray cluster at {address or AUTO!r} cannot be used: {error_text(error)}") from error
    return ray


def _initialize(ray: Any, address: str, runtime_env: Mapping[str, Any] | None) -> None:
    options: dict[str, Any] = {"runtime_env": dict(runtime_env)} if runtime_env else {}
    if address == LOCAL:
        # Whoever reaches a cluster can run code on it: what is started here listens on loopback only.
        options |= {
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
            "_node_ip_address": "127.0.0.1",
        }
        logger.info("starting a Ray cluster on this machine")
    _print_to_stderr(ray)
    ray.init(address=address, namespace=NAMESPACE, log_to_driver=True, logging_level=logging.ERROR, **options)


def _print_to_stderr(ray: Any) -> None:
    """Let Ray print what workers print and what happens to nodes on standard error.

    Standard output belongs to the program: it may be JSON, or the messages of an MCP client.
    """
    module: Any = getattr(ray._private, "worker", None)
    original = getattr(module, "print_to_stdstream", None)
    if original is None or original.__module__ == __name__:
        return

    def print_to_stderr(data: dict[str, Any], *arguments: Any, **options: Any) -> None:
        if data.get("pid") == "raylet":  # a page of log for each node that is lost
            data = {**data, "lines": [line.partition("\n")[0] for line in data["lines"]]}
        original({**data, "is_err": True}, *arguments, **options)

    module.print_to_stdstream = print_to_stderr


def disconnect() -> None:
    """Leave the cluster; one that `connect` started ends."""
    import_ray().shutdown()


def actor_options(resources: Mapping[str, float]) -> dict[str, Any]:
    """Return Ray's options for amounts of `cpu`, `gpu`, `memory` (bytes), or resources that the cluster names."""
    named = {"cpu": "num_cpus", "gpu": "num_gpus", "memory": "memory"}
    options: dict[str, Any] = {"num_cpus": 0}
    own = {}
    for name, amount in resources.items():
        if name.lower() in named:
            options[named[name.lower()]] = amount
        else:
            own[name] = amount
    return options | ({"resources": own} if own else {})


def explain_missing_resources(resources: Mapping[str, float]) -> str:
    """Explain which resources no node of the cluster has now; empty if a node has them all."""
    ray = import_ray()
    names = {"cpu": "CPU", "gpu": "GPU"}
    needed = {names.get(name.lower(), name): amount for name, amount in resources.items()}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(all(node.get(name, 0) >= amount for name, amount in needed.items()) for node in nodes):
        return ""
    amounts = ", ".join(f"{name}: {amount:g}" for name, amount in needed.items())
    return f"No node of the cluster has {amounts}. Start one that has it (`ray start --resources …`), or ask for less."
