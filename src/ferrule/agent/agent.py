"""The tool-call loop: model → calls → tools → history → model, until there is an answer.

Every call goes through `agent.calls`, the hub and the engine. A memory keeps the run from repeating calls that are
known to fail. A run is written into the store as it proceeds, so it can wait for a person for days and continue after a
crash.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Collection, Sequence
from contextlib import suppress
from copy import copy
from typing import Any, Literal, Self, TypeAlias, TypedDict, Unpack

from ferrule.agent.answer import (
    AgentAnswer,
    AgentState,
    CallProgress,
    CustomEvent,
    OnEvent,
    OutputT,
    RunEvent,
    StoredRun,
    TextPiece,
    TurnStarted,
    log_listener_errors,
)
from ferrule.agent.budget import BudgetedModel, NeedsPerson, RunBudget, RunLimits
from ferrule.agent.calls import Answers, ApprovalDecisions, PausedRuns, RunCalls, RunRequests, require_question
from ferrule.agent.formats import (
    DecisionFormat,
    OutputType,
    ReplyFormat,
    TextStreamer,
    ToolCallFormat,
    assign_call_ids,
    reject_calls_over_limit,
)
from ferrule.agent.prompts import (
    explain_denial,
    explain_stop,
    suggest_missing_setup,
    system_prompt,
    warnings_from_earlier_runs,
)
from ferrule.agent.run import Run, lock_run
from ferrule.agent.toolbox import (
    MAX_NAMED_SCHEMA_TOKENS,
    MAX_SCHEMA_TOKENS,
    AgentLibrary,
    Toolbox,
    ToolOffer,
    policy_of_run,
    register_functions,
)
from ferrule.agent.turn import ActiveRun
from ferrule.core.aio import MAX_QUEUED_PROGRESS, ProgressQueue
from ferrule.core.content import Image
from ferrule.core.messages import Message, assistant_message, image_message, system_message, user_message
from ferrule.core.model import (
    Model,
    ModelReply,
    ModelRequest,
    ModelSettings,
    ModelWithSettings,
    can_reason,
    check_settings,
    selects_tools,
)
from ferrule.core.names import did_you_mean
from ferrule.core.permission import CallPolicy, Principal
from ferrule.errors import BudgetSpent, ModelError, RequestTooLong, SetupError
from ferrule.library.library import CONVERSATION_TOOLS, UnifiedToolLibrary
from ferrule.library.meta_tools import META_TOOLS
from ferrule.models.choose import choose_model
from ferrule.models.retry import RetryingModel, close_model
from ferrule.policy.approvals import Person, check_person
from ferrule.policy.policy import check_policy
from ferrule.policy.provenance import ProvenanceRules, RunOrigins, UntrustedTargets
from ferrule.texts.language import detect_language

logger = logging.getLogger("ferrule.agent")

Task: TypeAlias = str | Sequence[str | Image]


class RunOptions(TypedDict, total=False):
    """The parameters of `Agent.run` besides the task and the type of the answer."""

    history: Sequence[Message]
    run_id: str | None
    on_event: OnEvent | None
    budget: RunBudget | None
    deps: Any
    model_settings: ModelSettings | None


class Agent:
    """A model with tools: those of a library, or a list of functions. One agent may have many concurrent runs."""

    def __init__(
        self,
        library: UnifiedToolLibrary | list[Any] | Model | str | None = None,
        model: Model | str | None = None,
        *,
        name: str = "agent",
        instructions: str = "",
        tools: Collection[Any] | None = None,
        core_tools: Sequence[str] = (),
        control_tools: Collection[str] | None = None,
        limits: RunLimits | None = None,
        policy: CallPolicy | None = None,
        principal: Principal | None = None,
        person: Person | None = None,
        untrusted_targets: UntrustedTargets | None = None,
        memory: bool = True,
        style: Literal["tool_calls", "decisions"] | ReplyFormat = "tool_calls",
        window_tokens: int = 100_000,
        schema_tokens: int | None = None,
        model_settings: ModelSettings | None = None,
    ) -> None:
        """`Agent(library, model)`, or `Agent([function, …], model)` without a library.

        `tools` restricts it to these: names of tools of the library, or functions and other things that are added to
        the library. Without a library the agent has one of its own with only these; it is open during a run, or inside
        `async with agent`. The model always sees the schemas of `core_tools`, and all others if they have at most
        `schema_tokens`: 2,000, or 20,000 of tools that `tools` names.

        The model may end a run with `finish_task` and ask with `ask_user`; those in `control_tools` are shown to it, by
        default `ask_user` if there is a `person` to answer. `policy` decides about its calls instead of the library's.
        `principal` is who it is to policies; by default an agent with its `name`. `untrusted_targets` ("ask", "deny",
        "allow") says what happens to calls whose target comes from what a tool returned; by default the policy does.
        `memory=False` lets it repeat calls known to fail. Runs learn from earlier runs of the same tenant only:
        the principal's, or else the library's. Without a `person`, a run that needs an answer or an approval waits.
        With `style` "decisions", or a `DecisionFormat`, it decides by prompt, not by tool calls.
        `model_settings` are the temperature and the `max_tokens` of its requests.
        """
        self._own_library: AgentLibrary | None = None
        library, tools = (None, [*library, *(tools or ())]) if isinstance(library, list) else (library, tools)
        if isinstance(library, UnifiedToolLibrary):
            self.library = library
        elif library is not None and model is not None:
            raise SetupError(
                f"{library!r} is not a library or a list of tools: write Agent(library, model) or Agent([tool], model)"
            )
        else:
            self._own_library = AgentLibrary(tools or ())
            self.library = self._own_library.library
            model = library if library is not None else model
        self.name = name
        self.model = choose_model(model)
        self.instructions, self.person, self.memory = instructions, check_person(person), memory
        check_policy(policy)
        self.limits, self.policy = limits or RunLimits(), policy
        self._provenance = ProvenanceRules.of(
            self.library.engine.policy if policy is None else policy, untrusted_targets
        )
        self._principal = self.library.with_tenant(principal or Principal(kind="agent", name=name))
        self._style, self._window, self._settings = style, window_tokens, check_settings(model_settings)
        self._core, self._schema_tokens = tuple(core_tools), schema_tokens
        self._control_tools = frozenset((["ask_user"] if person else []) if control_tools is None else control_tools)
        self._toolbox = self._make_toolbox(None if tools is None else register_functions(self.library, tools))
        self._unchecked_tools = {tool for tool in tools or () if isinstance(tool, str)}
        if self.library.engine.is_open:
            self._check_tools()
        self._paused = PausedRuns()

    # Tools

    def register_tool(self, tool: Any) -> None:
        """Add a tool to the agent and to the library."""
        specs = self.library.register(tool)
        if self._toolbox.allowed is not None:
            self._toolbox = self._make_toolbox({*self._toolbox.allowed, *(spec.tool_id for spec in specs)})

    def register_tools(self, *tools: Any) -> None:
        for tool in tools:
            self.register_tool(tool)

    def load_tools_by_config(self, tool_names: Collection[str]) -> None:
        """Restrict the agent to these tools, replacing any earlier restriction. Names may have wildcards."""
        self._unchecked_tools = set(tool_names)
        self._check_tools()
        self._toolbox = self._make_toolbox(tool_names)

    def _check_tools(self) -> None:
        """Raise SetupError for a name that is no tool's, unless a server that is being listed may bring the tool.

        An orchestrator registers the tool for the history of a conversation when it begins.
        """
        engine = self.library.engine
        snapshot = engine.registry.snapshot()
        names = self._unchecked_tools.difference(CONVERSATION_TOOLS, META_TOOLS)  # may be added later
        self._unchecked_tools = {n for n in names if not (snapshot.may_contain(n) or set(n) & set("*?["))}
        if unknown := sorted(name for name in self._unchecked_tools if not engine.may_discover(name)):
            raise SetupError(
                f"There is no tool {unknown[0]!r}.{did_you_mean(unknown[0], snapshot.by_id)} "
                "Register the tool in the library first, or correct the name."
            )

    @property
    def active_resources(self) -> dict[str, Any]:
        """Return the objects of tools that are cleaned up when runs end, by the names of the tools."""
        permitted = self._toolbox.permissions.select_tools(self.library.engine.registry.snapshot())
        objects = {tool.id: getattr(tool.target, "closable_object", None) for tool in permitted.values()}
        return {tool_id: resource for tool_id, resource in objects.items() if resource is not None}

    # The library of its own

    async def __aenter__(self) -> Self:
        if self._own_library is not None:
            await self._own_library.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._own_library is not None:
            await self._own_library.__aexit__(*exc)

    # Runs

    async def run(
        self,
        task: Task,
        *,
        output: type[OutputT] | None = None,
        history: Sequence[Message] = (),
        run_id: str | None = None,
        on_event: OnEvent | None = None,
        budget: RunBudget | None = None,
        deps: Any = None,
        model_settings: ModelSettings | None = None,
    ) -> AgentAnswer[OutputT]:
        """Do a task: a text, or a list of texts and images. Errors are reported in the answer. `history` holds the
        messages of an earlier conversation.

        `output` is the type of the answer: a pydantic model, a dataclass, or a type such as `int` or `list[str]`. The
        answer is checked, and the model is told what is wrong with it; `answer.output` is the value.
        `budget` is given by a caller who has used part of the limits for this task already. Tools get `deps` in their
        context. `model_settings` hold for this run, before those of the agent.
        """
        parts = [task] if isinstance(task, str) else list(task) if isinstance(task, Sequence) else [task]
        text = "\n".join(part for part in parts if isinstance(part, str))
        if not text.strip() or not all(isinstance(part, (str, Image)) for part in parts):
            raise SetupError(f"task must be a string that is not empty, or a list of strings and images, not {task!r}.")
        images = [part for part in parts if isinstance(part, Image)]
        return await self._run_task(
            text,
            [*history, image_message(images)] if images else history,
            run_id,
            on_event,
            budget,
            None if output is None else OutputType(output),
            deps=deps,
            settings=model_settings,
        )

    async def answer_directly(
        self,
        task: str,
        prompt: str,
        *,
        history: Sequence[Message] = (),
        run_id: str | None = None,
        on_event: OnEvent | None = None,
        budget: RunBudget | None = None,
    ) -> AgentAnswer[str]:
        """Answer a task with one reply of the model, without tools. `prompt` is the system message.

        Like any other run, the run is stored and can be resumed. The loop then continues it.
        """
        return await self._run_task(task, history, run_id, on_event, budget, direct_prompt=prompt)

    def run_sync(
        self, task: Task, *, output: type[OutputT] | None = None, **options: Unpack[RunOptions]
    ) -> AgentAnswer[OutputT]:
        """Do a task in code that is not async, like `run`. A library that is not open is opened for it."""
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise SetupError(
                "run_sync was called inside a running event loop, which it would block. Use `await agent.run(…)` there."
            )
        if self.library.engine.is_open:
            raise SetupError(
                "The library of this agent is open in another event loop. Use `await agent.run(…)` there, or run_sync "
                "without opening the library."
            )

        async def run() -> AgentAnswer[OutputT]:
            async with self if self._own_library is not None else self.library:
                try:
                    return await self.run(task, output=output, **options)
                finally:
                    if isinstance(self.model, RetryingModel):  # its connections belong to this event loop
                        await close_model(self.model)

        return asyncio.run(run())

    async def _run_task(
        self,
        task: str,
        history: Sequence[Message],
        run_id: str | None,
        on_event: OnEvent | None,
        budget: RunBudget | None,
        output: OutputType | None = None,
        *,
        deps: Any = None,
        settings: ModelSettings | None = None,
        direct_prompt: str | None = None,
    ) -> AgentAnswer[Any]:
        async with self:
            self.library.require_open()
            run = Run(task, self.library.engine.store, run_id)
            async with lock_run(self.library.engine.store, run.id) as lock:
                if run_id is not None:
                    await run.require_new()
                budget = budget or RunBudget(self.limits)
                active = await self._start_run(run, on_event, budget, output, deps=deps, settings=settings)
                earlier = [message for message in history if message["role"] != "system"]
                active.calls.origins.add_conversation(earlier)
                if direct_prompt is None:
                    prompt, first = self._build_instructions(run.task, output), self._toolbox.prepare(run.topic)
                else:
                    prompt, first = direct_prompt, self._reply_directly(active)
                run.begin([system_message(prompt), *earlier, user_message(run.task)])
                answer = await self._run_loop(active, first)
                lock.release_in_background = answer.state is not AgentState.WAITING  # nobody continues it
                return answer

    async def resume(
        self,
        run_id: str,
        answer: Answers = None,
        *,
        output: type[OutputT] | None = None,
        approvals: ApprovalDecisions = None,
        on_event: OnEvent | None = None,
        deps: Any = None,
        model_settings: ModelSettings | None = None,
    ) -> AgentAnswer[OutputT]:
        """Continue a run that is waiting or was interrupted by a crash.

        `answer` is the user's answer to the run's question, or maps the ids of questions to answers. `approvals` maps
        the ids of waiting calls to decisions; a single value decides about all of them. `output`, `deps` and
        `model_settings` are not stored: give what `run` got.
        """
        output_type = None if output is None else OutputType(output)
        async with self, lock_run(self.library.engine.store, run_id):
            self.library.require_open()
            run = await Run.load(run_id, self.library.engine.store)
            budget = RunBudget(self.limits, usage=run.usage, seconds=run.seconds, run_costs=run.costs)
            active = await self._start_run(run, on_event, budget, output_type, deps=deps, settings=model_settings)
            return await self._run_loop(active, self._resolve_open_calls(active, answer, approvals))

    def with_instructions(self, more: str) -> Agent:
        """Return this agent with further instructions. Each of the two can resume the runs of the other."""
        agent = copy(self)
        agent.instructions = "\n\n".join(filter(None, [self.instructions, more]))
        return agent

    async def stream(self, task: Task, **options: Any) -> AsyncGenerator[RunEvent, None]:
        """Do a task as `run` does, and yield its events; the last has the answer. Closing the stream ends the run."""
        events = ProgressQueue[RunEvent | None](MAX_QUEUED_PROGRESS)

        def add(event: RunEvent) -> None:
            events.add(event, is_progress=isinstance(event, CallProgress | CustomEvent))

        run_task = asyncio.create_task(self.run(task, **options, on_event=add), name=f"ferrule-{self.name}")
        run_task.add_done_callback(lambda _: events.add(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            run_task.result()
        finally:
            run_task.cancel()
            await asyncio.wait({run_task})

    async def history(self, run_id: str) -> list[Message]:
        """Return the messages of a run, in OpenAI's format."""
        return (await Run.load(run_id, self.library.engine.store)).messages

    async def runs(self, limit: int = 100) -> list[StoredRun]:
        """Return the latest runs in the store, the last one first."""
        return await Run.list_stored(self.library.engine.store, limit)

    # Stages of a run

    async def _start_run(
        self,
        run: Run,
        on_event: OnEvent | None,
        budget: RunBudget,
        output: OutputType | None = None,
        *,
        deps: Any = None,
        settings: ModelSettings | None = None,
    ) -> ActiveRun:
        engine, memory, model = self.library.engine, None, self.model
        if settings or self._settings:
            model = ModelWithSettings(model, {**self._settings, **check_settings(settings)})
        if self._unchecked_tools:
            await engine.wait_for_discovery()
            self._check_tools()
        events = budget.attach(engine, self._toolbox.principal, run.id)
        run.budget, run.costs = budget, budget.run_costs
        if self.memory:
            memory = await self.library.create_run_memory(
                run.context, max_retries=self.limits.max_retries, permissions=self._toolbox.permissions
            )
        calls = RunCalls(
            run.id,
            run.task,
            engine,
            self._toolbox,
            name=self.name,
            principal=self._toolbox.principal,
            memory=memory,
            policy=policy_of_run(run, engine.policy if self.policy is None else self.policy, engine.registry),
            model=BudgetedModel(model, budget),
            budget=budget,
            origins=RunOrigins(self._provenance, (self.instructions, run.task)),
            deps=deps,
        )
        permissions, snapshot = self._toolbox.permissions, engine.registry.snapshot()
        run.context.available_tools = [*map(permissions.permitted_spec, permissions.select_tools(snapshot).values())]
        reply_format = ToolCallFormat(self._window) if self._style == "tool_calls" else self._style
        if isinstance(reply_format, str):
            reply_format = DecisionFormat()
        return ActiveRun(
            run,
            model=BudgetedModel(model, budget, asks_for_more=True),
            calls=calls,
            toolbox=self._toolbox,
            requests=RunRequests(run, engine, budget, self.person),
            paused=self._paused,
            budget=budget,
            listener=log_listener_errors(on_event),
            events=events,
            reply_format=reply_format,
            output=output,
        )

    async def _run_loop(self, active: ActiveRun, first: Awaitable[None]) -> AgentAnswer[Any]:
        """Take turns until the run ends or waits. What is done `first` may end the run."""
        run = active.run
        with active.events.emit_agent_start_and_end(self.name, run.task) as data:
            try:
                await first
                while run.state is AgentState.RUNNING:
                    await self._take_turn(active)
            except ModelError as error:
                run.has_model_failed = not isinstance(error, BudgetSpent)
                active.stop(str(error))
            except BaseException as error:
                run.interrupt(error)
                raise
            finally:
                if run.state is not AgentState.WAITING:
                    await active.end_tool_use()
            answer = data["answer"] = await active.emit_answer()
        return answer

    async def _resolve_open_calls(self, active: ActiveRun, answer: Answers, approvals: ApprovalDecisions) -> None:
        """Give the open calls of an interrupted or waiting run their results, as far as people have replied."""
        run, registry = active.run, self.library.engine.registry
        await self._toolbox.prepare(run.topic)
        await active.calls.restore(run)
        require_question(run, answer)
        if run.state in (AgentState.FINISHED, AgentState.STOPPED):
            active.restore_value()
            return
        for tool in filter(None, map(registry.get, {step.tool_id for step in run.steps})):
            active.begin_tool_use(tool)  # so that the tool is released when the run ends
        run.set_running()
        # Only the agent that paused the run has the secrets of its calls, not the store.
        paused = {call.id: call for call in self._paused.pop(run) or ()}
        run.open_calls = [paused.get(call.id, call) for call in run.open_calls]
        offer = self._toolbox.offer(run.topic)
        without_result = [call for call in run.open_calls if call.id not in {*run.answers, *run.questions}]
        calls = [call for call in without_result if active.calls.was_made(call.id) or call.id not in run.approvals]
        await active.execute_calls([self._toolbox.resolve(call, offer) for call in calls], offer)
        await active.apply_replies(*await active.requests.match_replies(answer, approvals), offer)
        await active.ask_person(offer)
        if run.state is AgentState.RUNNING:
            active.end_if_finished()

    async def _take_turn(self, active: ActiveRun) -> None:
        run = active.run
        limit = active.budget.find_reached_limit(turns=run.turns, calls=len(run.steps))
        if (reason := limit or active.find_endless_repetition()) is not None:
            active.stop(reason)
            return
        offer = self._toolbox.offer(run.topic, run.used_tools)
        run.set_offer(offer.schemas, self.model.name)
        try:
            reply = await self._ask_model(active, offer)
        except NeedsPerson as needs:
            run.wait_for(needs.request)
            await active.ask_person(offer)
            return
        except BudgetSpent as spent:  # the run can continue when there is money again
            text = explain_stop(run.context, str(spent), language=detect_language(run.task))
            run.end(AgentState.INTERRUPTED, text, str(spent))
            return
        parsed = active.format.parse(run, reply, offer)
        calls = reject_calls_over_limit(run, assign_call_ids(run, parsed.calls), self.limits)
        resolved = [self._toolbox.resolve(call, offer) for call in calls]
        for each in resolved:  # what calls pass to tools as a secret is removed from every stored entry
            if each.target is not None and each.target[1].secret_names:
                run.secrets.add_params(each.call.arguments, each.target[1].secret_names)
        redacted = assistant_message(parsed.text, [active.calls.redact(call) for call in resolved])
        message = assistant_message(parsed.text, calls)
        cost = active.budget.reply_cost
        run.add_reply(message, calls, reply.usage, redacted=redacted, source=parsed.source, cost=cost)
        if calls:
            await active.execute_turn(resolved, offer)
        elif parsed.correction is not None and not (
            parsed.is_answer_if_repeated and (active.empty_replies or active.output)
        ):
            active.send_correction(parsed.correction)
        elif not can_reason(self.model) and (run.has_only_failures or reply.finish_reason == "refused"):
            answer = parsed.text
            if not run.steps:  # the policy forbids it, or something is missing that could answer
                snapshot, permissions = self.library.engine.registry.snapshot(), self._toolbox.permissions
                missing = suggest_missing_setup(run.task, filter(permissions.may_use, snapshot.unavailable))
                answer = explain_denial(run.task, permissions.list_denied(snapshot)) or f"{answer}\n{missing}"
            run.end(AgentState.STOPPED, answer, answer if run.steps else answer.partition("\n")[0])
        else:
            active.finish(parsed.text)

    async def _reply_directly(self, active: ActiveRun) -> None:
        """End the run with one reply of the model, or let the run wait for more money."""
        run, listener = active.run, active.listener
        on_text = None if listener is None else lambda text: listener(TextPiece(text))
        while run.state is AgentState.RUNNING:
            try:
                reply = await active.model.generate(ModelRequest(messages=run.messages), on_text)
            except NeedsPerson as needs:
                run.wait_for(needs.request)
                await active.ask_person(self._toolbox.offer(run.topic))
                continue
            message, text = assistant_message(reply.text), reply.text.strip()
            run.add_reply(message, [], reply.usage, redacted=message, cost=active.budget.reply_cost)
            if text:
                active.finish(text)
            else:
                active.stop(f"the model {self.model.name!r} returned no text")

    async def _ask_model(self, active: ActiveRun, offer: ToolOffer) -> ModelReply:
        active.emit(TurnStarted(active.run.turns + 1))
        while True:
            try:
                request = active.format.request(active.run, offer, may_call=active.may_call)
                if active.output is not None:
                    request = active.output.constrain(request, is_retry=active.rejected_outputs > 0)
                streamer = TextStreamer.create(active.listener, offer.known_tools, self.model)
                reply = await active.model.generate(request, streamer)
                if streamer is not None:
                    streamer.finish()
                return reply
            except RequestTooLong:
                if not active.format.shorten_history():
                    raise

    # Details

    def _build_instructions(self, task: str, output: OutputType | None) -> str:
        warnings: list[str] = []
        if self.memory:
            warnings = self.library.get_failure_history(self._principal.tenant).warnings(self._toolbox.tools)
        language = detect_language(task)
        prompt = system_prompt(
            language=language,
            finish_task="finish_task" in self._control_tools,
            ask_user="ask_user" in self._control_tools,
            instructions=self.instructions,
        )
        form = "" if output is None else output.instruction
        return "\n\n".join(filter(None, [prompt, form, warnings_from_earlier_runs(warnings, language=language)]))

    def _make_toolbox(self, tools: Collection[str] | None) -> Toolbox:
        principal = self._principal if tools is None else self._principal.restricted_to(tools)
        budget = self._schema_tokens
        if budget is None:
            budget = MAX_SCHEMA_TOKENS if tools is None and not selects_tools(self.model) else MAX_NAMED_SCHEMA_TOKENS
        return Toolbox(
            self.library,
            principal=principal,
            policy=self.policy,
            core=self._core,
            budget_tokens=budget,
            shown_control_tools=self._control_tools,
        )
