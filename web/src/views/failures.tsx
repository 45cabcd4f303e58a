/** What was learned from failures: the pattern, how often it was met, and what cured it. */

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get, patch, remove, segment } from "../api";
import type { ViewProps } from "../app";
import { formatNumber, hasText, t } from "../language";
import { queries } from "../live";
import { callName, visible } from "../text";
import { Badge, Button, Confirm, Empty, errorText, Failed, Loading, Time, toast } from "../ui";

interface Pattern {
  key: string;
  tool_id: string;
  action: string;
  failure_class: string;
  parameters: string[];
  count: number;
  first_at: number;
  last_at: number;
  changed_parameters: string[] | null;
  recoveries: number;
  prevented: number;
  pinned: boolean;
}

function cureOf(pattern: Pattern): string {
  if (pattern.changed_parameters === null) return t("unknownCure");
  return pattern.changed_parameters.length === 0 ? t("aRetry") : t("anotherValue", { names: pattern.changed_parameters.join(", ") });
}

/** The class of a failure in words. */
const failureName = (name: string): string => {
  const key = `failure_${name}`;
  return hasText(key) ? t(key) : visible(name);
};

export default function Failures({ may }: ViewProps) {
  const [toForget, setToForget] = useState<Pattern | null>(null);
  const list = useQuery({
    queryKey: ["runs", "failures"],
    queryFn: async () => (await get<{ failures: Pattern[] }>("/v1/failures")).failures,
  });
  const change = async (work: () => Promise<unknown>) => {
    setToForget(null);
    try {
      await work();
    } catch (error) {
      toast(errorText(error), "bad");
    }
    void queries.invalidateQueries({ queryKey: ["runs", "failures"] });
  };
  return (
    <div className="page">
      <header className="page-head">
        <h1>{t("failures")}</h1>
        <p className="lead">{t("failuresText")}</p>
      </header>
      {list.isError && <Failed error={list.error} retry={() => void list.refetch()} />}
      {list.isPending && <Loading />}
      {list.data?.length === 0 && (
        <Empty icon="failures" title={t("noFailures")}>
          {t("noFailuresText")}
        </Empty>
      )}
      {list.data !== undefined && list.data.length > 0 && (
        <ul className="patterns">
          {list.data.map((each) => (
            <li key={each.key} className="card pattern">
              <div className="pattern-what">
                <div className="row wrap">
                  <strong>{visible(callName(each.tool_id, each.action))}</strong>
                  <Badge tone="bad">{failureName(each.failure_class)}</Badge>
                  {each.pinned && <Badge tone="info">{t("pinned")}</Badge>}
                </div>
                <p>
                  {each.parameters.length === 0 ? t("failsAlways") : t("failsWith", { names: visible(each.parameters.join(", ")) })}{" "}
                  {each.changed_parameters === null ? (
                    <span className="faint">{t("unknownCure")}</span>
                  ) : (
                    <span>
                      {t("cure")}: <strong>{visible(cureOf(each))}</strong>
                      {each.recoveries > 0 && <span className="faint"> ({t("cured", { count: formatNumber(each.recoveries) })})</span>}
                    </span>
                  )}
                </p>
              </div>
              <dl className="facts">
                <div>
                  <dt>{t("prevented")}</dt>
                  <dd>
                    <strong>{t("timesCount", { count: formatNumber(each.prevented) })}</strong>
                  </dd>
                </div>
                <div>
                  <dt>{t("weight")}</dt>
                  <dd>{formatNumber(Math.round(each.count * 10) / 10)}</dd>
                </div>
                <div>
                  <dt>{t("lastTime")}</dt>
                  <dd>
                    <Time at={each.last_at} />
                  </dd>
                </div>
              </dl>
              {may("administer") && (
                <div className="row">
                  <Button onClick={() => void change(() => patch(`/v1/failures/${segment(each.key)}`, { pinned: !each.pinned }))}>{t(each.pinned ? "unpin" : "pin")}</Button>
                  <Button kind="danger" onClick={() => setToForget(each)}>
                    {t("forget")}
                  </Button>
                </div>
              )}
            </li>
          ))}
        </ul>
      )}
      {toForget !== null && (
        <Confirm
          text={t("forgetAsk", { tool: visible(callName(toForget.tool_id, toForget.action)) })}
          action={t("forget")}
          onCancel={() => setToForget(null)}
          onConfirm={() => void change(() => remove(`/v1/failures?key=${segment(toForget.key)}`))}
        />
      )}
    </div>
  );
}
