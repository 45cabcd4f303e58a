import { expect, test } from "vitest";
import { parseEvent, type CallRecord, type Json, type JsonObject, type Run } from "./api";
import { linePath } from "./charts";
import { applyEvent, type LiveTurn } from "./conversations";
import { t } from "./language";
import { fieldOf, fits, initialValue, resolve } from "./schema";
import { asText, formatCost, oneLine, safeLink, shorten, visible } from "./text";
import { chinese } from "./texts_chinese";
import { english } from "./texts_english";
import { alignRows, costOf, findFailures, findSchemaCosts, foldRows, makeRows, toAtif, wasExecuted } from "./trace";

const call = (id: string, more: Partial<CallRecord> = {}): CallRecord => ({
  ...{ record_id: id, tool_name: "search", action: null, status: "success", error: null, error_type: null, approval_state: null, execution_time: 1, wait_time: 0 },
  ...{ attempts: 1, caller_id: null, caller_type: "agent", conversation_id: "r", principal: null, parent_id: null, artifact_id: null, source: null },
  created_at: `2026-01-01T00:00:0${id}Z`,
  ...more,
});
const usage = { requests: 1, input_tokens: 10, output_tokens: 5, cached_tokens: 0, total_tokens: 15 };
const run = (more: Partial<Run> = {}): Run => ({
  ...{ run_id: "r", state: "finished", task: "t", turns: 1, calls: 1, text: "a", reason: "", usage, seconds: 1, at: "2026-01-01T00:00:09Z" },
  ...{ started_at: "2026-01-01T00:00:00Z", strategy: "loop", model: null, conversation_id: "", questions: [], approvals: [], plan: null, history: [], messages: [] },
  ...more,
});

test("characters that reverse or hide text are made visible", () => {
  expect(visible("a\u202egpj.exe\u200b\u0007")).toBe("a\\u202egpj.exe\\u200b\\u0007");
  expect(visible("日本\n\tعربي")).toBe("日本\n\tعربي");
});

test("only web and mail addresses are links", () => {
  expect(safeLink("https://example.com")).toBe("https://example.com");
  for (const bad of ["javascript:alert(1)", " JavaScript:x", "data:text/html,x", "vbscript:x", "/local", undefined]) expect(safeLink(bad)).toBeUndefined();
});

test("long texts are cut between characters", () => {
  expect(shorten("a😀b", 2)).toBe("a");
  expect(oneLine("a\n  b".padEnd(1000, "x"), 5)).toHaveLength(6);
  expect(asText({ a: 1 })).toBe('{\n  "a": 1\n}');
});

test("events are read from blocks", () => {
  expect(parseEvent('event: text\ndata: {"text": "a"}')).toEqual({ name: "text", data: { text: "a" } });
  expect(parseEvent(": keep-alive")).toBeNull();
});

test("a call that has asked for an approval has not failed", () => {
  const asked = { status: "cancelled", error_type: "approval_required", error: "A person must approve it." } as const;
  const rows = makeRows(run(), [call("1", { ...asked, approval_state: "used" }), call("2"), call("3", { ...asked, approval_state: "pending" })]);
  expect(findFailures(rows)).toEqual([]);
  expect(rows.map((row) => [row.errorType, row.isFailure, wasExecuted(row)])).toEqual([
    ["approval_used", false, false],
    [null, false, true],
    ["approval_pending", false, false],
  ]);
});

test("a call that is made with other arguments is shown with these", () => {
  let turn: LiveTurn = { key: 1, question: "q", runId: "", items: [], text: "", plan: null, results: [], answer: null, error: "", isRunning: true };
  const calls = [19.9, 5].map((amount) => ({ name: "call", data: { id: "1", name: "refund", arguments: { amount } } }));
  for (const event of calls) turn = applyEvent(turn, event);
  expect(turn.items.map((item) => item.kind === "call" && item.arguments)).toEqual([{ amount: 5 }]);
});

test("a turn collects its text, its calls and its answer", () => {
  let turn: LiveTurn = { key: 1, question: "q", runId: "", items: [], text: "", plan: null, results: [], answer: null, error: "", isRunning: true };
  const events: [string, object][] = [
    ["strategy", { run_id: "r" }],
    ["text", { text: "I look " }],
    ["text", { text: "it up." }],
    ["call", { id: "1", name: "search", arguments: { q: "x" } }],
    ["call_ended", { id: "1", tool_id: "search", is_success: true, text: "found", arguments: {}, seconds: 1 }],
    ["text", { text: "Done" }],
    ["answer", { answer: "Done.", run_id: "r", plan: null, steps: [] }],
  ];
  for (const [name, data] of events) turn = applyEvent(turn, { name, data: data as never });
  expect(turn.items.map((item) => (item.kind === "text" ? item.text : item.step?.text))).toEqual(["I look it up.", "found"]);
  expect([turn.runId, turn.answer?.answer, turn.text, turn.isRunning]).toEqual(["r", "Done.", "", false]);
});

test("repeated failures are one row, and what was executed is the first failure", () => {
  const failed = { status: "failed", error: "no", error_type: "known_failure" } as const;
  const calls = [call("1"), call("2", failed), call("3", failed), call("4", { status: "failed", error: "broken", error_type: "execution_error" })];
  const rows = makeRows(run(), calls);
  expect(foldRows(rows).map((row) => row.count)).toEqual([1, 2, 1]);
  expect(findFailures(rows).map((failure) => [failure.errorType, failure.count])).toEqual([
    ["execution_error", 1],
    ["known_failure", 2],
  ]);
});

test("two runs are aligned by their tools", () => {
  const left = makeRows(run(), [call("1", { tool_name: "a" }), call("2", { tool_name: "b" }), call("3", { tool_name: "c" })]);
  const right = makeRows(run(), [call("1", { tool_name: "a" }), call("2", { tool_name: "c" }), call("3", { tool_name: "d" })]);
  expect(alignRows(left, right).map(({ left, right }) => [left?.name, right?.name])).toEqual([["a", "a"], ["b", undefined], ["c", "c"], [undefined, "d"]]);
});

test("a run is exported with its calls and observations", () => {
  const messages = [
    { role: "user", content: "q" },
    { role: "assistant", content: null, tool_calls: [{ id: "1", function: { name: "search", arguments: '{"q": 1}' } }] },
    { role: "tool", content: "found", tool_call_id: "1" },
    { role: "assistant", content: "a" },
  ];
  const { steps } = toAtif(run({ messages, history: [{ kind: "turn", at: "2026-01-01T00:00:01Z", usage, message: messages[1]! }] }), "1.0") as { steps: object[] };
  expect(steps).toHaveLength(3);
  expect(steps[1]).toMatchObject({ source: "agent", tool_calls: [{ function_name: "search", arguments: { q: 1 } }], observation: { results: [{ content: "found" }] }, metrics: { prompt_tokens: 10 } });
});

test("schemas with references, nullable types, variants and defaults become fields", () => {
  const root = { $defs: { Point: { type: "object", properties: { x: { type: "number", default: 1 } }, required: ["x"] } } };
  expect(fieldOf(resolve({ $ref: "#/$defs/Point" }, root).schema).kind).toBe("object");
  expect(resolve({ anyOf: [{ $ref: "#/$defs/Point" }, { type: "null" }] }, root)).toMatchObject({ isNullable: true, schema: { type: "object" } });
  expect(resolve({ type: ["integer", "null"] }, root)).toMatchObject({ isNullable: true, schema: { type: "integer" } });
  expect(fieldOf({ anyOf: [{ type: "string" }, { type: "integer" }] }).kind).toBe("variants");
  expect(fieldOf({ enum: ["a", 1] })).toEqual({ kind: "choice", options: ["a", 1] });
  expect(initialValue({ type: "object", properties: { p: { $ref: "#/$defs/Point" }, tags: { type: "array", items: {} }, o: { type: "string" } }, required: ["p", "tags"] }, root, true)).toEqual({ p: { x: 1 }, tags: [] });
  const endless = { $defs: { Node: { type: "object", properties: { next: { $ref: "#/$defs/Node" } }, required: ["next"] } } };
  expect(initialValue({ $ref: "#/$defs/Node" }, endless, true)).toBeDefined();
});

test("the variant of a value is found by its type", () => {
  const root = { $defs: { point: { type: "object", properties: { x: { type: "number" } }, required: ["x"] } } };
  const variants: JsonObject[] = [{ type: "string" }, { type: "integer" }, { $ref: "#/$defs/point" }, { type: "array", items: {} }];
  const find = (value: Json) => variants.findIndex((each) => fits(each, root, value));
  expect(["a", 5, { x: 1 }, [1], true].map(find)).toEqual([0, 1, 2, 3, -1]);
});

test("a line is interrupted where there are no values", () => {
  expect(linePath([1, 2, null, 4], 4)).toBe("M0.00,74.50L33.33,51.00M100.00,4.00h0.6");
  expect(linePath([], 0)).toBe("");
});

test("costs and the tokens of schemas are counted for every request", () => {
  const turn = (more: object) => ({ kind: "turn" as const, at: "2026-01-01T00:00:01Z", usage, message: { role: "assistant", content: "a" }, ...more });
  const called = { role: "assistant", content: null, tool_calls: [{ id: "1", function: { name: "search", arguments: "{}" } }] };
  const history = [turn({ tools: { search: 100, fetch: 30 }, cost: 0.25, message: called }), turn({ cost: 0.5 }), turn({ tools: { fetch: 30 } })];
  expect(findSchemaCosts(run({ history }))).toEqual([
    { name: "search", tokens: 100, requests: 2, calls: 1 },
    { name: "fetch", tokens: 30, requests: 3, calls: 0 },
  ]);
  expect(costOf(run({ history }))).toBe(0.75);
  expect(costOf(run())).toBeNull();
  expect([formatCost(0.75, "USD"), formatCost(12, "USD"), formatCost(0.000123, "USD")]).toEqual(["0.75 USD", "12.00 USD", "0.00012 USD"]);
});

test("a number has the right form of its word", () => {
  expect([t("loadedCalls", { count: 1 }), t("loadedCalls", { count: "1,200" })]).toEqual(["1 call", "1,200 calls"]);
});

test("every text has a translation, with the same gaps", () => {
  const gaps = (text: string) => [...text.matchAll(/\{(\w+)/g)].map((match) => match[1]).sort();
  for (const [key, text] of Object.entries(english)) expect(gaps(chinese[key as keyof typeof english]), key).toEqual(gaps(text));
});
