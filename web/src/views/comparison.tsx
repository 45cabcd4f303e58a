/** Two runs beside each other, step by step. */

import { useMemo } from "react";
import { Link } from "wouter";
import { segment, type Run } from "../api";
import { formatNumber, t } from "../language";
import { formatSeconds, oneLine, visible } from "../text";
import { alignRows, makeRows, type Pair, type Row } from "../trace";
import { Badge, ErrorBadge, Failed, Fields, Icon, Loading, LongText, Markdown, StateBadge } from "../ui";
import { useRun, useRunCalls } from "./run";

export default function Comparison({ left, right }: { left: string; right: string }) {
  const runs = [useRun(left), useRun(right)] as const;
  const calls = [useRunCalls(left), useRunCalls(right)] as const;
  const pairs = useMemo(() => {
    const [a, b] = [runs[0].data, runs[1].data];
    if (a === undefined || b === undefined) return [];
    return alignRows(makeRows(a, calls[0].data ?? []), makeRows(b, calls[1].data ?? []));
  }, [runs[0].data, runs[1].data, calls[0].data, calls[1].data]);
  const failed = runs.find((run) => run.isError);
  if (failed !== undefined) return <Failed error={failed.error} />;
  if (runs[0].data === undefined || runs[1].data === undefined) return <Loading />;
  return (
    <div className="page wide">
      <Link href={`/${segment(left)}`} className="back always">
        <Icon name="back" /> {t("run")}
      </Link>
      <h1>{t("compare")}</h1>
      <div className="scroll" tabIndex={0}>
        <table className="comparison">
          <thead>
            <tr>
              <th scope="col">
                <Head run={runs[0].data} />
              </th>
              <th scope="col" aria-label={t("status")} />
              <th scope="col">
                <Head run={runs[1].data} />
              </th>
            </tr>
          </thead>
          <tbody>
            {pairs.map((pair, index) => (
              <tr key={index} className={differs(pair) ? "different" : ""}>
                <td>{pair.left && <Step row={pair.left} />}</td>
                <td className="mark">{mark(pair)}</td>
                <td>{pair.right && <Step row={pair.right} />}</td>
              </tr>
            ))}
            <tr>
              <td>
                <Markdown text={runs[0].data.text} />
              </td>
              <td className="mark">{runs[0].data.text === runs[1].data.text ? "=" : "≠"}</td>
              <td>
                <Markdown text={runs[1].data.text} />
              </td>
            </tr>
          </tbody>
        </table>
      </div>
    </div>
  );
}

const differs = ({ left, right }: Pair): boolean =>
  left === null || right === null || left.errorType !== right.errorType || JSON.stringify(left.arguments) !== JSON.stringify(right.arguments);

function mark(pair: Pair) {
  if (pair.left === null) return <span title={t("onlyRight")}>+</span>;
  if (pair.right === null) return <span title={t("onlyLeft")}>−</span>;
  return differs(pair) ? <span title={t("changedStep")}>≠</span> : <span title={t("sameStep")}>=</span>;
}

function Head({ run }: { run: Run }) {
  return (
    <>
      <Link href={`/${segment(run.run_id)}`}>{oneLine(run.task, 80)}</Link>
      <div className="row small faint">
        <StateBadge state={run.state} /> {formatSeconds(run.seconds)} · {formatNumber(run.usage.total_tokens)} {t("tokens").toLowerCase()}
      </div>
    </>
  );
}

function Step({ row }: { row: Row }) {
  return (
    <details>
      <summary className="row between">
      <span className="clip">
        <strong>{visible(row.name)}</strong> <span className="mono faint">{row.arguments !== null && oneLine(JSON.stringify(row.arguments), 60)}</span>
      </span>
      <span className="row">
        {row.isFailure && (row.errorType === null ? <Badge tone="bad">{t("failedState")}</Badge> : <ErrorBadge type={row.errorType} />)}
        <span className="faint small">{formatSeconds((row.end - row.start) / 1000)}</span>
      </span>
      </summary>
      <Fields value={row.arguments ?? {}} empty={t("noArguments")} />
      {row.text !== "" && <LongText text={row.text} />}
    </details>
  );
}
