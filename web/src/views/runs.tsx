/** The runs of agents: a list with filters, one run in detail, two runs beside each other. */

import { useQuery } from "@tanstack/react-query";
import { lazy, Suspense, useDeferredValue, useState } from "react";
import { Link, Route, Switch, useLocation } from "wouter";
import { get, segment, type RunState, type RunSummary } from "../api";
import type { ViewProps } from "../app";
import { useShortcuts } from "../keys";
import { formatNumber, t } from "../language";
import { formatSeconds, oneLine } from "../text";
import { Empty, Failed, Loading, StateBadge, Time } from "../ui";

const RunDetail = lazy(() => import("./run"));
const Comparison = lazy(() => import("./comparison"));
const STATES: RunState[] = ["running", "waiting", "finished", "stopped", "interrupted"];

export const useRuns = (state: string, text: string, enabled = true) =>
  useQuery({
    enabled,
    queryKey: ["runs", "list", state, text],
    queryFn: async () => (await get<{ runs: RunSummary[] }>("/v1/runs", { state, text, limit: 200 })).runs,
    placeholderData: (before) => before,
  });

export function Runs(props: ViewProps) {
  return (
    <Suspense fallback={<Loading />}>
      <Switch>
        <Route path="/:left/compare/:right">{({ left, right }) => <Comparison left={decodeURIComponent(left)} right={decodeURIComponent(right)} />}</Route>
        <Route path="/:id">{({ id }) => <RunDetail key={id} id={decodeURIComponent(id)} {...props} />}</Route>
        <Route>
          <RunList />
        </Route>
      </Switch>
    </Suspense>
  );
}

function RunList() {
  const [, navigate] = useLocation();
  const [state, setState] = useState("");
  const [text, setText] = useState("");
  const [index, setIndex] = useState(-1);
  const runs = useRuns(state, useDeferredValue(text.trim()));
  const move = (step: number) => setIndex((now) => Math.max(0, Math.min((runs.data?.length ?? 1) - 1, now + step)));
  useShortcuts([
    { keys: "j", text: t("keyNext"), run: () => move(1) },
    { keys: "k", text: t("keyNext"), run: () => move(-1) },
    {
      keys: "o",
      text: t("keyOpen"),
      run: () => {
        const run = runs.data?.[index];
        if (run !== undefined) navigate(`/${segment(run.run_id)}`);
      },
    },
  ]);
  return (
    <div className="page">
      <header className="page-head">
        <h1>{t("runs")}</h1>
        <div className="filters">
          <input type="search" aria-label={t("searchRuns")} placeholder={t("searchRuns")} value={text} onChange={(event) => setText(event.target.value)} />
          <select aria-label={t("status")} value={state} onChange={(event) => setState(event.target.value)}>
            <option value="">{t("allStates")}</option>
            {STATES.map((name) => (
              <option key={name} value={name}>
                {t(name)}
              </option>
            ))}
          </select>
        </div>
      </header>
      {runs.isError && <Failed error={runs.error} retry={() => void runs.refetch()} />}
      {runs.isPending && <Loading />}
      {runs.data?.length === 0 &&
        (state === "" && text === "" ? (
          <Empty icon="runs" title={t("noRuns")}>
            {t("noRunsText")}
          </Empty>
        ) : (
          <Empty title={t("noMatches")}>{t("noMatchesText")}</Empty>
        ))}
      {runs.data !== undefined && runs.data.length > 0 && (
        <ul className="run-list card">
          {runs.data.map((run, place) => (
            <li key={run.run_id}>
              <Link href={`/${segment(run.run_id)}`} className="item run-item" data-active={place === index || undefined}>
                <StateBadge state={run.state} />
                <span className="title clip">{oneLine(run.task, 140)}</span>
                <span className="faint small meta">
                  {run.reason !== "" && run.state !== "finished" && <span className="bad-text clip">{oneLine(run.reason, 60)}</span>}
                  {run.calls > 0 && <span>{t("steps", { count: run.calls })}</span>}
                  {run.usage.total_tokens > 0 && (
                    <span>
                      {formatNumber(run.usage.total_tokens)} {t("tokens").toLowerCase()}
                    </span>
                  )}
                  {run.seconds > 0 && <span>{formatSeconds(run.seconds)}</span>}
                  <Time at={run.at} />
                </span>
              </Link>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}
