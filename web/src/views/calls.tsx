/** Every call of every tool: live, filtered, in detail, and as figures over time. */

import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useDeferredValue, useEffect, useMemo, useRef, useState } from "react";
import { useLocation } from "wouter";
import { get, post, segment, type AccessToken, type CallRecord, type CallResult, type CallStatus } from "../api";
import type { ViewProps } from "../app";
import { Charts } from "../charts";
import { useShortcuts } from "../keys";
import { formatNumber, t, type TextKey } from "../language";
import { queries } from "../live";
import { callName, formatSeconds, oneLine, visible } from "../text";
import { Button, CallBadge, Confirm, Empty, errorText, Failed, Fields, Icon, Loading, Time, toast } from "../ui";
import { CallDetail } from "./call_detail";

const PAGE = 1000;
const ROW_HEIGHT = 38;
const STATUSES: CallStatus[] = ["running", "success", "failed", "cancelled", "interrupted"];
const HOURS = [1, 24, 168, 720];
const CALLERS = ["conversation_agent", "planner", "tool", "http", "direct", "unknown"];

interface Filter {
  text: string;
  tool: string;
  principal: string;
  caller: string;
  status: string;
  hours: number | "";
}

export default function Calls({ may }: ViewProps) {
  const [location, navigate] = useLocation();
  const selected = decodeURIComponent(location.slice(1)) || null;
  const setSelected = (id: string | null) => navigate(id === null ? "/" : `/${segment(id)}`, { replace: selected !== null });
  const [filter, setFilter] = useState<Filter>({ text: "", tool: "", principal: "", caller: "", status: "", hours: "" });
  const deferred = useDeferredValue(filter);
  const query = useMemo(() => {
    const { hours, ...rest } = deferred;
    return { ...rest, since: hours === "" ? undefined : new Date(Date.now() - hours * 3_600_000).toISOString() };
  }, [deferred]);
  const list = useInfiniteQuery({
    queryKey: ["calls", "list", query],
    queryFn: async ({ pageParam }) => (await get<{ calls: CallRecord[] }>("/v1/calls", { ...query, brief: true, limit: PAGE, after: pageParam })).calls,
    initialPageParam: "",
    getNextPageParam: (page) => (page.length === PAGE ? page.at(-1)!.record_id : undefined),
    placeholderData: (before) => before,
  });
  const calls = useMemo(() => list.data?.pages.flat() ?? [], [list.data]);
  const move = (step: number) => {
    const index = calls.findIndex((call) => call.record_id === selected);
    setSelected(calls[Math.max(0, Math.min(calls.length - 1, index + step))]?.record_id ?? null);
  };
  useShortcuts([
    { keys: "j", text: t("keyNext"), run: () => move(1) },
    { keys: "k", text: t("keyNext"), run: () => move(-1) },
  ]);
  const isFiltered = Object.values(filter).some((value) => value !== "");
  return (
    <div className={`page wide calls-page ${selected === null ? "" : "has-detail"}`}>
      <header className="page-head">
        <h1>{t("calls")}</h1>
        <Filters filter={filter} onChange={setFilter} mayListTokens={may("administer")} />
      </header>
      {list.isError && <Failed error={list.error} retry={() => void list.refetch()} />}
      {list.isPending && <Loading />}
      {list.isSuccess && calls.length === 0 && (isFiltered ? <Empty title={t("noMatches")}>{t("noMatchesText")}</Empty> : <Empty icon="calls" title={t("noCalls")}>{t("noCallsText")}</Empty>)}
      {calls.length > 0 && (
        <>
          <Charts query={query} hasBuckets={may("administer")} />
          <div className="trace">
            <div className="card trace-rows">
              <p className="faint small loaded">{t(list.hasNextPage ? "loadedMore" : "loadedCalls", { count: formatNumber(calls.length) })}</p>
              <CallTable calls={calls} selected={selected} onSelect={setSelected} onEnd={() => list.hasNextPage && !list.isFetchingNextPage && void list.fetchNextPage()} />
            </div>
            <aside className="card trace-detail">
              {selected !== null && (
                <Button kind="quiet" className="close-detail" onClick={() => setSelected(null)} aria-label={t("close")}>
                  <Icon name="close" />
                </Button>
              )}
              {selected === null ? <p className="faint">{t("selectRow")}</p> : <Selected id={selected} mayCall={may("call")} />}
            </aside>
          </div>
        </>
      )}
    </div>
  );
}

function Filters({ filter, onChange, mayListTokens }: { filter: Filter; onChange: (filter: Filter) => void; mayListTokens: boolean }) {
  const tokens = useQuery({
    queryKey: ["runs", "tokens"],
    queryFn: async () => (await get<{ tokens: AccessToken[] }>("/v1/tokens")).tokens,
    enabled: mayListTokens,
  });
  const field = (name: "text" | "tool", key: TextKey, type = "text") => (
    <input type={type} aria-label={t(key)} placeholder={t(key)} value={filter[name]} onChange={(event) => onChange({ ...filter, [name]: event.target.value })} />
  );
  return (
    <div className="filters call-filters">
      {field("text", "searchCalls", "search")}
      {field("tool", "tool")}
      <input aria-label={t("tokenOrUser")} placeholder={t("tokenOrUser")} list="principals" value={filter.principal} onChange={(event) => onChange({ ...filter, principal: event.target.value })} />
      <datalist id="principals">
        {tokens.data?.flatMap((token) => ["token", "agent"].map((kind) => <option key={`${kind}:${token.token_id}`} value={`${kind}:${token.name}`} />))}
      </datalist>
      <select aria-label={t("caller")} value={filter.caller} onChange={(event) => onChange({ ...filter, caller: event.target.value })}>
        <option value="">{t("allCallers")}</option>
        {CALLERS.map((caller) => (
          <option key={caller} value={caller}>
            {t(`caller_${caller}` as TextKey)}
          </option>
        ))}
      </select>
      <select aria-label={t("status")} value={filter.status} onChange={(event) => onChange({ ...filter, status: event.target.value })}>
        <option value="">{t("allStatuses")}</option>
        {STATUSES.map((status) => (
          <option key={status} value={status}>
            {t(status === "failed" ? "failedState" : status)}
          </option>
        ))}
      </select>
      <select aria-label={t("time")} value={filter.hours} onChange={(event) => onChange({ ...filter, hours: event.target.value === "" ? "" : Number(event.target.value) })}>
        <option value="">{t("allTimes")}</option>
        {HOURS.map((hours) => (
          <option key={hours} value={hours}>
            {t("hours", { count: hours })}
          </option>
        ))}
      </select>
    </div>
  );
}

interface TableProps {
  calls: CallRecord[];
  selected: string | null;
  onSelect: (id: string) => void;
  onEnd: () => void;
}

function CallTable({ calls, selected, onSelect, onEnd }: TableProps) {
  const pane = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({ count: calls.length, getScrollElement: () => pane.current, estimateSize: () => ROW_HEIGHT, overscan: 15 });
  const items = virtual.getVirtualItems();
  const last = items.at(-1)?.index ?? 0;
  useEffect(() => {
    if (last >= calls.length - 50) onEnd();
  }, [last, calls.length]);
  return (
    <div ref={pane} className="call-table" role="listbox" aria-label={t("calls")} tabIndex={0}>
      <div style={{ height: virtual.getTotalSize(), position: "relative" }} role="presentation">
        {items.map((item) => {
          const call = calls[item.index]!;
          return (
            <div
              key={call.record_id}
              className="call-row"
              role="option"
              aria-selected={call.record_id === selected}
              style={{ transform: `translateY(${item.start}px)`, height: ROW_HEIGHT }}
              onClick={() => onSelect(call.record_id)}
            >
              <span>
                <CallBadge call={call} />
              </span>
              <strong className="clip">{oneLine(callName(call.tool_name, call.action), 60)}</strong>
              <span className="clip faint wide">{visible(call.principal ?? call.caller_id ?? call.caller_type)}</span>
              <span className="clip bad-text wide">{call.error === null || call.error_type === "approval_required" ? "" : oneLine(call.error, 80)}</span>
              <span className="faint">{formatSeconds(call.execution_time)}</span>
              <span className="faint small wide">
                <Time at={call.created_at} />
              </span>
            </div>
          );
        })}
      </div>
    </div>
  );
}

function Selected({ id, mayCall }: { id: string; mayCall: boolean }) {
  const [isAsking, setAsking] = useState(false);
  const call = useQuery({ queryKey: ["calls", id], queryFn: () => get<CallRecord>(`/v1/calls/${segment(id)}`) });
  if (call.isError) return <Failed error={call.error} />;
  if (call.data === undefined) return <Loading />;
  const { tool_name: tool, action, params } = call.data;
  const repeat = async () => {
    setAsking(false);
    try {
      const result = await post<CallResult>(`/v1/tools/${segment(tool)}/call`, { arguments: params ?? {}, action: action === tool ? null : action });
      toast(result.is_success ? t("repeated") : visible(result.error ?? ""), result.is_success ? "good" : "bad");
    } catch (error) {
      toast(errorText(error), "bad");
    }
    void queries.invalidateQueries({ queryKey: ["calls"] });
  };
  return (
    <>
      <CallDetail call={call.data} />
      {mayCall && (
        <div className="decision row">
          <Button onClick={() => setAsking(true)}>{t("repeat")}</Button>
        </div>
      )}
      {isAsking && (
        <Confirm text={t("repeatAsk", { tool: visible(callName(tool, action)) })} action={t("repeat")} onCancel={() => setAsking(false)} onConfirm={() => void repeat()}>
          <Fields value={params ?? {}} empty={t("noArguments")} />
        </Confirm>
      )}
    </>
  );
}
