/** Rows over time: parallel calls stand under each other, and waiting is drawn apart from running. Virtualised. */

import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useRef } from "react";
import { formatNumber, t } from "./language";
import { formatCost, formatSeconds, visible } from "./text";
import { wasExecuted, type Row } from "./trace";
import { Badge, errorName } from "./ui";

const ROW_HEIGHT = 34;

interface WaterfallProps {
  rows: Row[];
  currency: string;
  selected: string | null;
  onSelect: (row: Row) => void;
}

export function Waterfall({ rows, currency, selected, onSelect }: WaterfallProps) {
  const pane = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({ count: rows.length, getScrollElement: () => pane.current, estimateSize: () => ROW_HEIGHT, overscan: 12 });
  const start = rows.length === 0 ? 0 : Math.min(...sample(rows, (row) => row.start));
  const end = rows.length === 0 ? 1 : Math.max(...sample(rows, (row) => row.end));
  const span = Math.max(1, end - start);
  const selectedIndex = rows.findIndex((row) => row.key === selected);
  useEffect(() => {
    if (selectedIndex >= 0) virtual.scrollToIndex(selectedIndex, { align: "auto" });
  }, [selectedIndex]);
  return (
    <div ref={pane} className="waterfall" role="listbox" aria-label={t("trace")} tabIndex={0} style={{ maxHeight: "70vh" }}>
      <div style={{ height: virtual.getTotalSize(), position: "relative" }} role="presentation">
        {virtual.getVirtualItems().map((item) => {
          const row = rows[item.index]!;
          return (
            <div
              key={row.key}
              className={`bar-row row-${row.kind} ${row.isFailure ? "failure" : ""}`}
              role="option"
              aria-selected={row.key === selected}
              aria-setsize={rows.length}
              aria-posinset={item.index + 1}
              style={{ transform: `translateY(${item.start}px)`, height: ROW_HEIGHT }}
              onClick={() => onSelect(row)}
            >
              <span className="bar-name clip" style={{ paddingLeft: row.depth * 14 }}>
                {row.kind === "turn" ? t("turn", { number: row.name }) : visible(row.name)}
                {row.count > 1 && <Badge tone="warn">{row.count}×</Badge>}
                {row.attempts > 1 && <Badge>{t("attempts", { count: row.attempts })}</Badge>}
              </span>
              <span className="bar-track" aria-hidden="true">
                {row.wait > 0 && <span className="bar wait" style={place(row.start, row.start + row.wait)} />}
                <span className={`bar ${wasExecuted(row) ? "" : "refused"}`} style={place(row.start + row.wait, row.end)} />
              </span>
              <span className="bar-time small">
                {row.errorType !== null ? (
                  <span className={`${row.isFailure ? "bad-text" : "faint"} clip`}>{errorName(row.errorType)}</span>
                ) : (
                  <span className="faint clip">
                    {row.tokens !== null && row.tokens > 0 && t("tokenCount", { count: formatNumber(row.tokens) })}
                    {row.cost !== null && row.cost > 0 && ` ${formatCost(row.cost, currency)}`}
                  </span>
                )}
                <span>{formatSeconds((row.end - row.start) / 1000)}</span>
              </span>
            </div>
          );
        })}
      </div>
    </div>
  );

  function place(from: number, to: number) {
    const left = ((from - start) / span) * 100;
    return { left: `${left}%`, width: `max(3px, ${((to - from) / span) * 100}%)`, maxWidth: `calc(100% - ${Math.min(99, left)}%)` };
  }
}

/** Values in pieces that a function call can take as arguments. */
function sample(rows: Row[], value: (row: Row) => number): number[] {
  const result: number[] = [];
  for (let index = 0; index < rows.length; index += 5000) {
    const part = rows.slice(index, index + 5000).map(value);
    result.push(Math.min(...part), Math.max(...part));
  }
  return result;
}
