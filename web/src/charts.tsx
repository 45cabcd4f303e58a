/** Figures over time: calls, errors, durations, and the load of each bucket of slots. */

import { useQuery } from "@tanstack/react-query";
import { get, type Interval, type Limits } from "./api";
import { formatClock, formatNumber, t } from "./language";
import { formatSeconds, visible } from "./text";

export type SeriesQuery = Record<string, string | number | boolean | undefined>;

const MAX_BUCKETS = 8;

export function Charts({ query, hasBuckets }: { query: SeriesQuery; hasBuckets: boolean }) {
  const series = useQuery({
    queryKey: ["calls", "series", query],
    queryFn: async () => (await get<{ intervals: Interval[] }>("/v1/stats/series", { ...query, parts: 60 })).intervals,
    placeholderData: (before) => before,
  });
  const limits = useQuery({ queryKey: ["calls", "limits"], queryFn: () => get<Limits>("/v1/limits") });
  const intervals = series.data ?? [];
  const times = intervals.map((each) => each.start * 1000);
  const sum = (value: (each: Interval) => number): number => intervals.reduce((total, each) => total + value(each), 0);
  const slowest = Math.max(0, ...intervals.map((each) => each.p99 ?? 0));
  return (
    <div className="charts" role="group" aria-label={t("figures")} tabIndex={0}>
      <Chart title={t("rate")} value={formatNumber(sum((each) => each.calls))} times={times} format={formatNumber} lines={[line(t("rate"), 0, intervals.map((each) => each.calls))]} />
      <Chart
        title={t("errors")}
        value={formatNumber(sum((each) => each.failures))}
        times={times}
        format={formatNumber}
        lines={[line(t("failedState"), 2, intervals.map((each) => each.failures)), line(t("rejected"), 1, intervals.map((each) => each.rejections))]}
      />
      <Chart
        title={t("duration")}
        value={slowest > 0 ? formatSeconds(slowest) : "–"}
        times={times}
        format={formatSeconds}
        lines={[line("p50", 0, intervals.map((each) => each.p50)), line("p95", 1, intervals.map((each) => each.p95)), line("p99", 2, intervals.map((each) => each.p99))]}
      />
      {limits.data !== undefined && <Slots limits={limits.data} hasBuckets={hasBuckets} />}
    </div>
  );
}

interface Line {
  name: string;
  /** Which of the three colours. */
  tone: number;
  values: (number | null)[];
}

const line = (name: string, tone: number, values: (number | null)[]): Line => ({ name, tone, values });

interface ChartProps {
  title: string;
  value: string;
  lines: Line[];
  times: number[];
  format: (value: number) => string;
}

function Chart({ title, value, lines, times, format }: ChartProps) {
  const max = Math.max(0, ...lines.flatMap((each) => each.values.map((number) => number ?? 0)));
  return (
    <figure className="card chart">
      <header>
        <span className="faint small">{title}</span>
        <strong>{value}</strong>
      </header>
      <div className="plot">
        <span className="faint plot-max">{max > 0 ? format(max) : ""}</span>
        <svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" aria-label={`${title}: ${value}`}>
          <path className="axis" d="M0,98L100,98" />
          {lines.map((each) => (
            <path key={each.name} className={`line-${each.tone}`} d={linePath(each.values, max)} />
          ))}
        </svg>
      </div>
      <footer className="faint">
        <span>{times.length > 0 && formatClock(times[0]!, times.at(-1)!)}</span>
        {lines.length > 1 && (
          <span className="legend">
            {lines.map((each) => (
              <span key={each.name} className={`legend-${each.tone}`}>
                {each.name}
              </span>
            ))}
          </span>
        )}
        <span>{t("now")}</span>
      </footer>
    </figure>
  );
}

/** A line through values, in a box of 100 × 100; where there is no value, the line is interrupted. */
export function linePath(values: (number | null)[], max: number): string {
  let path = "";
  let isDrawing = false;
  values.forEach((value, index) => {
    if (value === null) {
      isDrawing = false;
      return;
    }
    const x = ((index / Math.max(1, values.length - 1)) * 100).toFixed(2);
    const y = (98 - (value / Math.max(max, 1e-9)) * 94).toFixed(2);
    const isAlone = !isDrawing && (values[index + 1] ?? null) === null;
    path += isAlone ? `M${x},${y}h0.6` : `${isDrawing ? "L" : "M"}${x},${y}`;
    isDrawing = true;
  });
  return path;
}

function Slots({ limits, hasBuckets }: { limits: Limits; hasBuckets: boolean }) {
  const buckets = Object.entries(limits.buckets ?? {});
  const samples = limits.samples ?? [];
  const busiest = buckets
    .map(([name, bucket]) => ({ name, ...bucket, peak: Math.max(0, ...samples.map((each) => each.buckets[name]?.current ?? 0)), rejected: samples.at(-1)?.buckets[name]?.rejected ?? 0 }))
    .sort((a, b) => b.queue - a.queue || b.current - a.current || b.peak - a.peak)
    .slice(0, MAX_BUCKETS);
  return (
    <div className={`card chart slots ${hasBuckets && busiest.length > 0 ? "has-buckets" : ""}`}>
      <header>
        <span className="faint small">{t("slots")}</span>
        <strong>{t("slotsNow", { running: formatNumber(limits.current_concurrent), queued: formatNumber(limits.queue_length) })}</strong>
      </header>
      {hasBuckets && busiest.length > 0 ? (
        <table>
          <thead>
            <tr>
              <th scope="col">{t("bucket")}</th>
              <th scope="col">{t("lastHalfHour")}</th>
              <th scope="col">{t("running")}</th>
              <th scope="col">{t("queued")}</th>
              <th scope="col">{t("rejected")}</th>
            </tr>
          </thead>
          <tbody>
            {busiest.map((bucket) => (
              <tr key={bucket.name}>
                <td className="clip">{visible(bucket.name)}</td>
                <td>
                  <Load name={bucket.name} samples={samples} />
                </td>
                <td>
                  {bucket.current}
                  {bucket.limit !== null && <span className="faint"> / {bucket.limit}</span>}
                </td>
                <td>{bucket.queue}</td>
                <td>{bucket.rejected}</td>
              </tr>
            ))}
          </tbody>
        </table>
      ) : (
        <p className="faint">{t("rejectedCount", { count: formatNumber(limits.total_rejected) })}</p>
      )}
    </div>
  );
}

/** Running and waiting calls of one bucket, by the time at which they were counted. */
function Load({ name, samples }: { name: string; samples: NonNullable<Limits["samples"]> }) {
  const start = samples[0]?.at ?? 0;
  const span = Math.max(1, (samples.at(-1)?.at ?? 1) - start);
  const max = Math.max(1, ...samples.map((each) => Math.max(each.buckets[name]?.current ?? 0, each.buckets[name]?.queue ?? 0)));
  const path = (value: (each: { current: number; queue: number }) => number): string =>
    samples
      .map((each, index) => {
        const load = each.buckets[name] ?? { current: 0, queue: 0 };
        return `${index === 0 ? "M" : "L"}${(((each.at - start) / span) * 100).toFixed(1)},${(96 - (value(load) / max) * 90).toFixed(1)}`;
      })
      .join("");
  return (
    <svg className="load" viewBox="0 0 100 100" preserveAspectRatio="none" role="img" aria-label={`${t("running")}, ${t("queued")}`}>
      <path className="axis" d="M0,98L100,98" />
      <path className="line-0" d={path((each) => each.current)} />
      <path className="line-1" d={path((each) => each.queue)} />
    </svg>
  );
}
