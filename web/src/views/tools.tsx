/** The tools: search, what is not set up, and one tool with a form to call it. */

import { useQuery } from "@tanstack/react-query";
import { useDeferredValue, useRef, useState } from "react";
import { Link, useLocation } from "wouter";
import { get, segment, stream, type CallResult, type JsonObject, type Tool, type ToolAction, type ToolStatistics } from "../api";
import type { ViewProps } from "../app";
import { useShortcuts } from "../keys";
import { formatNumber, hasText, t } from "../language";
import { initialValue } from "../schema";
import { ArgumentsEditor } from "../schema_form";
import { asText, callName, formatSeconds, oneLine, visible } from "../text";
import { Badge, Button, Confirm, EffectBadge, Empty, ErrorBadge, errorText, Failed, Fields, Icon, Loading, LongText, StateBadge, Time } from "../ui";
import { ServerPanel, useServers } from "./mcp_server";

export default function Tools({ may }: ViewProps) {
  const [location, navigate] = useLocation();
  const id = decodeURIComponent(location.slice(1));
  const [text, setText] = useState("");
  const query = useDeferredValue(text.trim());
  const [source, setSource] = useState("");
  const list = useQuery({
    queryKey: ["tools", query],
    queryFn: async () => (await get<{ tools: Tool[] }>("/v1/tools", { query })).tools,
    placeholderData: (before) => before,
  });
  const all = useQuery({ queryKey: ["tools", ""], queryFn: async () => (await get<{ tools: Tool[] }>("/v1/tools")).tools });
  const health = useHealth();
  const servers = useServers().data ?? [];
  const sources = [...new Set((all.data ?? []).map((tool) => tool.source))].sort();
  const listed = new Set((list.data ?? []).map((tool) => tool.tool_id));
  // Servers without an action that may be called: they failed, or have not started.
  const unlisted = query === "" && (source === "" || source === "mcps") ? servers.filter((server) => !listed.has(server.tool_id)) : [];
  const shown = (list.data ?? []).filter((tool) => source === "" || (source === NOT_SET_UP ? tool.needs !== null : tool.source === source));
  const names = [...unlisted.map((server) => server.tool_id), ...shown.map((tool) => tool.tool_id)];
  const move = (step: number) => {
    const next = names[Math.max(0, Math.min(names.length - 1, names.indexOf(id) + step))];
    if (next !== undefined) navigate(`/${segment(next)}`, { replace: id !== "" });
  };
  useShortcuts([
    { keys: "j", text: t("keyNext"), run: () => move(1) },
    { keys: "k", text: t("keyNext"), run: () => move(-1) },
  ]);
  return (
    <div className={`split ${id !== "" ? "has-detail" : ""}`}>
      <section className="list-pane" aria-label={t("tools")}>
        <header className="pane-head">
          <h1>{t("tools")}</h1>
          <select aria-label={t("source")} value={source} onChange={(event) => setSource(event.target.value)}>
            <option value="">{t("allSources")}</option>
            {sources.map((name) => (
              <option key={name} value={name}>
                {sourceName(name)}
              </option>
            ))}
            <option value={NOT_SET_UP}>{t("needsSetup")}</option>
          </select>
          <input type="search" aria-label={t("searchTools")} placeholder={t("searchTools")} value={text} onChange={(event) => setText(event.target.value)} />
        </header>
        {list.isError && <Failed error={list.error} retry={() => void list.refetch()} />}
        {list.isPending && <Loading />}
        {list.isSuccess && shown.length + unlisted.length === 0 && <Empty icon="tools" title={query === "" ? t("noTools") : t("noMatches")} />}
        <ul className="items">
          {unlisted.map((server) => (
            <li key={server.tool_id}>
              <Link href={`/${segment(server.tool_id)}`} className="item" aria-current={server.tool_id === id ? "true" : undefined}>
                <div className="row between">
                  <strong>{oneLine(server.tool_id, 60)}</strong>
                  <StateBadge state={server.state} />
                </div>
                <div className="faint clip">{oneLine(server.error, 90)}</div>
                <div className="faint small">{t("mcpServer")}</div>
              </Link>
            </li>
          ))}
          {shown.map((tool) => (
            <li key={tool.tool_id}>
              <Link href={`/${segment(tool.tool_id)}`} className="item" aria-current={tool.tool_id === id ? "true" : undefined}>
                <div className="row between">
                  <strong>{oneLine(tool.name, 60)}</strong>
                  {tool.needs === null ? tool.actions.length === 1 && <EffectBadge effect={tool.actions[0]!.effect} /> : <Badge tone="warn">{t("needsSetup")}</Badge>}
                </div>
                <div className="faint clip">{oneLine(tool.description, 90)}</div>
                <div className="row between faint small">
                  <span>
                    {sourceName(tool.source)}
                    {tool.actions.length > 1 && ` · ${t("actionCount", { count: tool.actions.length })}`}
                  </span>
                  <Health figures={health.get(tool.tool_id)} />
                </div>
              </Link>
            </li>
          ))}
        </ul>
      </section>
      <section className="detail-pane">{id !== "" && <ToolDetail key={id} id={id} may={may} figures={health.get(id)} isServer={servers.some((server) => server.tool_id === id)} />}</section>
    </div>
  );
}

const NOT_SET_UP = "!";
const sourceName = (source: string): string => {
  const key = `source_${source}`;
  return hasText(key) ? t(key) : visible(source);
};

/** How the calls of each tool have ended, over all recorded time. */
function useHealth(): Map<string, ToolStatistics> {
  const statistics = useQuery({ queryKey: ["calls", "statistics"], queryFn: async () => (await get<{ tools: Record<string, ToolStatistics> }>("/v1/stats")).tools });
  return new Map(Object.entries(statistics.data ?? {}));
}

const failureRate = (figures: ToolStatistics): number => figures.failures / Math.max(1, figures.calls);

function Health({ figures }: { figures: ToolStatistics | undefined }) {
  if (figures === undefined || figures.calls === 0) return null;
  const rate = failureRate(figures);
  return (
    <span className={rate >= 0.5 ? "bad-text" : rate >= 0.1 ? "warn-text" : ""}>
      {t("loadedCalls", { count: formatNumber(figures.calls) })}
      {rate > 0 && ` · ${t("failedShare", { percent: Math.max(1, Math.round(rate * 100)) })}`}
    </span>
  );
}

interface ToolDetailProps {
  id: string;
  may: ViewProps["may"];
  figures: ToolStatistics | undefined;
  isServer: boolean;
}

function ToolDetail({ id, may, figures, isServer }: ToolDetailProps) {
  const tool = useQuery({ queryKey: ["tools", "one", id], queryFn: () => get<Tool>(`/v1/tools/${segment(id)}`) });
  const [name, setName] = useState("");
  if (tool.isError && isServer) {
    return (
      <article className="request">
        <Link href="/" className="back">
          <Icon name="back" /> {t("back")}
        </Link>
        <header>
          <h2>{visible(id)}</h2>
        </header>
        <ServerPanel id={id} mayAdminister={may("administer")} />
      </article>
    );
  }
  if (tool.isError) return <Failed error={tool.error} />;
  if (tool.data === undefined) return <Loading />;
  const { data } = tool;
  const mayCall = may("call");
  const action = data.actions.find((each) => each.name === name) ?? data.actions[0];
  return (
    <article className="request">
      <Link href="/" className="back">
        <Icon name="back" /> {t("back")}
      </Link>
      <header>
        <h2>{visible(data.name)}</h2>
        <Badge>{sourceName(data.source)}</Badge>
        {data.tags.slice(0, 6).map((tag) => (
          <Badge key={tag}>{visible(tag)}</Badge>
        ))}
      </header>
      <p className="lead pre-line">{visible(data.description)}</p>
      {data.needs !== null && (
        <p className="notice warn">
          <strong>{t("needsSetup")}:</strong> {visible(data.needs)}
        </p>
      )}
      {figures !== undefined && figures.calls > 0 && <Figures figures={figures} id={id} />}
      {isServer && <ServerPanel id={id} mayAdminister={may("administer")} />}
      {data.actions.length > 1 && (
        <label className="action-choice">
          {t("actions")}
          <select value={action?.name} onChange={(event) => setName(event.target.value)}>
            {data.actions.map((each) => (
              <option key={each.name}>{visible(each.name)}</option>
            ))}
          </select>
        </label>
      )}
      {action !== undefined && <ActionPanel key={action.name} tool={data} action={action} mayCall={mayCall && data.needs === null} />}
    </article>
  );
}

function Figures({ figures, id }: { figures: ToolStatistics; id: string }) {
  return (
    <>
      <dl className="facts">
        <div>
          <dt>{t("count")}</dt>
          <dd>{formatNumber(figures.calls)}</dd>
        </div>
        <div>
          <dt>{t("failedState")}</dt>
          <dd className={failureRate(figures) >= 0.5 ? "bad-text" : ""}>
            {formatNumber(figures.failures)} ({Math.round(failureRate(figures) * 100)} %)
          </dd>
        </div>
        {figures.p50 !== null && figures.p95 !== null && (
          <div>
            <dt>p50 / p95</dt>
            <dd>
              {formatSeconds(figures.p50)} / {formatSeconds(figures.p95)}
            </dd>
          </div>
        )}
        <div>
          <dt>{t("lastTime")}</dt>
          <dd>
            <Time at={figures.last_called} />
          </dd>
        </div>
      </dl>
      {figures.last_error !== null && (
        <p className="faint small">
          {t("lastError", { tool: visible(id) })} {oneLine(figures.last_error, 200)}
        </p>
      )}
    </>
  );
}

const MAX_HISTORY = 10;

/** The values without what the tool declares as secret: it is not kept in the browser. */
function withoutSecrets(value: JsonObject, secrets: string[]): JsonObject {
  return Object.fromEntries(Object.entries(value).filter(([name]) => !secrets.includes(name)));
}

function readHistory(key: string): JsonObject[] {
  try {
    return JSON.parse(localStorage.getItem(key) ?? "[]") as JsonObject[];
  } catch {
    return [];
  }
}

function ActionPanel({ tool, action, mayCall }: { tool: Tool; action: ToolAction; mayCall: boolean }) {
  const schema = action.parameters ?? {};
  const historyKey = `ferrule.inputs.${action.model_name}`;
  const [initial, setInitial] = useState<JsonObject>(() => (initialValue(schema, schema, true) ?? {}) as JsonObject);
  const [given, setGiven] = useState<JsonObject | null>(initial);
  const [history, setHistory] = useState(() => readHistory(historyKey));
  const [version, setVersion] = useState(0);
  const [state, setState] = useState<{ isRunning: boolean; progress: string; result: CallResult | null; problem: string }>({ isRunning: false, progress: "", result: null, problem: "" });
  const controller = useRef<AbortController | null>(null);
  const [isAsking, setAsking] = useState(false);

  const call = async () => {
    setAsking(false);
    if (given === null) return;
    const entry = withoutSecrets(given, action.secrets ?? []);
    const inputs = [entry, ...history.filter((each) => JSON.stringify(each) !== JSON.stringify(entry))].slice(0, MAX_HISTORY);
    setHistory(inputs);
    localStorage.setItem(historyKey, JSON.stringify(inputs));
    controller.current = new AbortController();
    setState({ isRunning: true, progress: "", result: null, problem: "" });
    try {
      const body = { arguments: given, action: tool.actions.length > 1 ? action.name : null, stream: true };
      for await (const { name, data } of stream(`/v1/tools/${segment(tool.tool_id)}/call`, body, controller.current.signal)) {
        if (name === "progress") setState((now) => ({ ...now, progress: `${data.fraction === null ? "" : `${Math.round(Number(data.fraction) * 100)} % `}${String(data.message ?? "")}` }));
        else if (name === "result") setState((now) => ({ ...now, result: data as unknown as CallResult }));
        else if (name === "error") setState((now) => ({ ...now, problem: String(data.detail) }));
      }
    } catch (error) {
      setState((now) => ({ ...now, problem: error instanceof DOMException ? t("cancelled") : errorText(error) }));
    }
    setState((now) => ({ ...now, isRunning: false }));
  };
  return (
    <>
      <div className="row wrap">
        <EffectBadge effect={action.effect} />
        {action.needs_approval && <Badge tone="warn">{t("needsApproval")}</Badge>}
      </div>
      {tool.actions.length > 1 && <p className="lead pre-line">{visible(action.description)}</p>}
      {mayCall && (
        <form
          onSubmit={(event) => {
            event.preventDefault();
            if (action.effect === "destructive") setAsking(true);
            else void call();
          }}
        >
          <ArgumentsEditor key={version} title={t("arguments")} schema={schema} secrets={action.secrets ?? []} initial={initial} onChange={setGiven}>
            {history.length > 0 && (
              <select
                aria-label={t("inputHistory")}
                value=""
                onChange={(event) => {
                  const chosen = history[Number(event.target.value)] ?? {};
                  setInitial(chosen);
                  setGiven(chosen);
                  setVersion(version + 1);
                }}
              >
                <option value="">{t("inputHistory")}</option>
                {history.map((each, index) => (
                  <option key={index} value={index}>
                    {oneLine(JSON.stringify(each), 60)}
                  </option>
                ))}
              </select>
            )}
          </ArgumentsEditor>
          <div className="decision row">
            <Button kind={action.effect === "destructive" ? "danger" : "primary"} type="submit" disabled={state.isRunning || given === null}>
              {t("callTool")}
            </Button>
            {state.isRunning && (
              <>
                <Button onClick={() => controller.current?.abort()}>
                  <Icon name="stop" /> {t("cancel")}
                </Button>
                <span className="faint" role="status">
                  {state.progress === "" ? t("working") : visible(state.progress)}
                </span>
              </>
            )}
          </div>
        </form>
      )}
      {isAsking && given !== null && (
        <Confirm text={t("callAsk", { tool: visible(callName(tool.tool_id, action.name)) })} action={t("callTool")} onCancel={() => setAsking(false)} onConfirm={() => void call()}>
          <p className="pre-line">{visible(action.description)}</p>
          <p className="faint">{t("callAskText")}</p>
          <Fields value={Object.fromEntries(Object.entries(given).map(([name, value]) => [name, action.secrets?.includes(name) ? "•••" : value]))} empty={t("noArguments")} />
        </Confirm>
      )}
      {state.problem !== "" && <p className="notice bad">{visible(state.problem)}</p>}
      {state.result !== null && <Result result={state.result} />}
      <details>
        <summary>{t("schema")}</summary>
        <LongText text={JSON.stringify(schema, null, 2)} />
      </details>
    </>
  );
}

function Result({ result }: { result: CallResult }) {
  const approval = result.metadata?.approval_id;
  return (
    <section aria-label={t("result")}>
      <h3>{t(result.is_success ? "result" : "error")}</h3>
      {approval !== undefined && !result.is_success && (
        <p>
          <Link href={`~/approvals/${segment(approval)}`}>{t("waitingForOther")}</Link>
        </p>
      )}
      {result.error_type !== null && <ErrorBadge type={result.error_type} />}
      <LongText text={result.is_success ? asText(result.output) : (result.error ?? "")} name={`${result.tool_name}-result.txt`} />
    </section>
  );
}
