/** The HTTP API, as far as the page uses it (docs/server.md). */

export type Permission = "read" | "call" | "approve" | "administer";
export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type JsonObject = { [name: string]: Json };

export interface Me {
  name: string;
  permissions: Permission[];
  token: { name: string; roles: string[]; tenant: string } | null;
}

export interface Usage {
  requests: number;
  input_tokens: number;
  output_tokens: number;
  cached_tokens: number;
  total_tokens: number;
}

export type ApprovalState = "pending" | "approved" | "refused" | "used" | "expired";

export interface Approval {
  approval_id: string;
  call_id: string;
  tool_id: string;
  action: string | null;
  arguments: JsonObject;
  reason: string;
  principal: string;
  tenant: string;
  run_id: string;
  created_at: number;
  expires_at: number;
  state: ApprovalState;
  decided_at: number | null;
  decided_by: string;
  decision_reason: string;
  origins: Record<string, string>;
  edited_arguments: JsonObject | null;
  tool?: {
    description: string;
    parameters: JsonObject;
    effect: Effect;
    source: string;
    changes: string;
    secrets: string[];
    is_same_version: boolean;
  } | null;
}

export type Effect = "read_only" | "changing" | "destructive";

export interface Question {
  call_id: string;
  text: string;
  options: string[];
}

export type RunState = "running" | "waiting" | "finished" | "stopped" | "interrupted";

export interface RunSummary {
  run_id: string;
  state: RunState;
  task: string;
  turns: number;
  calls: number;
  text: string;
  reason: string;
  usage: Usage;
  seconds: number;
  at: string;
}

export interface AgentStep {
  id: string;
  tool_id: string;
  action: string | null;
  arguments: JsonObject;
  text: string;
  is_success: boolean;
  error_type: string | null;
  seconds: number;
  record_id: string;
  cost?: number | null;
}

export interface PlanStep {
  id: string | number;
  description: string;
  tool_type: string;
  parameters: JsonObject;
  dependencies: (string | number)[];
}

export interface Plan {
  steps: PlanStep[];
  problems: string[];
}

export interface StepResult {
  step_id: string | number;
  description: string;
  tool_type: string;
  success: boolean;
  result: string;
  error: string | null;
  error_type: string | null;
  skipped: boolean;
  seconds: number;
  attempts: { level: string; tool: string; success: boolean; error: string | null; call_id: string }[];
}

export interface Message {
  role: string;
  content: string | null | Json[];
  tool_calls?: { id: string; function: { name: string; arguments: string } }[];
  tool_call_id?: string;
}

export type HistoryEntry =
  | { kind: "turn"; at: string; usage: Usage; message: Message; cost?: number | null; model?: string | null; tools?: { [name: string]: number } | null }
  | { kind: "call"; at: string; step: AgentStep }
  | { kind: "step"; at: string; step: StepResult }
  | { kind: "wait" | "end"; at: string; state: RunState | null; reason: string | null };

export interface Run extends RunSummary {
  started_at: string;
  strategy: string;
  model: string | null;
  conversation_id: string;
  questions: Question[];
  approvals: Approval[];
  plan: Plan | null;
  history: HistoryEntry[];
  messages: Message[];
}

export type CallStatus = "running" | "success" | "failed" | "cancelled" | "interrupted";

export interface CallRecord {
  record_id: string;
  tool_name: string;
  action: string | null;
  status: CallStatus;
  error: string | null;
  error_type: string | null;
  /** What became of the approval that the call has asked for. */
  approval_state: ApprovalState | null;
  execution_time: number;
  wait_time: number;
  attempts: number;
  caller_id: string | null;
  caller_type: string;
  conversation_id: string | null;
  principal: string | null;
  parent_id: string | null;
  artifact_id: string | null;
  source: string | null;
  created_at: string;
  params?: JsonObject;
  result?: Json;
  metadata?: JsonObject;
}

export interface Answer {
  question: string;
  answer: string;
  state: RunState;
  strategy: string;
  run_id: string;
  conversation_id: string;
  plan: Plan | null;
  steps: StepResult[];
  usage: Usage;
  cost: number | null;
  timings: { [name: string]: number };
  cached: boolean;
  questions: Question[];
  approvals: Approval[];
  errors: string[];
}

/** Which model answers questions, and which others may be chosen. */
export interface AgentSettings {
  model: string | null;
  models: string[];
  currency: string;
}

export interface Turn {
  question: string;
  answer: string;
  state: string;
  run_id: string;
  at: number;
}

export interface Conversation {
  conversation_id: string;
  question: string;
  at: number;
  state: string;
}

export interface ToolAction {
  name: string;
  model_name: string;
  description: string;
  effect: Effect;
  needs_approval: boolean;
  parameters?: JsonObject;
  /** The names of parameters that hold secrets. */
  secrets?: string[];
}

export interface Tool {
  tool_id: string;
  name: string;
  description: string;
  tool_type: string;
  source: string;
  tags: string[];
  needs: string | null;
  actions: ToolAction[];
}

export interface McpServer {
  tool_id: string;
  state: "running" | "starting" | "failed" | "stopped" | "disabled";
  error: string;
  is_listed: boolean;
  protocol_version: string | null;
  actions: number;
  /** An empty action means the instructions of the server. */
  changes: { action: string; diff: string }[];
  /** For administrators: */
  log?: string[];
  location?: string;
  is_pinned?: boolean;
  pins?: { action: string; text: string }[];
  removed?: string[];
}

export interface ToolStatistics {
  calls: number;
  failures: number;
  mean: number | null;
  p50: number | null;
  p95: number | null;
  p99: number | null;
  last_called: string;
  last_error: string | null;
}

export interface Interval {
  start: number;
  calls: number;
  failures: number;
  rejections: number;
  wait_time: number;
  p50: number | null;
  p95: number | null;
  p99: number | null;
}

export interface BucketLoad {
  current: number;
  queue: number;
  rejected: number;
}

export interface Limits {
  current_concurrent: number;
  queue_length: number;
  total_rejected: number;
  buckets?: { [name: string]: { current: number; limit: number | null; queue: number } };
  samples?: { at: number; buckets: { [name: string]: BucketLoad } }[];
}

export type Verdict = "allow" | "ask" | "deny";

export interface PolicyRule {
  verdict: Verdict;
  tool: string;
  tag: string;
  effect: string;
  principal: string;
  arguments: JsonObject;
  reason: string;
  text: string;
  is_built_in: boolean;
  calls: number;
  last_called: number | null;
}

export interface PolicyDescription {
  kind: string;
  default: Verdict | null;
  days: number;
  rules: PolicyRule[];
  warnings: string[];
}

export interface PredictedDecision {
  verdict: Verdict;
  reason: string;
  rule: string;
  principal: string;
  is_listed: boolean;
  problems: string[];
  needs: string | null;
}

export interface AccessToken {
  token_id: string;
  name: string;
  roles: string[];
  tools: string[] | null;
  max_effect: Effect;
  tenant: string;
  calls_per_minute: number | null;
  max_concurrent: number | null;
  created_at: number;
  expires_at: number | null;
  revoked_at: number | null;
}

export interface AuditEntry {
  at: number;
  by: string;
  tenant: string;
  action: string;
  subject: string;
  details: JsonObject;
}

export interface CallResult {
  is_success: boolean;
  tool_name: string;
  output: Json;
  error: string | null;
  error_type: string | null;
  execution_time: number;
  call_id?: string;
  metadata?: { approval_id?: string };
}

/** An error of the API: an RFC 9457 problem, or a server that cannot be reached (status 0). */
export class ApiError extends Error {
  readonly status: number;
  readonly content: JsonObject;
  constructor(status: number, message: string, content: JsonObject = {}) {
    super(message);
    this.status = status;
    this.content = content;
  }
}

export async function request<T>(path: string, options: RequestInit & { json?: unknown } = {}): Promise<T> {
  return (await (await send(path, options)).json()) as T;
}

async function send(path: string, { json, headers, ...options }: RequestInit & { json?: unknown }): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, {
      ...options,
      credentials: "same-origin",
      headers: json === undefined ? headers : { "Content-Type": "application/json", ...headers },
      body: json === undefined ? undefined : JSON.stringify(json),
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable");
  }
  if (response.ok) return response;
  const content = (await response.json().catch(() => ({}))) as JsonObject;
  throw new ApiError(response.status, String(content.detail ?? response.statusText), content);
}

export const get = <T>(path: string, query: Record<string, string | number | boolean | undefined> = {}): Promise<T> => {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return request<T>(text ? `${path}?${text}` : path);
};

export const patch = <T>(path: string, json: unknown): Promise<T> => request<T>(path, { method: "PATCH", json });
export const remove = <T>(path: string): Promise<T> => request<T>(path, { method: "DELETE" });
export const post = <T>(path: string, json: unknown): Promise<T> => request<T>(path, { method: "POST", json });

export interface ServerEvent {
  name: string;
  data: JsonObject;
}

/** The events of a streamed response to a POST request. */
export async function* stream(path: string, json: unknown, signal: AbortSignal): AsyncGenerator<ServerEvent> {
  const response = await send(path, { method: "POST", json, signal });
  if (response.body === null) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop() ?? "";
    for (const block of blocks) {
      const event = parseEvent(block);
      if (event !== null) yield event;
    }
  }
}

export function parseEvent(block: string): ServerEvent | null {
  let name = "message";
  const data: string[] = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    else if (line.startsWith("data: ")) data.push(line.slice(6));
  }
  return data.length === 0 ? null : { name, data: JSON.parse(data.join("\n")) as JsonObject };
}

export const segment = (text: string): string => encodeURIComponent(text);

/** All calls of a run, the oldest first, without arguments and results. */
export async function loadCalls(runId: string): Promise<CallRecord[]> {
  const calls: CallRecord[] = [];
  for (;;) {
    const page = await get<{ calls: CallRecord[] }>("/v1/calls", {
      conversation_id: runId,
      brief: true,
      limit: 1000,
      after: calls.at(-1)?.record_id,
    });
    calls.push(...page.calls);
    if (page.calls.length < 1000) return calls.reverse();
  }
}
