/** A run as rows of a waterfall: turns of the model and calls, with what repeats for one reason folded into one row. */

import type { CallRecord, HistoryEntry, JsonObject, Run } from "./api";
import { callName, errorTypeOf, isAsking } from "./text";

export interface Row {
  key: string;
  kind: "turn" | "call";
  name: string;
  /** Milliseconds. */
  start: number;
  end: number;
  /** Milliseconds before it ran. */
  wait: number;
  isFailure: boolean;
  isRunning: boolean;
  errorType: string | null;
  text: string;
  attempts: number;
  tokens: number | null;
  cost: number | null;
  model: string;
  recordId: string;
  arguments: JsonObject | null;
  /** How many calls the row stands for. */
  count: number;
  depth: number;
}

const NOT_EXECUTED = new Set(["known_failure", "permission_denied", "rejected", "validation_error", "tool_not_found"]);

export const wasExecuted = (row: Row): boolean => row.errorType === null || !(NOT_EXECUTED.has(row.errorType) || isAsking(row.errorType));

function rowOfCall(call: CallRecord, depths: Map<string, number>): Row {
  const start = Date.parse(call.created_at);
  const wait = call.wait_time * 1000;
  const depth = call.parent_id === null ? 0 : (depths.get(call.parent_id) ?? 0) + 1;
  depths.set(call.record_id, depth);
  const errorType = errorTypeOf(call);
  return {
    key: call.record_id,
    kind: "call",
    name: callName(call.tool_name, call.action),
    start,
    end: call.status === "running" ? Math.max(start, Date.now()) : start + wait + call.execution_time * 1000,
    wait,
    isFailure: !["success", "running"].includes(call.status) && !isAsking(errorType),
    isRunning: call.status === "running",
    errorType: errorType ?? (call.status === "interrupted" ? "interrupted" : null),
    text: isAsking(errorType) ? "" : (call.error ?? ""),
    attempts: call.attempts,
    ...{ tokens: null, cost: null, model: "" },
    recordId: call.record_id,
    arguments: null,
    count: 1,
    depth,
  };
}

/** A call that left no record, such as one that a run refused before the engine saw it. */
function rowOfStep(entry: Extract<HistoryEntry, { kind: "call" }>): Row {
  const { step } = entry;
  const end = Date.parse(entry.at);
  return {
    key: `step-${step.id}`,
    kind: "call",
    name: callName(step.tool_id, step.action),
    start: end - step.seconds * 1000,
    end,
    wait: 0,
    isFailure: !step.is_success && !isAsking(step.error_type),
    isRunning: false,
    errorType: step.error_type,
    text: step.text,
    attempts: 1,
    ...{ tokens: null, cost: step.cost ?? null, model: "" },
    recordId: "",
    arguments: step.arguments,
    count: 1,
    depth: 0,
  };
}

/** The rows of a run, by start. A turn starts when what was before it ended. */
export function makeRows(run: Run, calls: CallRecord[]): Row[] {
  const depths = new Map<string, number>();
  const steps = new Map(run.history.flatMap((entry) => (entry.kind === "call" ? [[entry.step.record_id, entry.step] as const] : [])));
  const rows = calls.map((call) => {
    const row = rowOfCall(call, depths);
    const step = steps.get(call.record_id);
    return step === undefined ? row : { ...row, cost: step.cost ?? null, arguments: step.arguments, text: row.text || step.text };
  });
  const recorded = new Set(calls.map((call) => call.record_id));
  let last = Date.parse(run.started_at);
  let number = 0;
  let model = "";
  for (const entry of run.history) {
    const at = Date.parse(entry.at);
    if (entry.kind === "turn") {
      number += 1;
      const text = typeof entry.message.content === "string" ? entry.message.content : "";
      const tokens = entry.usage.total_tokens;
      model = entry.model ?? model;
      rows.push({
        ...{ key: `turn-${number}`, kind: "turn", name: String(number), start: last, end: at, wait: 0, isFailure: false, isRunning: false },
        ...{ errorType: null, text, attempts: 1, tokens, cost: entry.cost ?? null, model, recordId: "", arguments: null, count: 1, depth: 0 },
      });
    } else if (entry.kind === "call" && !recorded.has(entry.step.record_id)) {
      rows.push(rowOfStep(entry));
    }
    last = Math.max(last, at);
  }
  return rows.sort((a, b) => a.start - b.start || a.end - b.end);
}

/** Calls of one tool that failed after each other for the same reason, as one row; turns between them stay. */
export function foldRows(rows: Row[]): Row[] {
  const folded: Row[] = [];
  let last = -1;
  for (const row of rows) {
    const before = folded[last];
    if (before !== undefined && row.kind === "call" && isRepetition(before, row)) {
      folded[last] = { ...before, end: Math.max(before.end, row.end), count: before.count + 1 };
      continue;
    }
    folded.push(row);
    if (row.kind === "call") last = folded.length - 1;
  }
  return folded;
}

const isRepetition = (before: Row, row: Row): boolean =>
  row.isFailure && before.isFailure && before.name === row.name && before.errorType === row.errorType && before.depth === row.depth;

export interface Failure {
  name: string;
  errorType: string;
  text: string;
  count: number;
  first: Row;
}

/** What failed, once for each tool and reason; what was executed comes first, because it is the cause. */
export function findFailures(rows: Row[]): Failure[] {
  const failures = new Map<string, Failure>();
  for (const row of rows.filter((each) => each.isFailure)) {
    const key = `${row.name}\n${row.errorType ?? ""}`;
    const known = failures.get(key);
    if (known === undefined) failures.set(key, { name: row.name, errorType: row.errorType ?? "", text: row.text, count: row.count, first: row });
    else known.count += row.count;
  }
  return [...failures.values()].sort((a, b) => Number(wasExecuted(b.first)) - Number(wasExecuted(a.first)));
}

export interface ToolCost {
  name: string;
  /** Of its schemas, in one request. */
  tokens: number;
  /** In how many requests they were sent. */
  requests: number;
  calls: number;
}

/** What the schemas of each tool cost in all requests of a run, the most expensive first. */
export function findSchemaCosts(run: Run): ToolCost[] {
  const costs = new Map<string, ToolCost>();
  let offered: { [name: string]: number } = {};
  for (const entry of run.history) {
    if (entry.kind !== "turn") continue;
    offered = entry.tools ?? offered;
    for (const [name, tokens] of Object.entries(offered)) {
      const known = costs.get(name) ?? { name, tokens, requests: 0, calls: 0 };
      costs.set(name, { ...known, tokens, requests: known.requests + entry.usage.requests });
    }
    for (const call of entry.message.tool_calls ?? []) {
      const known = costs.get(call.function.name);
      if (known !== undefined) known.calls += 1;
    }
  }
  return [...costs.values()].sort((a, b) => b.tokens * b.requests - a.tokens * a.requests);
}

/** What a run has cost: the replies of the model and the calls; null if nothing of it has a price. */
export function costOf(run: Run): number | null {
  const costs = run.history.map((entry) => (entry.kind === "turn" ? entry.cost : entry.kind === "call" ? entry.step.cost : null));
  const known = costs.filter((cost): cost is number => typeof cost === "number");
  return known.length === 0 ? null : known.reduce((total, cost) => total + cost, 0);
}

export interface Pair {
  left: Row | null;
  right: Row | null;
}

/** Two runs step by step: calls of the same tool stand beside each other, in the longest common order. */
export function alignRows(left: Row[], right: Row[], limit = 1500): Pair[] {
  const [a, b] = [left.filter((row) => row.kind === "call").slice(0, limit), right.filter((row) => row.kind === "call").slice(0, limit)];
  const width = b.length + 1;
  const lengths = new Uint16Array((a.length + 1) * width);
  const at = (i: number, j: number) => lengths[i * width + j] ?? 0;
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      lengths[i * width + j] = a[i]!.name === b[j]!.name ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
    }
  }
  const pairs: Pair[] = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i]!.name === b[j]!.name) pairs.push({ left: a[i++]!, right: b[j++]! });
    else if (j >= b.length || (i < a.length && at(i + 1, j) >= at(i, j + 1))) pairs.push({ left: a[i++]!, right: null });
    else pairs.push({ left: null, right: b[j++]! });
  }
  return pairs;
}

/** A run in the Agent Trajectory Interchange Format. */
export function toAtif(run: Run, version: string): JsonObject {
  const steps: JsonObject[] = [];
  const usages = run.history.filter((entry) => entry.kind === "turn").map((entry) => entry.usage);
  let turn = 0;
  for (const message of run.messages) {
    const content = typeof message.content === "string" ? message.content : message.content === null ? "" : JSON.stringify(message.content);
    if (message.role === "tool") {
      const last = steps.at(-1);
      if (last === undefined) continue;
      const observation = (last.observation ??= { results: [] }) as { results: JsonObject[] };
      observation.results.push({ source_call_id: message.tool_call_id ?? "", content });
      continue;
    }
    const step: JsonObject = { step_id: steps.length + 1, source: message.role === "assistant" ? "agent" : message.role === "system" ? "system" : "user", message: content };
    if (message.role === "assistant") {
      if (message.tool_calls?.length) {
        step.tool_calls = message.tool_calls.map((call) => ({ tool_call_id: call.id, function_name: call.function.name, arguments: parse(call.function.arguments) }));
      }
      const usage = usages[turn++];
      if (usage !== undefined) step.metrics = { prompt_tokens: usage.input_tokens, completion_tokens: usage.output_tokens, cached_tokens: usage.cached_tokens };
    }
    steps.push(step);
  }
  return {
    schema_version: "ATIF-v1.8",
    session_id: run.run_id,
    agent: { name: "ferrule", version, model_name: run.model },
    steps,
    final_metrics: { total_prompt_tokens: run.usage.input_tokens, total_completion_tokens: run.usage.output_tokens, total_cached_tokens: run.usage.cached_tokens, total_steps: steps.length },
  };
}

function parse(text: string): JsonObject {
  try {
    return JSON.parse(text) as JsonObject;
  } catch {
    return { text };
  }
}

/** One line of a file in chat format. */
export const toChatLine = (run: Run): string =>
  `${JSON.stringify({ run_id: run.run_id, task: run.task, state: run.state, messages: run.messages })}\n`;
