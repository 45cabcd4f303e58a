/** One run: what failed first, then everything as a waterfall. */

import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { Link, useLocation } from "wouter";
import { get, loadCalls, post, segment, type CallRecord, type Message, type Run } from "../api";
import type { ViewProps } from "../app";
import { PlanGraph } from "../graph";
import { useShortcuts } from "../keys";
import { formatNumber, t } from "../language";
import { asText, download, formatCost, formatSeconds, oneLine, visible } from "../text";
import { useAgentSettings } from "../live";
import { costOf, findFailures, findSchemaCosts, foldRows, makeRows, toAtif, toChatLine, wasExecuted, type Failure, type Row, type ToolCost } from "../trace";
import { Badge, Button, ErrorBadge, errorText, Failed, Fields, Icon, Loading, LongText, Markdown, StateBadge, Tabs, Time, toast } from "../ui";
import { Waterfall } from "../waterfall";
import { CallDetail } from "./call_detail";
import { useRuns } from "./runs";

export const useRun = (id: string) => useQuery({ queryKey: ["runs", id], queryFn: () => get<Run>(`/v1/runs/${segment(id)}`) });
export const useRunCalls = (id: string) => useQuery({ queryKey: ["calls", "run", id], queryFn: () => loadCalls(id) });

type Tab = "trace" | "conversation" | "plan" | "schemas";

export default function RunDetail({ id, may }: ViewProps & { id: string }) {
  const run = useRun(id);
  const calls = useRunCalls(id);
  const [tab, setTab] = useState<Tab>("trace");
  const [selected, setSelected] = useState<Row | null>(null);
  const currency = useAgentSettings().data?.currency ?? "";
  const rows = useMemo(() => (run.data === undefined ? [] : makeRows(run.data, calls.data ?? [])), [run.data, calls.data]);
  const folded = useMemo(() => foldRows(rows), [rows]);
  const failures = useMemo(() => findFailures(rows), [rows]);
  const move = (step: number) => {
    const index = folded.findIndex((row) => row.key === selected?.key);
    setSelected(folded[Math.max(0, Math.min(folded.length - 1, index + step))] ?? null);
  };
  useShortcuts([
    { keys: "j", text: t("keyNext"), run: () => move(1) },
    { keys: "k", text: t("keyNext"), run: () => move(-1) },
  ]);
  if (run.isError) return <Failed error={run.error} retry={() => void run.refetch()} />;
  if (run.data === undefined) return <Loading />;
  const schemas = findSchemaCosts(run.data);
  const tabs: Tab[] = ["trace", ...(run.data.plan === null ? [] : (["plan"] as const)), "conversation", ...(schemas.length === 0 ? [] : (["schemas"] as const))];
  return (
    <div className="page wide">
      <Link href="/" className="back always">
        <Icon name="back" /> {t("runs")}
      </Link>
      <RunHead run={run.data} mayCall={may("call")} currency={currency} />
      {failures.length > 0 && <Failures failures={failures} onSelect={setSelected} />}
      {run.data.text !== "" && (
        <section className="card answer">
          <h2>{t("answer")}</h2>
          <Markdown text={run.data.text} />
        </section>
      )}
      <Tabs names={tabs} active={tab} onSelect={setTab} />
      {tab === "trace" && (
        <div className="trace">
          <div className="card trace-rows">
            {calls.isPending ? <Loading /> : <Waterfall rows={folded} currency={currency} selected={selected?.key ?? null} onSelect={setSelected} />}
          </div>
          <aside className="card trace-detail">{selected === null ? <p className="faint">{t("selectRow")}</p> : <RowDetail row={selected} currency={currency} />}</aside>
        </div>
      )}
      {tab === "plan" && run.data.plan !== null && (
        <section className="card">
          <PlanGraph plan={run.data.plan} results={run.data.history.flatMap((entry) => (entry.kind === "step" ? [entry.step] : []))} isRunning={run.data.state === "running"} />
        </section>
      )}
      {tab === "schemas" && <Schemas costs={schemas} />}
      {tab === "conversation" && <Messages messages={run.data.messages} />}
    </div>
  );
}

function RunHead({ run, mayCall, currency }: { run: Run; mayCall: boolean; currency: string }) {
  const [, navigate] = useLocation();
  const [isComparing, setComparing] = useState(false);
  const others = useRuns("", "", isComparing).data ?? [];
  const [isBusy, setBusy] = useState(false);
  const act = async (action: "resume" | "cancel") => {
    setBusy(true);
    try {
      await post(`/v1/runs/${segment(run.run_id)}/${action}`, {});
    } catch (error) {
      toast(errorText(error), "bad");
    } finally {
      setBusy(false);
    }
  };
  const cost = costOf(run);
  const exportAtif = async () => {
    const { version } = await get<{ version: string }>("/healthz");
    download(`${run.run_id}.atif.json`, JSON.stringify(toAtif(run, version), null, 2));
  };
  const isResumable = run.state === "interrupted" || (run.state === "waiting" && run.questions.length === 0);
  return (
    <header className="run-head">
      <div className="row wrap">
        <StateBadge state={run.state} />
        <h1 className="clip-lines">{oneLine(run.task, 300)}</h1>
      </div>
      {run.reason !== "" && run.state !== "finished" && <p className="bad-text">{visible(run.reason)}</p>}
      <dl className="facts">
        <Fact name={t("requested")}>
          <Time at={run.started_at} />
        </Fact>
        <Fact name={t("duration")}>{formatSeconds(run.seconds || (Date.parse(run.at) - Date.parse(run.started_at)) / 1000)}</Fact>
        <Fact name={t("tokens")}>
          {formatNumber(run.usage.total_tokens)} <span className="faint">({t("tokensInOut", { input: formatNumber(run.usage.input_tokens), output: formatNumber(run.usage.output_tokens) })})</span>
        </Fact>
        {cost !== null && <Fact name={t("cost")}>{formatCost(cost, currency)}</Fact>}
        <Fact name={t("turns")}>{run.turns}</Fact>
        <Fact name={t("count")}>{run.calls}</Fact>
        <Fact name={t("strategy")}>{["loop", "plan", "direct"].includes(run.strategy) ? t(run.strategy as "loop") : visible(run.strategy)}</Fact>
        {run.model !== null && <Fact name={t("model")}>{visible(run.model)}</Fact>}
      </dl>
      <div className="row wrap">
        {mayCall && run.state === "running" && (
          <Button onClick={() => void act("cancel")} disabled={isBusy}>
            <Icon name="stop" /> {t("stop")}
          </Button>
        )}
        {mayCall && isResumable && (
          <Button kind="primary" onClick={() => void act("resume")} disabled={isBusy}>
            {t("resume")}
          </Button>
        )}
        {run.conversation_id !== "" && (
          <Link className="button plain" href={`~/ask/${segment(run.conversation_id)}`}>
            {t("openConversation")}
          </Link>
        )}
        <select aria-label={t("compareWith")} value="" onFocus={() => setComparing(true)} onMouseEnter={() => setComparing(true)} onChange={(event) => navigate(`/${segment(run.run_id)}/compare/${segment(event.target.value)}`)}>
          <option value="">{t("compareWith")}</option>
          {others
            .filter((each) => each.run_id !== run.run_id)
            .map((each) => (
              <option key={each.run_id} value={each.run_id}>
                {oneLine(each.task, 60)}
              </option>
            ))}
        </select>
        <Button onClick={() => download(`${run.run_id}.jsonl`, toChatLine(run))}>{t("export")} · chat JSONL</Button>
        <Button onClick={() => void exportAtif().catch((error: unknown) => toast(errorText(error), "bad"))}>{t("export")} · ATIF</Button>
      </div>
    </header>
  );
}

const Fact = ({ name, children }: { name: string; children: React.ReactNode }) => (
  <div>
    <dt>{name}</dt>
    <dd>{children}</dd>
  </div>
);

function Failures({ failures, onSelect }: { failures: Failure[]; onSelect: (row: Row) => void }) {
  return (
    <section className="card failing" aria-label={t("failingPath")}>
      <h2>{t("failingPath")}</h2>
      <ol>
        {failures.slice(0, 8).map((failure) => (
          <li key={failure.first.key}>
            <button onClick={() => onSelect(failure.first)}>
              <strong>{visible(failure.name)}</strong>
              {failure.count > 1 && <Badge>{failure.count}×</Badge>}
              <ErrorBadge type={failure.errorType} />
              {!wasExecuted(failure.first) && <span className="faint small">{t("notExecuted")}</span>}
              <span className="failure-text">{oneLine(failure.text, 240)}</span>
            </button>
          </li>
        ))}
      </ol>
    </section>
  );
}

function RowDetail({ row, currency }: { row: Row; currency: string }) {
  const record = useQuery({
    queryKey: ["calls", row.recordId],
    queryFn: () => get<CallRecord>(`/v1/calls/${segment(row.recordId)}`),
    enabled: row.recordId !== "",
  });
  if (row.kind === "turn") {
    return (
      <>
        <h2>{t("turn", { number: row.name })}</h2>
        <p className="faint">
          {formatSeconds((row.end - row.start) / 1000)} · {t("tokenCount", { count: formatNumber(row.tokens ?? 0) })}
          {row.cost !== null && ` · ${formatCost(row.cost, currency)}`}
          {row.model !== "" && ` · ${visible(row.model)}`}
        </p>
        <LongText text={row.text} plain />
      </>
    );
  }
  if (row.recordId !== "") {
    if (record.isError) return <Failed error={record.error} />;
    return record.data === undefined ? <Loading /> : <CallDetail call={record.data} repeats={row.count} />;
  }
  return (
    <>
      <h2>{visible(row.name)}</h2>
      {row.errorType === null ? <Badge tone="good">{t("success")}</Badge> : <ErrorBadge type={row.errorType} />}
      <h3>{t("arguments")}</h3>
      <Fields value={row.arguments ?? {}} empty={t("noArguments")} />
      <h3>{row.errorType === "known_failure" ? t("memorySaid") : t("result")}</h3>
      <LongText text={row.text} />
    </>
  );
}

/** What it costs that the model knows each tool. */
function Schemas({ costs }: { costs: ToolCost[] }) {
  const total = costs.reduce((sum, each) => sum + each.tokens * each.requests, 0);
  return (
    <section className="card scroll" tabIndex={0}>
      <p className="faint">{t("schemasText", { total: formatNumber(total) })}</p>
      <table>
        <thead>
          <tr>
            {(["tool", "tokensPerRequest", "requests", "tokens", "count"] as const).map((key) => (
              <th key={key} scope="col" className={key === "tool" ? "" : "number"}>
                {t(key)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {costs.map((each) => (
            <tr key={each.name}>
              <td>{visible(each.name)}</td>
              <td className="number">{formatNumber(each.tokens)}</td>
              <td className="number">{formatNumber(each.requests)}</td>
              <td className="number">{formatNumber(each.tokens * each.requests)}</td>
              <td className="number">{each.calls === 0 ? <span className="faint">{t("unused")}</span> : formatNumber(each.calls)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Messages({ messages }: { messages: Message[] }) {
  const [count, setCount] = useState(100);
  return (
    <section className="messages">
      {messages.slice(0, count).map((message, index) => (
        <article key={index} className={`message card ${message.role}`}>
          <header className="faint small">{visible(message.role)}</header>
          {message.content !== null && message.content !== "" && <LongText text={asText(message.content)} plain />}
          {message.tool_calls?.map((call) => (
            <div key={call.id}>
              <strong className="mono">{visible(call.function.name)}</strong>
              <LongText text={call.function.arguments} />
            </div>
          ))}
        </article>
      ))}
      {count < messages.length && <Button onClick={() => setCount(count * 2)}>{t("showMore")}</Button>}
    </section>
  );
}
