/** The questions that this page has asked. They go on while another view is shown. */

import { useSyncExternalStore } from "react";
import { segment, stream, type AgentStep, type Answer, type JsonObject, type Plan, type ServerEvent, type StepResult } from "./api";
import { queries } from "./live";
import { errorText } from "./ui";

export type Item = { kind: "text"; text: string } | { kind: "call"; id: string; name: string; arguments: JsonObject; step: AgentStep | null };

export interface LiveTurn {
  key: number;
  question: string;
  runId: string;
  items: Item[];
  /** What the model writes now. */
  text: string;
  plan: Plan | null;
  results: StepResult[];
  answer: Answer | null;
  error: string;
  isRunning: boolean;
}

const NO_TURNS: LiveTurn[] = [];
const conversations = new Map<string, LiveTurn[]>();
const controllers = new Map<number, AbortController>();
const listeners = new Set<() => void>();
/** Runs that were watched on this page and are shown as the store has them now: their calls stay visible. */
const watchedRuns = new Set<string>();
let nextKey = 1;

export function useLiveTurns(conversationId: string): LiveTurn[] {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => conversations.get(conversationId) ?? NO_TURNS,
  );
}

function update(conversationId: string, key: number, change: (turn: LiveTurn) => LiveTurn): void {
  const turns = conversations.get(conversationId) ?? NO_TURNS;
  conversations.set(conversationId, turns.map((turn) => (turn.key === key ? change(turn) : turn)));
  for (const listener of listeners) listener();
}

/** How a question is answered, if not as usual. */
export interface AskOptions {
  strategy?: string;
  model?: string;
}

/** Ask a question; the turn shows what happens. */
export function ask(conversationId: string, question: string, options: AskOptions = {}): void {
  const turn = addTurn(conversationId, question, "");
  void follow(conversationId, turn.key, "/v1/ask", { question, conversation_id: conversationId, ...options, stream: true });
}

function addTurn(conversationId: string, question: string, runId: string): LiveTurn {
  const turn: LiveTurn = { key: nextKey++, question, runId, items: [], text: "", plan: null, results: [], answer: null, error: "", isRunning: true };
  conversations.set(conversationId, [...(conversations.get(conversationId) ?? NO_TURNS), turn]);
  return turn;
}

/** Continue a run that this page has not started, or has forgotten. */
export function resumeStored(conversationId: string, question: string, runId: string, answers?: Record<string, string>): void {
  resume(conversationId, addTurn(conversationId, question, runId), answers);
}

/** Continue a run that waited for a person. */
export function resume(conversationId: string, turn: LiveTurn, answers?: Record<string, string>): void {
  update(conversationId, turn.key, (before) => ({ ...before, isRunning: true, answer: null, error: "" }));
  void follow(conversationId, turn.key, `/v1/runs/${segment(turn.runId)}/resume`, { answer: answers, stream: true });
}

/** Show a turn as the store has it, because the page has not seen all that happened. */
function forget(conversationId: string, key: number): void {
  const turns = conversations.get(conversationId) ?? NO_TURNS;
  for (const turn of turns) if (turn.key === key) watchedRuns.add(turn.runId);
  conversations.set(conversationId, turns.filter((turn) => turn.key !== key));
  for (const listener of listeners) listener();
}

export const wasWatched = (runId: string): boolean => watchedRuns.has(runId);

export function stop(turn: LiveTurn): void {
  controllers.get(turn.key)?.abort();
}

async function follow(conversationId: string, key: number, path: string, body: JsonBody): Promise<void> {
  const controller = new AbortController();
  controllers.set(key, controller);
  for (const listener of listeners) listener();
  try {
    for await (const event of stream(path, body, controller.signal)) {
      if (event.name === "error" && event.data.status === 409 && path.endsWith("/resume")) return forget(conversationId, key); // on another server
      update(conversationId, key, (turn) => applyEvent(turn, event));
    }
    if (conversations.get(conversationId)?.some((turn) => turn.key === key && hasMissedEvents(turn))) return forget(conversationId, key);
    update(conversationId, key, (turn) => (turn.answer === null && turn.error === "" ? { ...turn, error: "unreachable" } : turn));
  } catch (error) {
    const isStopped = error instanceof DOMException && error.name === "AbortError";
    update(conversationId, key, (turn) => ({ ...turn, error: isStopped ? "stopped" : errorText(error) }));
  } finally {
    controllers.delete(key);
    update(conversationId, key, (turn) => ({ ...turn, isRunning: false }));
    void queries.invalidateQueries({ queryKey: ["runs"] });
  }
}

/** Whether a run has ended, and not all of its calls: the server had continued it before the page asked. */
const hasMissedEvents = ({ answer, items }: LiveTurn): boolean =>
  answer !== null && answer.state !== "waiting" && items.some((item) => item.kind === "call" && item.step === null);

type JsonBody = Record<string, unknown>;

/** The turn after an event of its stream. */
export function applyEvent(turn: LiveTurn, { name, data }: ServerEvent): LiveTurn {
  switch (name) {
    case "strategy":
      return { ...turn, runId: String(data.run_id) };
    case "plan":
      return { ...turn, plan: data.plan as unknown as Plan };
    case "step":
      return { ...turn, results: [...turn.results, data as unknown as StepResult] };
    case "turn":
      return { ...turn, items: withText(turn), text: "" };
    case "text":
      return { ...turn, text: turn.text + String(data.text) };
    case "call": {
      // One that a person has approved with other arguments comes again.
      const others = withText(turn).filter((item) => item.kind !== "call" || item.id !== data.id);
      const call: Item = { kind: "call", id: String(data.id), name: String(data.name), arguments: (data.arguments ?? {}) as JsonObject, step: null };
      return { ...turn, items: [...others, call], text: "" };
    }
    case "call_ended":
      return { ...turn, items: endCall(turn.items, data as unknown as AgentStep) };
    case "answer": {
      const answer = data as unknown as Answer;
      return { ...turn, answer, text: "", runId: answer.run_id, plan: answer.plan ?? turn.plan, isRunning: false };
    }
    case "error":
      return { ...turn, error: String(data.detail) };
    default:
      return turn;
  }
}

const withText = (turn: LiveTurn): Item[] => (turn.text.trim() === "" ? turn.items : [...turn.items, { kind: "text", text: turn.text }]);

function endCall(items: Item[], step: AgentStep): Item[] {
  if (!items.some((item) => item.kind === "call" && item.id === step.id)) {
    return [...items, { kind: "call", id: step.id, name: step.tool_id, arguments: step.arguments, step }];
  }
  return items.map((item) => (item.kind === "call" && item.id === step.id ? { ...item, step } : item));
}
