/** The record of one call. */

import { Link } from "wouter";
import { segment, type CallRecord } from "../api";
import { formatTime, t } from "../language";
import { asText, callName, formatSeconds, visible } from "../text";
import { Badge, CallBadge, ErrorBadge, Fields, LongText } from "../ui";

export function CallDetail({ call, repeats = 1 }: { call: CallRecord; repeats?: number }) {
  const output = call.result as { result?: unknown } | undefined;
  const keys = output === undefined || output === null ? [] : Object.keys(output);
  const value = keys.length === 1 && keys[0] === "result" ? output?.result : output;
  return (
    <>
      <h2>
        {visible(callName(call.tool_name, call.action))}
      </h2>
      <div className="row wrap">
        <CallBadge call={call} />
        {call.error_type !== null && call.status === "failed" && <ErrorBadge type={call.error_type} />}
        {call.attempts > 1 && <Badge tone="warn">{t("attempts", { count: call.attempts })}</Badge>}
        {repeats > 1 && <Badge>{t("foldedCalls", { count: repeats })}</Badge>}
      </div>
      <dl className="facts">
        <div>
          <dt>{t("time")}</dt>
          <dd>{formatTime(call.created_at)}</dd>
        </div>
        <div>
          <dt>{t("duration")}</dt>
          <dd>
            {formatSeconds(call.execution_time)}
            {call.wait_time > 0 && (
              <span className="faint">
                {" "}
                + {formatSeconds(call.wait_time)} {t("queue")}
              </span>
            )}
          </dd>
        </div>
        <div>
          <dt>{t("caller")}</dt>
          <dd>{visible(call.principal ?? call.caller_id ?? call.caller_type)}</dd>
        </div>
        {call.source !== null && (
          <div>
            <dt>{t("source")}</dt>
            <dd>{visible(call.source)}</dd>
          </div>
        )}
      </dl>
      {typeof call.metadata?.rule === "string" && (
        <p className="small faint">
          {t("decidedBy")}: <code>{visible(call.metadata.rule)}</code>
        </p>
      )}
      {call.error_type === "approval_required" && <AskedApproval call={call} />}
      {call.error !== null && [null, "pending"].includes(call.approval_state) && (
        <>
          <h3>{call.error_type === "known_failure" ? t("memorySaid") : t("error")}</h3>
          <LongText text={call.error} />
        </>
      )}
      <h3>{t("arguments")}</h3>
      <Fields value={call.params ?? {}} empty={t("noArguments")} />
      {call.status === "success" && (
        <>
          <h3>{t("result")}</h3>
          <LongText text={asText(value)} name={`${call.tool_name}-result.txt`} />
        </>
      )}
      {call.artifact_id !== null && (
        <a className="button plain" href={`/v1/calls/${segment(call.record_id)}/artifact`} download={`${call.record_id}.txt`}>
          {t("wholeOutput")}
        </a>
      )}
    </>
  );
}

/** What became of the approval that a call has asked for, and the call that was made with it. */
function AskedApproval({ call }: { call: CallRecord }) {
  const { approval_id: approvalId, used_by: usedBy } = (call.metadata ?? {}) as { approval_id?: string; used_by?: string };
  return (
    <p className="row wrap">
      {approvalId !== undefined && <Link href={`~/approvals/${segment(approvalId)}`}>{t("openApproval")}</Link>}
      {usedBy !== undefined && usedBy !== "" && <Link href={`~/calls/${segment(usedBy)}`}>{t("openMadeCall")}</Link>}
    </p>
  );
}
