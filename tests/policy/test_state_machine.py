"""Two processes that share a store, restarts and kills: no call without permission, no approval used twice."""

import json
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ferrule.policy.approvals import DEFAULT_EXPIRY
from tests.policy.calling_process import POLICIES, PRINCIPALS, TOOLS
from tests.support.processes import TalkingProcess
from tests.support.tiers import examples

pytestmark = pytest.mark.integration

SINGLE_TOOLS = ("look", "change", "wipe")
CANDIDATES = ("send/tools", "send/mcps")
"""Of the tool `send`, which two sources have; the first is destructive."""
MAX_RESTARTS = 1
"""In one example: they take longer than everything else."""
EXPIRY_DAYS = DEFAULT_EXPIRY / 86_400
NUMBERS = st.integers(0, 3)
NAMES = st.sampled_from(sorted(PRINCIPALS))
MOSTLY = st.sampled_from([True, True, True, False])
RUNS = st.sampled_from(["", "r1"])

Binding: TypeAlias = tuple[str, str, str, int]
"""The principal, the run, the tool or candidate, and the argument."""


class Process:
    """A calling process, which can be killed and started again."""

    def __init__(self) -> None:
        self._opening: dict[str, Any] = {}
        self._start()

    def _start(self) -> None:
        self._process = TalkingProcess("-m", "tests.policy.calling_process")
        assert self.read() == "ready"

    def open(self, **arguments: Any) -> None:
        self._opening = arguments
        self.ask("open", **arguments)

    def wait(self, days: int) -> None:
        self._opening["days"] += days
        self.ask("wait", days=days)

    def send(self, name: str, **arguments: Any) -> None:
        self._process.tell(json.dumps([name, arguments]))

    def read(self) -> Any:
        return json.loads(self._process.read())

    def ask(self, name: str, **arguments: Any) -> Any:
        self.send(name, **arguments)
        return self.read()

    def restart(self, *, kill: bool) -> None:
        self.end(kill=kill)
        self._start()
        self.open(**self._opening)

    def end(self, *, kill: bool) -> None:
        with self._process:
            if kill:
                self._process.kill()


@pytest.fixture(scope="module")
def processes() -> Iterator[tuple[Process, Process]]:
    both = Process(), Process()
    yield both
    for process in both:
        process.end(kill=True)


def expected_verdict(policy: str, principal: str, tool: str, n: int) -> str:
    """The policies of the process, in other words."""
    if (principal == "narrow" and tool not in ("look", "change")) or (principal == "reader" and tool != "look"):
        return "deny"
    is_agent = principal in ("agent", "acme", "narrow")
    if policy == "default":
        return "ask" if tool in ("wipe", "send/tools") and is_agent else "allow"
    if policy == "strict":
        return "deny" if tool == "wipe" and is_agent else "allow" if tool == "look" else "ask"
    if n > 2 or tool == "wipe":
        return "deny"
    return "ask" if n == 1 and tool != "look" else "allow"


class Requests:
    """What the processes should know of the approval requests."""

    def __init__(self) -> None:
        self.today = 0
        self.bindings: dict[str, Binding] = {}
        self._states: dict[str, str] = {}
        self._made_on: dict[str, int] = {}
        self._edits: dict[str, int] = {}
        self._decided: list[str] = []
        """The latest last."""

    def note(self, approval_id: str, binding: Binding) -> str:
        """A call has led to a request: a new one, or the one that waits already."""
        self._made_on.setdefault(approval_id, self.today)
        self._states.setdefault(approval_id, "pending")
        assert self.state(approval_id) == "pending"
        assert self.bindings.setdefault(approval_id, binding) == binding
        return approval_id

    def state(self, approval_id: str) -> str:
        state = self._states[approval_id]
        return "expired" if state in ("pending", "approved") and self._is_old(approval_id) else state

    def decide(self, approval_id: str, allowed: bool, n: int | None) -> str:
        """Decide if that is possible; returns what the process should say."""
        state = self.state(approval_id)
        if state != "pending" and (state != "approved" or allowed):
            return "too late"
        self._states[approval_id] = "approved" if allowed else "refused"
        self._decided.append(approval_id)
        if allowed and n is not None:
            self._edits[approval_id] = n
        return self._states[approval_id]

    def use(self, approval_id: str) -> None:
        assert self.state(approval_id) == "approved"
        self._states[approval_id] = "used"

    def approved_call(self, approval_id: str) -> Binding:
        """The call that an approval allows, with the argument that the person wants."""
        principal, run, tool, n = self.bindings[approval_id]
        return principal, run, tool, self._edits.get(approval_id, n)

    def latest_decision(self, binding: Binding) -> str | None:
        """Of a call in a run; an approval that was used does not count."""
        ids = [i for i in self._decided if self._is_relevant(i, binding) and self._states[i] != "used"]
        return ids[-1] if ids and binding[1] else None

    def is_refused(self, binding: Binding, approval_id: str | None) -> bool:
        """Whether the call was refused, in its run or by the request that it names."""
        ids = [i for i in self._decided if self._is_relevant(i, binding) and (binding[1] or i == approval_id)]
        return any(self._states[i] == "refused" for i in ids)

    def _is_relevant(self, approval_id: str, binding: Binding) -> bool:
        return self.bindings[approval_id] == binding and not self._is_old(approval_id)

    def _is_old(self, approval_id: str) -> bool:
        return self.today - self._made_on[approval_id] > EXPIRY_DAYS


def make_machine(both: tuple[Process, Process], urls: Iterator[str]) -> type[RuleBasedStateMachine]:
    either = st.sampled_from(both)

    class PolicyMachine(RuleBasedStateMachine):
        asked = Bundle("asked")

        def __init__(self) -> None:
            super().__init__()
            self.folder = tempfile.TemporaryDirectory()
            self.effects = Path(self.folder.name) / "effects"
            self.requests = Requests()
            self.done: list[str] = []
            self.restarts = 0

        @initialize(target=asked, policy=st.sampled_from(sorted(POLICIES)), data=st.data())
        def open(self, policy: str, data: st.DataObject) -> Any:
            self.policy = policy
            calls = product(sorted(PRINCIPALS), ("", "r1"), (*SINGLE_TOOLS, *CANDIDATES), range(4))
            self.asking = [call for call in calls if self._needs_approval(call)]
            url = next(urls).format(folder=self.folder.name)
            for process in both:
                process.open(url=url, effects=str(self.effects), policy=policy, days=0)
            drawn = data.draw(st.lists(st.sampled_from(self.asking), min_size=2, max_size=3, unique=True))
            return multiple(*dict.fromkeys(i for binding in drawn for i in self._call(both[0], binding)))

        @rule(target=asked, process=either, principal=NAMES, tool=st.sampled_from(TOOLS), n=NUMBERS, run=RUNS)
        def call(self, process: Process, principal: str, tool: str, n: int, run: str) -> Any:
            return multiple(*self._call(process, (principal, run, tool, n)))

        @rule(
            target=asked,
            process=either,
            approval_id=asked,
            other_tool=st.sampled_from([None, None, *TOOLS]),
            borrower=st.sampled_from([*[None] * len(PRINCIPALS), *sorted(PRINCIPALS)]),
        )
        def call_with_approval(
            self, process: Process, approval_id: str, other_tool: str | None, borrower: str | None
        ) -> Any:
            principal, run, tool, n = self.requests.bindings[approval_id]
            return multiple(*self._call(process, (borrower or principal, run, other_tool or tool, n), approval_id))

        @rule(target=asked, data=st.data(), n=st.none() | NUMBERS)
        def ask_approve_and_call_twice(self, data: st.DataObject, n: int | None) -> Any:
            binding = data.draw(st.sampled_from(self.asking))
            new = self._call(both[0], binding)
            for approval_id in list(new):
                self.decide(both[1], approval_id, True, n)
                for process in both:
                    new += self._call(process, binding, approval_id)
            return multiple(*new)

        @rule(target=asked, approval_id=asked)
        def race(self, approval_id: str) -> Any:
            approved = self.requests.approved_call(approval_id)
            if self.requests.state(approval_id) != "approved" or self._verdict(approved) == "deny":
                return multiple()
            binding = self.requests.bindings[approval_id]
            for process in both:
                process.send("call", **_call_arguments(binding, approval_id))
            answers = [process.read() for process in both]
            assert sorted(answer["outcome"] == "done" for answer in answers) == [False, True]
            self.requests.use(approval_id)
            self.done.append(f"{approved[2]} {approved[3]}")
            lost = [answer for answer in answers if answer["outcome"] == "approval_required"]
            return multiple(*(self._note_request(both[0], answer, binding) for answer in lost))

        @rule(process=either, approval_id=asked, allowed=MOSTLY, n=st.none() | NUMBERS)
        def decide(self, process: Process, approval_id: str, allowed: bool, n: int | None) -> None:
            expected = self.requests.decide(approval_id, allowed, n)
            assert process.ask("decide", approval_id=approval_id, allowed=allowed, n=n) == expected

        @rule(days=st.sampled_from([3, 5]))  # which never add up to the days after which requests expire
        def wait(self, days: int) -> None:
            self.requests.today += days
            for process in both:
                process.wait(days)

        @precondition(lambda self: self.restarts < MAX_RESTARTS)
        @rule(process=either, kill=st.booleans())
        def restart(self, process: Process, kill: bool) -> None:
            self.restarts += 1
            process.restart(kill=kill)

        @rule(process=either, principal=NAMES, tenant=st.sampled_from(["", "acme"]))
        def look_at_lists(self, process: Process, principal: str, tenant: str) -> None:
            may = {
                tool.partition("/")[0]
                for tool in (*SINGLE_TOOLS, *CANDIDATES)
                if any(expected_verdict(self.policy, principal, tool, n) != "deny" for n in range(4))
            }
            assert process.ask("list", principal=principal) == sorted(may)
            bindings = self.requests.bindings
            expected = sorted(i for i, binding in bindings.items() if PRINCIPALS[binding[0]].tenant == tenant)
            assert process.ask("requests", tenant=tenant) == expected

        @invariant()
        def nothing_else_happened(self) -> None:
            effects = self.effects.read_text().splitlines() if self.effects.exists() else []
            assert sorted(effects) == sorted(self.done)

        def teardown(self) -> None:
            for process in both:
                process.ask("close")
            self.folder.cleanup()

        def _verdict(self, binding: Binding) -> str:
            principal, _, tool, n = binding
            return expected_verdict(self.policy, principal, tool, n)

        def _needs_approval(self, binding: Binding) -> bool:
            """Whether a call leads to a request: of a candidate only if no other candidate can be called."""
            principal, run, tool, n = binding
            candidates = CANDIDATES if tool in CANDIDATES else (tool,)
            verdicts = {self._verdict((principal, run, each, n)) for each in candidates}
            return self._verdict(binding) == "ask" and "allow" not in verdicts

        def _call(self, process: Process, binding: Binding, approval_id: str | None = None) -> list[str]:
            """Make a call and check what it did; returns the request that it led to, if any."""
            is_covered = approval_id is not None and self.requests.bindings[approval_id] == binding
            if binding[2] in ("send", *CANDIDATES):
                return self._call_one_of_several(process, binding, approval_id)
            verdict, latest = self._verdict(binding), self.requests.latest_decision(binding)
            answer = process.ask("call", **_call_arguments(binding, approval_id))
            usable = approval_id if is_covered else latest if approval_id is None else None
            if verdict == "ask" and usable is not None and self.requests.state(usable) == "approved":
                return self._check_use(answer, usable)
            is_refused = self.requests.is_refused(binding, approval_id) if approval_id else latest is not None
            return self._check(process, answer, binding, "deny" if verdict == "ask" and is_refused else verdict)

        def _call_one_of_several(self, process: Process, binding: Binding, approval_id: str | None) -> list[str]:
            principal, run, _, n = binding
            candidates: list[Binding] = [(principal, run, candidate, n) for candidate in CANDIDATES]
            verdicts = {self._verdict(each) for each in candidates}
            answer = process.ask("call", **_call_arguments(binding, approval_id))
            if answer["outcome"] == "done" and answer["approval_id"] is not None:
                assert self.requests.bindings[answer["approval_id"]] in candidates
                return self._check_use(answer, answer["approval_id"])
            if answer["outcome"] == "done":
                done = next(each for each in candidates if answer["text"] == f"{each[2]} {n}")
                return self._check(process, answer, done, self._verdict(done))
            if answer["outcome"] == "approval_required":
                assert "allow" not in verdicts
                return self._check(process, answer, binding, "ask")
            is_refused = any(self.requests.is_refused(each, approval_id) for each in candidates)
            assert is_refused or verdicts == {"deny"} or self._is_edit_denied(candidates)
            return []

        def _is_edit_denied(self, candidates: list[Binding]) -> bool:
            """Whether the policy denies what a person wants one of these calls to be instead."""
            ids = [i for i, binding in self.requests.bindings.items() if binding in candidates]
            approved = [self.requests.approved_call(i) for i in ids if self.requests.state(i) == "approved"]
            return any(self._verdict(each) == "deny" for each in approved)

        def _check(self, process: Process, answer: dict[str, Any], binding: Binding, verdict: str) -> list[str]:
            outcomes = {"allow": ["done"], "ask": ["approval_required"], "deny": ["permission_denied"]}
            if binding[0] == "reader":  # a token: a tool that it may not call does not exist for it
                outcomes["deny"].append("tool_not_found")
            assert answer["outcome"] in outcomes[verdict]
            if verdict == "allow":
                self.done.append(f"{binding[2]} {binding[3]}")
            return [self._note_request(process, answer, binding)] if verdict == "ask" else []

        def _note_request(self, process: Process, answer: dict[str, Any], binding: Binding) -> str:
            principal, run, tool, n = binding
            if tool in ("send", *CANDIDATES):
                tool = process.ask("find_candidate", approval_id=answer["approval_id"])
            return self.requests.note(answer["approval_id"], (principal, run, tool, n))

        def _check_use(self, answer: dict[str, Any], approval_id: str) -> list[str]:
            _, _, tool, n = approved = self.requests.approved_call(approval_id)
            if self._verdict(approved) == "deny":  # what the person wants instead; the approval stays
                assert answer["outcome"] == "permission_denied"
                return []
            assert (answer["outcome"], answer["approval_id"]) == ("done", approval_id)
            self.requests.use(approval_id)
            self.done.append(f"{tool} {n}")
            return []

    return PolicyMachine


def _call_arguments(binding: Binding, approval_id: str | None) -> dict[str, Any]:
    principal, run, tool, n = binding
    name = tool.partition("/")[0]
    return {"tool": name, "n": n, "principal": principal, "run": run, "approval_id": approval_id}


def run_machine(processes: tuple[Process, Process], urls: Iterator[str]) -> int:
    """Returns how many stores the machine has used."""
    opened = 0

    def count_urls() -> Iterator[str]:
        nonlocal opened
        for url in urls:
            opened += 1
            yield url

    # An example is as large as its steps make it, which the health checks do not like.
    limits = settings(examples(0.2), stateful_step_count=40, suppress_health_check=list(HealthCheck), database=None)
    run_state_machine_as_test(make_machine(processes, count_urls()), settings=limits)
    return opened


def test_permissions_and_approvals_hold_on_sqlite(processes):
    assert run_machine(processes, iter(lambda: "sqlite:///{folder}/calls.db", None)) >= 3


@pytest.mark.long
def test_permissions_and_approvals_hold_on_postgres(processes, postgres_cluster):
    import psycopg

    def schemas() -> Iterator[str]:
        while True:
            name = f"test_{uuid4().hex}"
            with psycopg.connect(postgres_cluster, autocommit=True) as connection:
                connection.execute(f"CREATE SCHEMA {name}".encode())
            yield f"{postgres_cluster}&options=-csearch_path%3D{name}"

    assert run_machine(processes, schemas()) >= 3
