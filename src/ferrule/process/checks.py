"""Checks of values against schemas that may take long: each in a process of its own, which is killed when its caller
gives up. Matching a long text with a pattern cannot be interrupted otherwise.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final
from weakref import WeakValueDictionary

from ferrule.catalog.validation.validator import ParameterCheck
from ferrule.concurrency.semaphore import ThreadsafeSemaphore
from ferrule.core.aio import finish_despite_cancellation
from ferrule.core.call import Invocation, ValidationError, ValidationResult
from ferrule.core.content import plain_json
from ferrule.core.json_schema import JsonSchema
from ferrule.core.permission import LOCAL_USER, Principal
from ferrule.core.schema_limits import compile_schema
from ferrule.core.spec import ToolCapability
from ferrule.errors import TransportFault
from ferrule.process.groups import end_with_parent

MAX_PROCESSES: Final = 2
"""Of all engines of this process together; further checks wait."""
MAX_CPU_SECONDS: Final = 60
MAX_MEMORY: Final = 4 * 1024**3
"""Bytes of one process."""
_SLOTS: Final = ThreadsafeSemaphore(MAX_PROCESSES)
_SLOTS_BY_OWNER: Final[WeakValueDictionary[str, ThreadsafeSemaphore]] = WeakValueDictionary()
_BOOTSTRAP: Final = "import sys; sys.path[:] = sys.argv[2:]; from ferrule.process.checks import main; main()"


async def check_arguments(
    check: ParameterCheck, arguments: Mapping[str, Any], principal: Principal
) -> ValidationResult:
    """Return what `check.check(arguments)` returns in a process that may take its time."""
    capability = check.capability
    answer = await _ask(
        principal,
        schema=capability.schema,
        value=plain_json(arguments),
        parameters={"name": capability.name, "fills_defaults": capability.fills_defaults, "strict": check.strict},
    )
    answer["errors"] = [ValidationError(**error) for error in answer["errors"]]
    return ValidationResult(**{**answer, "ignored": tuple(answer["ignored"])})


async def is_valid_value(schema: JsonSchema, value: Any) -> bool:
    """Return whether a schema accepts a value that the current call has returned."""
    invocation = Invocation.current.get()
    principal = LOCAL_USER if invocation is None else invocation.context.principal
    return bool((await _ask(principal, schema=schema, value=value))["is_valid"])


async def _ask(principal: Principal, **question: Any) -> dict[str, Any]:
    # A principal has at most one check that runs or waits for a process, so each of the others waits for one check of
    # it at most, however many it makes.
    owner = f"{principal.kind}/{principal.tenant}/{principal.name}"
    own_slot = _SLOTS_BY_OWNER.setdefault(owner, ThreadsafeSemaphore(1))
    path = [entry for entry in sys.path if entry]  # not the current folder: whatever is there must not be imported
    async with own_slot, _SLOTS:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _BOOTSTRAP, str(os.getpid()), *path),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C at a terminal is for us
        )
        try:
            output, _ = await process.communicate(json.dumps(question).encode())
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await finish_despite_cancellation(process.wait())
    if process.returncode != 0:
        raise TransportFault("The process that checks values against their schema has failed.")
    answer: dict[str, Any] = json.loads(output)
    return answer


def main() -> None:
    import resource

    end_with_parent(int(sys.argv[1]))
    # Bound what a check can take where nothing ends it: its call may have no timeout.
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    with suppress(ValueError, OSError):  # macOS has no limit of memory
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    question = json.load(sys.stdin)
    schema, value, parameters = (question.get(name) for name in ("schema", "value", "parameters"))
    if parameters is None:
        answer: dict[str, Any] = {"is_valid": compile_schema(schema).is_valid(value)}
    else:
        capability = ToolCapability(parameters["name"], "", schema, fills_defaults=parameters["fills_defaults"])
        result = ParameterCheck(capability, strict=parameters["strict"], may_take_long=True).check(value)
        answer = {
            "is_valid": result.is_valid,
            "errors": [error.to_dict() for error in result.errors],
            "validated_params": result.validated_params,
            "ignored": result.ignored,
        }
    json.dump(answer, sys.stdout, default=str)
