/** Conversations: questions, what the agent does, and decisions in place. */

import { useQueries, useQuery } from "@tanstack/react-query";
import { lazy, Suspense, useEffect, useRef, useState } from "react";
import { Link, useLocation } from "wouter";
import { get, post, segment, type Approval, type CallRecord, type Conversation, type Question, type Run, type Turn } from "../api";
import type { ViewProps } from "../app";
import { ask, resume, resumeStored, stop, useLiveTurns, wasWatched, type AskOptions, type Item, type LiveTurn } from "../conversations";
import { useShortcuts } from "../keys";
import { formatNumber, t } from "../language";
import { useAgentSettings } from "../live";
import { formatCost, formatSeconds, isAsking, oneLine, visible } from "../text";
import { Badge, Button, Empty, ErrorBadge, errorText, Failed, Fields, Icon, LongText, Markdown, StateBadge, Time, toast } from "../ui";
import { RequestDetail } from "./approvals";

const PlanGraph = lazy(async () => ({ default: (await import("../graph")).PlanGraph }));
const newId = (): string => crypto.randomUUID().replaceAll("-", "").slice(0, 16);

export function Ask({ may }: ViewProps) {
  const [location, navigate] = useLocation();
  const conversationId = decodeURIComponent(location.slice(1));
  const [draftId, setDraftId] = useState(newId);
  const id = conversationId || draftId;
  const startNew = () => {
    setDraftId(newId());
    navigate("/");
  };
  useShortcuts([{ keys: "n", text: t("keyNew"), run: startNew }]);
  const send = (question: string, options: AskOptions) => {
    ask(id, question, options);
    if (conversationId === "") navigate(`/${id}`);
  };
  return (
    <div className="ask">
      <ConversationList current={conversationId} onNew={startNew} />
      <section className="chat">
        <Turns key={id} id={id} isNew={conversationId === ""} may={may} />
        {may("call") ? <Composer onSend={send} /> : <p className="notice composer-notice">{t("mayNotAsk")}</p>}
      </section>
    </div>
  );
}

function ConversationList({ current, onNew }: { current: string; onNew: () => void }) {
  const list = useQuery({
    queryKey: ["runs", "conversations"],
    queryFn: async () => (await get<{ conversations: Conversation[] }>("/v1/conversations", { limit: 50 })).conversations,
  });
  return (
    <aside className="conversation-list" aria-label={t("conversations")}>
      <Button onClick={onNew} shortcut="n">
        <Icon name="plus" /> {t("newConversation")}
      </Button>
      <ul className="items">
        {list.data?.map((each) => (
          <li key={each.conversation_id}>
            <Link href={`/${segment(each.conversation_id)}`} className="item" aria-current={each.conversation_id === current ? "true" : undefined}>
              <span className="clip">{oneLine(each.question, 60)}</span>
              <span className="faint small">
                <Time at={each.at} />
              </span>
            </Link>
          </li>
        ))}
      </ul>
    </aside>
  );
}

function Turns({ id, isNew, may }: { id: string; isNew: boolean; may: ViewProps["may"] }) {
  const live = useLiveTurns(id);
  const stored = useQuery({
    queryKey: ["runs", "conversation", id],
    queryFn: async () => (await get<{ turns: Turn[] }>(`/v1/conversations/${segment(id)}`)).turns,
    enabled: !isNew,
  });
  const liveRuns = new Set(live.map((turn) => turn.runId));
  const liveQuestions = live.map((turn) => turn.question);
  const past = (stored.data ?? []).filter((turn, index, all) => {
    if (turn.run_id !== "" && liveRuns.has(turn.run_id)) return false;
    return index < all.length - live.length || !liveQuestions.includes(turn.question);
  });
  const end = useRef<HTMLDivElement>(null);
  const size = past.length + live.reduce((sum, turn) => sum + turn.items.length + turn.text.length + Number(turn.answer !== null), 0);
  useEffect(() => {
    void end.current?.scrollIntoView({ block: "end" }); // newer browsers return a promise here
  }, [size]);
  return (
    <div className="turns" tabIndex={0} role="log" aria-label={t("ask")}>
      {stored.isError && <Failed error={stored.error} />}
      {past.length === 0 && live.length === 0 && (isNew || stored.isSuccess) && (
        <Empty icon="ask" title={t("askEmpty")}>
          {t("askEmptyText")}
        </Empty>
      )}
      {past.map((turn, index) => (
        <PastTurn key={index} id={id} turn={turn} may={may} />
      ))}
      {live.map((turn) => (
        <LiveTurnView key={turn.key} id={id} turn={turn} may={may} />
      ))}
      <div ref={end} />
    </div>
  );
}

const Asked = ({ text }: { text: string }) => (
  <div className="asked">
    <span className="hidden-text">{t("you")}: </span>
    <LongText text={text} plain />
  </div>
);

function PastTurn({ id, turn, may }: { id: string; turn: Turn; may: ViewProps["may"] }) {
  const isOpenEnd = turn.run_id !== "" && !["finished", "stopped"].includes(turn.state);
  const [isOpen, setOpen] = useState(isOpenEnd || wasWatched(turn.run_id));
  const run = useQuery({ queryKey: ["runs", turn.run_id], queryFn: () => get<Run>(`/v1/runs/${segment(turn.run_id)}`), enabled: isOpen && turn.run_id !== "" });
  const state = run.data?.state ?? turn.state;
  const resumeRun = (answers?: Record<string, string>) => resumeStored(id, turn.question, turn.run_id, answers);
  return (
    <article className="turn">
      <Asked text={turn.question} />
      {isOpen && run.data !== undefined && <PastItems run={run.data} />}
      {run.data?.state === "waiting" ? (
        <Waiting approvals={run.data.approvals} questions={run.data.questions} may={may} onResume={resumeRun} />
      ) : (
        turn.answer !== "" && <Markdown text={turn.answer} />
      )}
      <footer className="row small faint wrap">
        {state !== "finished" && state !== "" && <StateBadge state={state} />}
        <Time at={turn.at} />
        {turn.run_id !== "" && (
          <>
            <Button kind="quiet" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
              <Icon name="down" /> {t("trace")}
            </Button>
            <Link href={`~/runs/${segment(turn.run_id)}`}>{t("openRun")}</Link>
          </>
        )}
        {state === "running" && may("call") && (
          <Button onClick={() => void post(`/v1/runs/${segment(turn.run_id)}/cancel`, {}).catch((error: unknown) => toast(errorText(error), "bad"))}>
            <Icon name="stop" /> {t("stop")}
          </Button>
        )}
        {state === "interrupted" && may("call") && <Button onClick={() => resumeRun()}>{t("resume")}</Button>}
        {may("call") && state !== "waiting" && <Retry onRetry={(options) => ask(id, turn.question, options)} />}
      </footer>
    </article>
  );
}

function PastItems({ run }: { run: Run }) {
  const items: Item[] = run.history.flatMap((entry): Item[] => {
    if (entry.kind !== "call") return [];
    const { step } = entry;
    return [{ kind: "call", id: step.id, name: step.tool_id, arguments: step.arguments, step }];
  });
  const results = run.history.flatMap((entry) => (entry.kind === "step" ? [entry.step] : []));
  return (
    <>
      {run.plan !== null && run.plan.steps.length > 1 && (
        <Suspense>
          <PlanGraph plan={run.plan} results={results} isRunning={false} />
        </Suspense>
      )}
      <Items items={items} />
    </>
  );
}

function LiveTurnView({ id, turn, may }: { id: string; turn: LiveTurn; may: ViewProps["may"] }) {
  const answer = turn.answer;
  const currency = useAgentSettings().data?.currency ?? "";
  const steps = answer?.steps.length ? answer.steps : turn.results;
  return (
    <article className="turn" aria-busy={turn.isRunning}>
      <Asked text={turn.question} />
      {turn.plan !== null && turn.plan.steps.length > 1 && (
        <Suspense>
          <PlanGraph plan={turn.plan} results={turn.results.length ? turn.results : (answer?.steps ?? [])} isRunning={turn.isRunning} />
        </Suspense>
      )}
      <Items items={turn.items} />
      {turn.text !== "" && <Markdown text={turn.text} />}
      {turn.isRunning && (
        <div className="row working" role="status">
          <span className="spinner" aria-hidden="true" /> {t("working")}
          <Button onClick={() => stop(turn)}>
            <Icon name="stop" /> {t("stop")}
          </Button>
        </div>
      )}
      {answer !== null && answer.answer !== "" && answer.state !== "waiting" && <Markdown text={answer.answer} />}
      {answer !== null && answer.state === "waiting" && <Waiting approvals={answer.approvals} questions={answer.questions} may={may} onResume={(answers) => resume(id, turn, answers)} />}
      {turn.error !== "" && <p className="notice bad">{turn.error === "stopped" ? t("stopped_") : turn.error === "unreachable" ? t("unreachable") : visible(turn.error)}</p>}
      {!turn.isRunning && (
        <footer className="row small faint wrap">
          {answer !== null && answer.state !== "finished" && <StateBadge state={answer.state} />}
          {answer?.cached && <Badge>{t("fromCache")}</Badge>}
          {answer?.timings.total !== undefined && <span>{formatSeconds(answer.timings.total)}</span>}
          {answer !== null && answer.usage.total_tokens > 0 && <span>{t("tokenCount", { count: formatNumber(answer.usage.total_tokens) })}</span>}
          {answer !== null && answer.cost !== null && answer.cost > 0 && <span>{formatCost(answer.cost, currency)}</span>}
          {steps.length > 0 && <span>{t("steps", { count: steps.length })}</span>}
          {turn.runId !== "" && <Link href={`~/runs/${segment(turn.runId)}`}>{t("openRun")}</Link>}
          {turn.error !== "" && turn.runId !== "" && <Button onClick={() => resume(id, turn)}>{t("resume")}</Button>}
          {(turn.error !== "" || answer?.state !== "waiting") && <Retry onRetry={(options) => ask(id, turn.question, options)} />}
        </footer>
      )}
    </article>
  );
}

/** The same question once more: by another model, or in another way. */
function Retry({ onRetry }: { onRetry: (options: AskOptions) => void }) {
  const settings = useAgentSettings().data;
  const models = settings?.models ?? [];
  return (
    <select aria-label={t("retryWith")} value="" onChange={(event) => onRetry(JSON.parse(event.target.value) as AskOptions)}>
      <option value="" disabled>
        {t("retryWith")}…
      </option>
      {models.length > 0 && (
        <optgroup label={t("model")}>
          <option value="{}">{settings?.model ?? t("usualModel")}</option>
          {models.map((model) => (
            <option key={model} value={JSON.stringify({ model })}>
              {visible(model)}
            </option>
          ))}
        </optgroup>
      )}
      <optgroup label={t("strategy")}>
        {(["loop", "plan", "direct"] as const).map((strategy) => (
          <option key={strategy} value={JSON.stringify({ strategy })}>
            {t(strategy)}
          </option>
        ))}
      </optgroup>
    </select>
  );
}

interface WaitingProps {
  approvals: Approval[];
  questions: Question[];
  may: ViewProps["may"];
  onResume: (answers?: Record<string, string>) => void;
}

/** What was decided and followed: the server goes on by itself, and the page watches it once. */
const followed = new Set<string>();

/** What a run waits for. When everything is decided, here or elsewhere, it goes on. */
function Waiting({ approvals, questions, may, onResume }: WaitingProps) {
  const requests = useQueries({
    queries: approvals.map((each) => ({
      queryKey: ["approvals", each.approval_id],
      queryFn: () => get<Approval>(`/v1/approvals/${segment(each.approval_id)}`),
    })),
  });
  const isDecided = approvals.length > 0 && requests.every((each) => each.data !== undefined && each.data.state !== "pending");
  const key = approvals.map((each) => each.approval_id).join();
  useEffect(() => {
    if (!isDecided || followed.has(key) || questions.length > 0 || !may("call")) return;
    followed.add(key);
    onResume();
  }, [isDecided]);
  const mayApprove = may("approve");
  return (
    <>
      {approvals.length > 0 && <p className="waiting-title">{t(mayApprove ? "waitingForYou" : "waitingForOther")}</p>}
      {requests.map((each, index) => (
        <div className="card" key={approvals[index]!.approval_id}>
          <RequestDetail request={each.data ?? approvals[index]!} mayApprove={mayApprove} isInline />
        </div>
      ))}
      {may("call") && questions.map((question) => <QuestionForm key={question.call_id} question={question} onAnswer={(text) => onResume({ [question.call_id]: text })} />)}
    </>
  );
}

function QuestionForm({ question, onAnswer }: { question: Question; onAnswer: (text: string) => void }) {
  const [text, setText] = useState("");
  return (
    <form
      className="card decision"
      onSubmit={(event) => {
        event.preventDefault();
        onAnswer(text);
      }}
    >
      <p className="lead pre-line">{visible(question.text)}</p>
      <div className="row wrap">
        {question.options.map((option) => (
          <Button key={option} onClick={() => onAnswer(option)}>
            {visible(option)}
          </Button>
        ))}
      </div>
      <label>
        {t("yourAnswer")}
        <input value={text} onChange={(event) => setText(event.target.value)} required />
      </label>
      <Button kind="primary" type="submit">
        {t("send")}
      </Button>
    </form>
  );
}

function Items({ items }: { items: Item[] }) {
  if (items.length === 0) return null;
  return (
    <ol className="call-list">
      {items.map((item, index) => (
        <li key={index}>{item.kind === "text" ? <Markdown text={item.text} /> : <CallItem item={item} />}</li>
      ))}
    </ol>
  );
}

function CallItem({ item }: { item: Extract<Item, { kind: "call" }> }) {
  const { step } = item;
  const [isOpen, setOpen] = useState(false);
  const state = step === null ? "running" : step.is_success ? "good" : step.error_type === "known_failure" || isAsking(step.error_type) ? "warn" : "bad";
  const isFromMemory = step?.error_type === "known_failure";
  return (
    <details className={`call ${state}`} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <span className="dot" aria-hidden="true" />
        <strong className="mono">{visible(item.name)}</strong>
        <span className="faint mono clip">{oneLine(JSON.stringify(item.arguments), 100)}</span>
        {step !== null && <span className="faint small">{isFromMemory ? t("notExecuted") : formatSeconds(step.seconds)}</span>}
        {step !== null && <span className="call-result clip">{oneLine(step.text, 140)}</span>}
      </summary>
      {isOpen && step !== null && step.record_id !== "" && <CallFacts id={step.record_id} />}
      <h3>{t("arguments")}</h3>
      <Fields value={item.arguments} empty={t("noArguments")} />
      {step !== null && (
        <>
          <h3>{isFromMemory ? t("memorySaid") : step.is_success ? t("result") : t("error")}</h3>
          <LongText text={step.text} />
        </>
      )}
    </details>
  );
}

/** Retries, waiting and the kind of error of a call, from its record. */
function CallFacts({ id }: { id: string }) {
  const call = useQuery({ queryKey: ["calls", id], queryFn: () => get<CallRecord>(`/v1/calls/${segment(id)}`) });
  if (call.data === undefined) return null;
  const { attempts, wait_time: wait, error_type: errorType } = call.data;
  return (
    <div className="row wrap small faint call-facts">
      {errorType !== null && <ErrorBadge type={errorType} />}
      <span>{t("attempts", { count: attempts })}</span>
      {wait > 0 && (
        <span>
          {formatSeconds(wait)} {t("queue")}
        </span>
      )}
      <Link href={`~/calls/${segment(id)}`}>{t("openCall")}</Link>
    </div>
  );
}

function Composer({ onSend }: { onSend: (question: string, options: AskOptions) => void }) {
  const [text, setText] = useState("");
  const [model, setModel] = useState("");
  const settings = useAgentSettings().data;
  const field = useRef<HTMLTextAreaElement>(null);
  const send = () => {
    if (text.trim() === "") return;
    onSend(text.trim(), model === "" ? {} : { model });
    setText("");
    field.current?.focus();
  };
  return (
    <form
      className="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <textarea
        ref={field}
        aria-label={t("question")}
        placeholder={t("askPlaceholder")}
        rows={Math.min(8, text.split("\n").length)}
        value={text}
        onChange={(event) => setText(event.target.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.shiftKey && !event.nativeEvent.isComposing) {
            event.preventDefault();
            send();
          }
        }}
      />
      {settings !== undefined && settings.models.length > 0 && (
        <select aria-label={t("model")} value={model} onChange={(event) => setModel(event.target.value)}>
          <option value="">{settings.model ?? t("usualModel")}</option>
          {settings.models.map((name) => (
            <option key={name} value={name}>
              {visible(name)}
            </option>
          ))}
        </select>
      )}
      <Button kind="primary" type="submit" aria-label={t("send")} disabled={text.trim() === ""}>
        <Icon name="send" />
      </Button>
    </form>
  );
}
