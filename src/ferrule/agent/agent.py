"""The tool-call loop: model → calls → tools → history → model, until there is an answer.

Every call goes through a sub-agent of the run, the hub and the engine; a memory keeps the run from repeating what is
known to fail. A run is written down as it goes: it can wait for a person for days, and go on after a crash.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from ferrule.agent.account import account
from ferrule.agent.acting import Acting
from ferrule.agent.alone import alone
from ferrule.agent.answer import AgentAnswer, AgentState, Approval
from ferrule.agent.approval import ApprovalPolicy, Person
from ferrule.agent.events import OnEvent, RunEnded, RunEvent, RunPaused, TurnStarted
from ferrule.agent.limits import RunLimits
from ferrule.agent.meaning import Meaning, Meant
from ferrule.agent.prompts import failure_briefing, language_of, system_prompt, warnings_from_earlier_runs
from ferrule.agent.recovery import answer_what_was_interrupted, relearn
from ferrule.agent.run import BOOKS, Run
from ferrule.agent.speaking import Speaking
from ferrule.agent.style import Decisions, Style, ToolCalls, numbered
from ferrule.agent.toolbox import Offer, Toolbox
from ferrule.call import ToolExecutionContext, ToolExecutionResult
from ferrule.errors import ModelError, RequestTooLong, SetupError
from ferrule.library import UnifiedToolLibrary
from ferrule.memory import RunMemory
from ferrule.memory.counsel import Counsel
from ferrule.messages import Message, ToolCall, assistant_message, system_message, user_message
from ferrule.models.choose import choose_model
from ferrule.models.model import Model, ModelReply, ModelRequest
from ferrule.spec import Tool
from ferrule.subagent import ToolSubAgent

logger = logging.getLogger("ferrule.agent")

SILENCES: Final = 3
"""After so many replies in a row that neither call nor answer, the run is given up."""
TROUBLE: Final = 3
"""After so many turns in a row in which everything failed, the model is told how things stand."""
WAITING: Final = 1_000
"""Of so many runs that wait, the calls are kept with their secrets."""


@dataclass(slots=True, kw_only=True)
class _Life:
    """What a run has beside its state while it is alive."""

    run: Run
    acting: Acting
    calls: ToolSubAgent
    memory: RunMemory | None
    style: Style
    emit: OnEvent
    used: set[Tool]
    silences: int = 0
    trouble: int = 0


class Agent:
    """A model with tools. One agent may have many runs at once."""

    def __init__(
        self,
        library: UnifiedToolLibrary,
        model: Model | str | None = None,
        *,
        name: str = "agent",
        instructions: str = "",
        tools: Collection[str] | None = None,
        core_tools: Sequence[str] = (),
        limits: RunLimits | None = None,
        approval: ApprovalPolicy | None = None,
        person: Person | None = None,
        memory: bool = True,
        style: Literal["tool_calls", "decisions"] = "tool_calls",
        window_tokens: int = 100_000,
        schema_tokens: int = 20_000,
    ) -> None:
        """`tools` are the only ones it may use; `core_tools` are shown in full however many there are.

        `memory=False` lets it repeat what is known to fail. Without a `person` a run that needs one waits.
        """
        self.library, self.name = library, name
        self.model = model if not (model is None or isinstance(model, str)) else choose_model(model)
        self.instructions, self.person, self.memory = instructions, person, memory
        self.limits, self.approval = limits or RunLimits(), approval or ApprovalPolicy()
        self._style, self._window = style, window_tokens
        self._core, self._schema_tokens = tuple(core_tools), schema_tokens
        self._toolbox = self._make_toolbox(tools)
        self._waiting: OrderedDict[str, list[ToolCall]] = OrderedDict()

    # Its tools

    def register_tool(self, tool: Any) -> None:
        """Bring a tool along, for the library as well."""
        self.register_tools(tool)

    def register_tools(self, *tools: Any) -> None:
        specs = self.library.register(*tools)
        if self._toolbox.allowed is not None:
            self.load_tools_by_config({*self._toolbox.allowed, *(spec.tool_id for spec in specs)})

    def load_tools_by_config(self, tool_names: Collection[str]) -> None:
        """Hold it to these tools, whatever it had before."""
        self._toolbox = self._make_toolbox(tool_names)

    # Its runs

    async def run(
        self,
        task: str,
        *,
        history: Sequence[Message] = (),
        run_id: str | None = None,
        on_event: OnEvent | None = None,
    ) -> AgentAnswer:
        """Do a task. Whatever goes wrong is in the answer; with `history` it goes on from an earlier conversation."""
        if not task.strip():
            raise SetupError("There is nothing to do: the task is empty.")
        run = Run(task, self.library.engine.store, run_id)
        with alone(self.library.engine.store, run.id):
            if run_id is not None and await run.exists():
                raise SetupError(
                    f"There is a run {run_id!r} already. Go on with it by resume({run_id!r}), or name another."
                )
            life = await self._bring_to_life(run, on_event)
            earlier = [message for message in history if message["role"] != "system"]
            run.begin([system_message(self._instructions(task)), *earlier, user_message(task)])
            return await self._live(life)

    async def resume(
        self,
        run_id: str,
        answer: str | None = None,
        *,
        approvals: Mapping[str, Approval | bool] | bool | None = None,
        on_event: OnEvent | None = None,
    ) -> AgentAnswer:
        """Go on with a run that waits, or that a crash interrupted.

        `answer` is what the user says to what the run asked; `approvals` say of each call that waits (by its id, or
        with one word for all) whether it may be made.
        """
        with alone(self.library.engine.store, run_id):
            run = await Run.load(run_id, self.library.engine.store)
            life = await self._bring_to_life(run, on_event)
            return await self._live(life, self._catch_up(life, answer, approvals))

    async def stream(
        self, task: str, *, history: Sequence[Message] = (), run_id: str | None = None
    ) -> AsyncGenerator[RunEvent, None]:
        """Do a task and see what happens as it happens; the last event has the answer. Leaving early ends the run."""
        events: asyncio.Queue[RunEvent | None] = asyncio.Queue()
        task_of_run = asyncio.create_task(
            self.run(task, history=history, run_id=run_id, on_event=events.put_nowait), name=f"ferrule-{self.name}"
        )
        task_of_run.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            task_of_run.result()
        finally:
            task_of_run.cancel()
            await asyncio.wait({task_of_run})

    async def history(self, run_id: str) -> list[Message]:
        """The messages of a run, in OpenAI's format."""
        return (await Run.load(run_id, self.library.engine.store)).messages

    async def runs(self) -> list[str]:
        """The ids of the runs in the store, the latest first."""
        return [book.removeprefix(BOOKS) for book in await self.library.engine.store.books(BOOKS)]

    # The story of a run

    async def _live(self, life: _Life, before: Awaitable[None] | None = None) -> AgentAnswer:
        run = life.run
        try:
            if before is not None:
                await before
            while run.state is AgentState.RUNNING:
                await self._turn(life)
        except ModelError as error:
            self._stop(life, str(error))
        finally:
            await self._clean_up(life)
        return self._answer(life)

    async def _catch_up(
        self, life: _Life, answer: str | None, approvals: Mapping[str, Approval | bool] | bool | None
    ) -> None:
        """From where a run was left to where its model may go on, as far as what it waits for is there."""
        run, engine = life.run, self.library.engine
        relearn(run, life.memory, engine.registry)
        if answer is not None and not run.questions:
            raise SetupError(f"The run {run.id!r} has asked nothing that could be answered.")
        if run.state in (AgentState.FINISHED, AgentState.STOPPED):
            return
        for tool in filter(None, map(engine.registry.get, {step.tool_id for step in run.steps})):
            life.acting.used(tool)  # so that what it holds since then is put away too
        known = {*run.questions, *run.approvals} if run.state is AgentState.WAITING else set[str]()
        run.go_on()
        self._bring_back_secrets(run)
        offer = self._toolbox.offer(run.task)
        await answer_what_was_interrupted(run, life.acting, offer, engine)
        await self._take_words(life, offer, answer, approvals)
        if not run.is_waiting:
            self._finish(run)
        else:
            run.wait(is_noted={*run.questions, *run.approvals} <= known)

    async def _turn(self, life: _Life) -> None:
        run = life.run
        limit = self.limits.reached(turns=run.turns, calls=len(run.steps), seconds=run.seconds, usage=run.usage)
        if limit is not None:
            self._stop(life, limit)
            return
        offer = self._toolbox.offer(run.task)
        reply = await self._think(life, offer)
        move = life.style.read(run, reply, offer)
        calls = self._within_limits(run, numbered(run, move.calls))
        text = move.text or reply.text
        run.said(assistant_message(text, calls), calls, reply.usage, kept=self._kept(life, text, calls, offer))
        if calls:
            await self._act(life, offer, calls)
        elif move.remark is not None:
            self._remark(life, move.remark)
        else:
            run.end(AgentState.FINISHED, move.text)

    async def _think(self, life: _Life, offer: Offer) -> ModelReply:
        life.emit(TurnStarted(life.run.turns + 1))
        while True:
            try:
                return await self._generate(life, life.style.request(life.run, offer), offer)
            except RequestTooLong:
                if not life.style.shorten():
                    raise

    async def _generate(self, life: _Life, request: ModelRequest, offer: Offer) -> ModelReply:
        # Nobody is told in pieces who does not watch: some models answer faster as a whole.
        speaking = None if life.emit is _nobody else Speaking(life.emit, offer.known)
        left = None if self.limits.seconds is None else max(0.001, self.limits.seconds - life.run.seconds)
        try:
            async with asyncio.timeout(left):
                reply = await self.model.generate(request, speaking)
        except TimeoutError:
            raise ModelError(f"the model {self.model.name!r} did not answer in the time that was left") from None
        if speaking is not None:
            speaking.finish()
        return reply

    async def _act(self, life: _Life, offer: Offer, calls: Sequence[ToolCall]) -> None:
        run, life.silences = life.run, 0
        before = len(run.steps)
        await life.acting.perform(calls, offer)
        if run.is_waiting:
            run.wait()
            self._waiting[run.id] = run.open_calls
            if len(self._waiting) > WAITING:
                self._waiting.popitem(last=False)
        elif not self._finish(run):
            made = run.steps[before:]
            life.trouble = 0 if any(step.is_success for step in made) else life.trouble + 1
            if life.trouble >= TROUBLE and life.trouble % TROUBLE == 0 and run.context.failed_attempts:
                run.add(user_message(failure_briefing(run.context, language=language_of(run.task))))

    # Small parts of the story

    async def _bring_to_life(self, run: Run, on_event: OnEvent | None) -> _Life:
        engine, emit = self.library.engine, _nobody if on_event is None else _patient(on_event)
        book = self.library.failures
        memory = None
        if self.memory:
            await book.load()
            counsel = Counsel(run.context, engine.registry, book, max_retries=self.limits.max_retries)
            memory = RunMemory(adviser=counsel, listener=book)
        calls = ToolSubAgent(
            self.name,
            engine,
            conversation_id=run.id,
            tools=self._toolbox.allowed_names(),
            door=_Door(self.library, self._toolbox),
            memory=memory,
            policy=self.approval,
        )
        used: set[Tool] = set()

        def note_use(tool: Tool) -> None:
            if tool not in used:
                used.add(tool)
                enter = getattr(tool.target, "enter", None)
                if enter is not None:
                    enter(run.id)

        def forgive() -> None:
            if memory is not None:
                memory.forgive()  # a person has spoken: what failed may be tried again

        acting = Acting(
            run=run,
            calls=calls,
            meaning=Meaning(self.library.hub, self._toolbox),
            policy=self.approval,
            person=self.person,
            emit=emit,
            used=note_use,
            heard=forgive,
            patience=partial(self._patience, run),
            settled=engine.discovered,
        )
        style: Style = ToolCalls(self._window) if self._style == "tool_calls" else Decisions()
        run.context.available_tools = [
            s for s in await self.library.get_all_tools() if self._toolbox.may_use(s.tool_id)
        ]
        return _Life(run=run, acting=acting, calls=calls, memory=memory, style=style, emit=emit, used=used)

    def _patience(self, run: Run, meant: Meant) -> float | None:
        """No call takes longer than the run has left."""
        if self.limits.seconds is None:
            return None
        own = None if meant.found is None else meant.found[0].spec.limits_of(meant.found[1]).timeout
        left = max(0.001, self.limits.seconds - run.seconds)
        return min(left, own or self.library.engine.config.default_timeout)

    def _instructions(self, task: str) -> str:
        warnings: list[str] = []
        if self.memory:
            offered = {tool for tool, _ in self._toolbox.offer(task).actions.values()}
            warnings = self.library.failures.warnings(offered)
        language = language_of(task)
        said = system_prompt(language=language, finish_task=True, ask_user=True, instructions=self.instructions)
        return "\n\n".join(filter(None, [said, warnings_from_earlier_runs(warnings, language=language)]))

    def _within_limits(self, run: Run, calls: list[ToolCall]) -> list[ToolCall]:
        """The calls; those beyond a limit say so instead of being made."""
        most = self.limits.calls_per_turn
        left = most if self.limits.calls is None else min(most, self.limits.calls - len(run.steps))
        too_many = f"This call was not made: {left} more calls is the most for now. Make fewer at once."
        return [*calls[:left], *(_refused(call, too_many) for call in calls[left:])]

    async def _take_words(
        self,
        life: _Life,
        offer: Offer,
        answer: str | None,
        approvals: Mapping[str, Approval | bool] | bool | None,
    ) -> None:
        """What a person has said meanwhile."""
        run = life.run
        waiting = {call.id: call for call in run.open_calls if call.id not in run.answers}
        if answer is not None:
            life.acting.told(waiting[next(iter(run.questions))], answer)
        for call_id in list(run.approvals):
            word = approvals if isinstance(approvals, bool) or approvals is None else approvals.get(call_id)
            if word is not None:
                word = Approval(allowed=word) if isinstance(word, bool) else word
                await life.acting.approved(waiting[call_id], offer, word)

    def _kept(self, life: _Life, text: str, calls: Sequence[ToolCall], offer: Offer) -> Message:
        """What the model said as it may be written down: without what its calls hand to tools as secrets."""
        run, redaction = life.run, self.library.engine.store.redaction
        for call in calls:
            meant = life.acting.meaning.of(call, offer)
            if meant.found is not None and meant.found[1].secret_names:
                run.secrets += redaction.secrets_of(meant.call.arguments, meant.found[1].secret_names)
        return assistant_message(text, [life.acting.meaning.shown(call, offer) for call in calls])

    def _bring_back_secrets(self, run: Run) -> None:
        """Calls that wait lose their secrets in the notes; where this agent made the run wait, it still has them."""
        kept = {call.id: call for call in self._waiting.pop(run.id, ())}
        run.open_calls = [kept.get(call.id, call) for call in run.open_calls]

    def _finish(self, run: Run) -> bool:
        """End a run whose model has called `finish_task`."""
        if run.finished_with is None:
            return False
        run.end(AgentState.FINISHED, run.finished_with)
        return True

    def _remark(self, life: _Life, text: str) -> None:
        life.silences += 1
        if life.silences >= SILENCES:
            self._stop(life, f"the model said nothing that could be used {life.silences} times in a row")
        else:
            life.run.add(user_message(text))

    def _stop(self, life: _Life, reason: str) -> None:
        """End without an answer, but not without an account."""
        run = life.run
        logger.info("agent=<%s>, run=<%s>, turns=<%d> | stopped: %s", self.name, run.id, run.turns, reason)
        run.end(AgentState.STOPPED, account(run.context, reason, language=language_of(run.task)), reason)

    def _answer(self, life: _Life) -> AgentAnswer:
        answer = life.run.answer(life.calls.get_brief_summary())
        life.emit(RunPaused(answer) if answer.state is AgentState.WAITING else RunEnded(answer))
        return answer

    async def _clean_up(self, life: _Life) -> None:
        """What tools hold for this run is put away, unless it only waits."""
        if life.run.state is AgentState.WAITING:
            return
        for tool in life.used:
            leave = getattr(tool.target, "leave", None)
            if leave is None:
                continue
            try:
                await leave(life.run.id)
            except Exception:
                logger.exception("tool=<%s>, run=<%s> | could not put away what it holds", tool.id, life.run.id)

    def _make_toolbox(self, tools: Collection[str] | None) -> Toolbox:
        return Toolbox(self.library, tools=tools, core=self._core, budget_tokens=self._schema_tokens)


class _Door:
    """The agent's own tools are called as they are; for all others the hub decides."""

    def __init__(self, library: UnifiedToolLibrary, toolbox: Toolbox) -> None:
        self._engine, self._hub, self._toolbox = library.engine, library.hub, toolbox

    async def execute(
        self,
        name: str,
        params: Mapping[str, Any] | None,
        context: ToolExecutionContext | None,
        /,
        *,
        action: str | None = None,
    ) -> ToolExecutionResult:
        own = self._toolbox.own(name)
        if own is not None:
            return await self._engine.execute_candidate(own, action, params, context)
        return await self._hub.execute(name, params, context, action=action)


def _refused(call: ToolCall, reason: str) -> ToolCall:
    return ToolCall(name=call.name, arguments=call.arguments, id=call.id, error=reason)


def _nobody(event: RunEvent) -> None:
    """Nobody watches."""


def _patient(on_event: OnEvent) -> OnEvent:
    """A face that fails must not take the run with it."""

    def emit(event: RunEvent) -> None:
        try:
            on_event(event)
        except Exception:
            logger.exception("event=<%s> | whoever watches the run failed", type(event).__name__)

    return emit
