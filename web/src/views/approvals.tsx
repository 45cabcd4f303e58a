/** One inbox for every call that needs a person: over all runs, clients and servers. */

import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { Link, useLocation } from "wouter";
import { ApiError, get, post, segment, type Approval, type JsonObject } from "../api";
import type { ViewProps } from "../app";
import { useShortcuts } from "../keys";
import { t } from "../language";
import { queries, usePendingApprovals } from "../live";
import { ArgumentsEditor } from "../schema_form";
import { oneLine, visible } from "../text";
import { Badge, Button, Diff, EffectBadge, Empty, errorText, Failed, Fields, Icon, Loading, LongText, StateBadge, Time, toast } from "../ui";

export function Approvals({ may }: ViewProps) {
  const [location, navigate] = useLocation();
  const selectedId = decodeURIComponent(location.slice(1));
  const [shows, setShows] = useState<"pending" | "decided">("pending");
  const pending = usePendingApprovals();
  const decided = useDecidedApprovals(shows === "decided");
  const list = shows === "pending" ? pending : decided;
  const requests = list.data ?? [];
  const isWide = window.matchMedia("(min-width: 900px)").matches;
  const selected = requests.find((each) => each.approval_id === selectedId) ?? (isWide && selectedId === "" ? requests[0] : undefined);
  const single = useQuery({
    queryKey: ["approvals", selectedId],
    queryFn: () => get<Approval>(`/v1/approvals/${segment(selectedId)}`),
    enabled: selectedId !== "" && selected === undefined && list.isSuccess,
  });
  const shown = selected ?? (selectedId === "" ? undefined : single.data);
  const move = (step: number) => {
    const index = requests.findIndex((each) => each.approval_id === shown?.approval_id);
    const next = requests[Math.min(requests.length - 1, Math.max(0, index + step))];
    if (next !== undefined) navigate(`/${next.approval_id}`, { replace: true });
  };
  useShortcuts([
    { keys: "j", text: t("keyNext"), run: () => move(1) },
    { keys: "k", text: t("keyNext"), run: () => move(-1) },
  ]);
  return (
    <div className={`split ${shown !== undefined ? "has-detail" : ""}`}>
      <section className="list-pane" aria-label={t("approvals")}>
        <header className="pane-head">
          <h1>{t("approvals")}</h1>
          <div className="tabs" role="group">
            {(["pending", "decided"] as const).map((name) => (
              <button key={name} aria-pressed={shows === name} onClick={() => setShows(name)}>
                {t(name)}
                {name === "pending" && pending.data !== undefined && <span className="count">{pending.data.length}</span>}
              </button>
            ))}
          </div>
        </header>
        {list.isError && <Failed error={list.error} retry={() => void list.refetch()} />}
        {list.isPending && <Loading />}
        {list.isSuccess && requests.length === 0 && (
          <Empty icon="approvals" title={t("noApprovals")}>
            {t("noApprovalsText")}
          </Empty>
        )}
        <ul className="items">
          {requests.map((each) => (
            <li key={each.approval_id}>
              <Link href={`/${each.approval_id}`} className="item" aria-current={each === shown ? "true" : undefined}>
                <div className="row between">
                  <strong>{oneLine(nameOf(each), 60)}</strong>
                  {each.state === "pending" ? each.tool && <EffectBadge effect={each.tool.effect} /> : <StateBadge state={each.state} />}
                </div>
                <div className="mono faint clip">{oneLine(JSON.stringify(each.arguments), 90)}</div>
                <div className="row between faint small">
                  <span className="clip">{visible(each.principal)}</span>
                  <Time at={each.created_at} />
                </div>
              </Link>
            </li>
          ))}
        </ul>
      </section>
      <section className="detail-pane" aria-label={shown === undefined ? undefined : nameOf(shown)}>
        {shown !== undefined && (
          <>
            <Link href="/" className="back">
              <Icon name="back" /> {t("back")}
            </Link>
            <RequestDetail key={shown.approval_id} request={shown} mayApprove={may("approve")} onDecided={() => move(1)} />
          </>
        )}
        {single.isError && <Failed error={single.error} />}
      </section>
    </div>
  );
}

function useDecidedApprovals(enabled: boolean) {
  return useQuery({
    queryKey: ["approvals", "decided"],
    queryFn: async () => {
      const states = ["approved", "refused", "used", "expired"];
      const lists = await Promise.all(states.map((state) => get<{ approvals: Approval[] }>("/v1/approvals", { state, limit: 50 })));
      return lists.flatMap((each) => each.approvals).sort((a, b) => (b.decided_at ?? b.created_at) - (a.decided_at ?? a.created_at));
    },
    enabled,
  });
}

export const nameOf = (request: Approval): string =>
  request.action === null || request.action === "" || request.action === request.tool_id ? request.tool_id : `${request.tool_id} · ${request.action}`;

/** Whether a client has made the call, which is in no run: it repeats the call after the approval. */
const isOfClient = (request: Approval): boolean => /^(client|token):/.test(request.principal);

interface DetailProps {
  request: Approval;
  mayApprove: boolean;
  onDecided?: () => void;
  /** Inside a conversation: without what is known there. */
  isInline?: boolean;
}

export function RequestDetail({ request, mayApprove, onDecided, isInline = false }: DetailProps) {
  const tool = request.tool;
  return (
    <article className={`request ${isInline ? "inline" : ""}`}>
      <header>
        <h2>{visible(nameOf(request))}</h2>
        {tool && <EffectBadge effect={tool.effect} />}
        <StateBadge state={request.state} />
      </header>
      {tool && tool.description !== "" && <p className="lead">{visible(tool.description)}</p>}
      {request.reason !== "" && (
        <p>
          <strong>{t("whyAsked")}:</strong> {visible(request.reason)}
        </p>
      )}
      {tool === null && <p className="notice warn">{t("toolGone")}</p>}
      {tool && !tool.is_same_version && request.state === "pending" && <p className="notice warn">{t("otherVersion")}</p>}
      {tool && tool.changes !== "" && (
        <>
          <h3>{t("toolChanged")}</h3>
          <Diff text={tool.changes} />
        </>
      )}
      <h3>{t("arguments")}</h3>
      <Fields value={request.arguments} empty={t("noArguments")} />
      {Object.keys(request.origins).length > 0 && (
        <>
          <h3>{t("origins")}</h3>
          <Fields value={request.origins} empty="" />
        </>
      )}
      {request.edited_arguments !== null && (
        <>
          <h3>{t("edited")}</h3>
          <Fields value={request.edited_arguments} empty={t("noArguments")} />
        </>
      )}
      {!isInline && <Facts request={request} />}
      {request.state === "approved" && isOfClient(request) && <p className="notice">{t("clientRepeats", { client: visible(request.principal) })}</p>}
      {request.state === "pending" ? (
        mayApprove ? (
          <Decision request={request} onDecided={onDecided} hasShortcuts={!isInline} />
        ) : (
          <p className="notice">{t("mayNotApprove")}</p>
        )
      ) : (
        request.decision_reason !== "" && (
          <>
            <h3>{t("reason")}</h3>
            <LongText text={request.decision_reason} plain />
          </>
        )
      )}
    </article>
  );
}

function Facts({ request }: { request: Approval }) {
  return (
    <dl className="facts">
      <div>
        <dt>{t("requestedBy")}</dt>
        <dd>{visible(request.principal)}</dd>
      </div>
      <div>
        <dt>{t("requested")}</dt>
        <dd>
          <Time at={request.created_at} />
        </dd>
      </div>
      {request.state === "pending" && (
        <div>
          <dt>{t("expires")}</dt>
          <dd>
            <Time at={request.expires_at} />
          </dd>
        </div>
      )}
      {request.decided_at !== null && (
        <div>
          <dt>{t(request.state === "refused" ? "refused" : "approved")}</dt>
          <dd>
            {visible(request.decided_by)}, <Time at={request.decided_at} />
          </dd>
        </div>
      )}
      {request.run_id !== "" && !isOfClient(request) && (
        <div>
          <dt>{t("run")}</dt>
          <dd>
            <Link href={`~/runs/${segment(request.run_id)}`}>{visible(request.run_id)}</Link>
          </dd>
        </div>
      )}
      {request.tool && (
        <div>
          <dt>{t("source")}</dt>
          <dd>{visible(request.tool.source)}</dd>
        </div>
      )}
      {request.tenant !== "" && (
        <div>
          <dt>{t("tenant")}</dt>
          <dd>
            <Badge>{visible(request.tenant)}</Badge>
          </dd>
        </div>
      )}
    </dl>
  );
}

type Mode = "choose" | "edit" | "refuse";

function Decision({ request, onDecided, hasShortcuts }: { request: Approval; onDecided?: () => void; hasShortcuts: boolean }) {
  const [mode, setMode] = useState<Mode>("choose");
  const [isBusy, setBusy] = useState(false);
  const [reason, setReason] = useState("");
  const [edited, setEdited] = useState<JsonObject | null>(request.arguments);
  const editor = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (mode === "edit") editor.current?.querySelector<HTMLElement>("input, select, textarea")?.focus();
    else setEdited(request.arguments);
  }, [mode]);

  const decide = async (decision: { allowed: boolean; reason?: string; arguments?: JsonObject }) => {
    if (isBusy) return;
    setBusy(true);
    const tool = nameOf(request);
    try {
      await post(`/v1/approvals/${segment(request.approval_id)}`, decision);
      toast(t(decision.allowed ? "wasApproved" : "wasRefused", { tool }), decision.allowed ? "good" : "muted");
      onDecided?.();
    } catch (error) {
      const isLate = error instanceof ApiError && error.status === 409;
      toast(isLate ? t("alreadyDecided", { detail: visible(error.message) }) : errorText(error), isLate ? "warn" : "bad");
    } finally {
      setBusy(false);
      void queries.invalidateQueries({ queryKey: ["approvals"] });
    }
  };
  useShortcuts(
    hasShortcuts
      ? [
          { keys: "a", text: t("approve"), run: () => void decide({ allowed: true }) },
          { keys: "r", text: t("refuse"), run: () => setMode("refuse") },
          { keys: "e", text: t("edit"), run: () => setMode("edit") },
        ]
      : [],
  );
  const onEscape = (event: React.KeyboardEvent) => event.key === "Escape" && setMode("choose");

  if (mode === "refuse") {
    const refuse = () => void decide({ allowed: false, reason });
    return (
      <form
        className="decision"
        onKeyDown={onEscape}
        onSubmit={(event) => {
          event.preventDefault();
          refuse();
        }}
      >
        <label>
          {t("reason")}
          <input autoFocus value={reason} maxLength={4000} placeholder={t("reasonPlaceholder")} onChange={(event) => setReason(event.target.value)} />
        </label>
        <div className="row">
          <Button kind="danger" type="submit" disabled={isBusy}>
            {t("refuse")}
          </Button>
          <Button onClick={() => setMode("choose")}>{t("cancel")}</Button>
        </div>
      </form>
    );
  }
  if (mode === "edit") {
    return (
      <div className="decision" onKeyDown={onEscape} ref={editor}>
        <ArgumentsEditor title={t("edited")} schema={request.tool?.parameters ?? {}} secrets={request.tool?.secrets ?? []} initial={request.arguments} onChange={setEdited} />
        <div className="row">
          <Button kind="primary" disabled={isBusy || edited === null} onClick={() => edited !== null && void decide({ allowed: true, arguments: edited })}>
            {t("approveEdited")}
          </Button>
          <Button onClick={() => setMode("choose")}>{t("cancel")}</Button>
        </div>
      </div>
    );
  }
  return (
    <div className="decision sticky row">
      <Button kind="primary" shortcut={hasShortcuts ? "a" : undefined} disabled={isBusy} onClick={() => void decide({ allowed: true })}>
        {t("approve")}
      </Button>
      <Button shortcut={hasShortcuts ? "e" : undefined} disabled={isBusy} onClick={() => setMode("edit")}>
        {t("edit")}
      </Button>
      <Button kind="danger" shortcut={hasShortcuts ? "r" : undefined} disabled={isBusy} onClick={() => setMode("refuse")}>
        {t("refuse")}
      </Button>
    </div>
  );
}
