/** Texts from tools, models and servers, made safe to look at. They are only ever inserted as text. */

import type { CallRecord } from "./api";

const INVISIBLE = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

/** The text with characters that change the order of others, or that nobody sees, as escapes. */
export function visible(text: string): string {
  return text.replace(INVISIBLE, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

export const MAX_SHOWN = 20_000;

/** The part of a long text that is shown first. */
export function shorten(text: string, length: number = MAX_SHOWN): string {
  if (text.length <= length) return text;
  const last = text.charCodeAt(length - 1);
  return text.slice(0, last >= 0xd800 && last <= 0xdbff ? length - 1 : length);
}

export function oneLine(text: string, length = 160): string {
  const line = visible(text.slice(0, 4 * length).replace(/\s+/g, " ").trim());
  return line.length > length || text.length > 4 * length ? `${line.slice(0, length)}…` : line;
}

/** A value as people read it: a text as it is, everything else as JSON. */
export function asText(value: unknown): string {
  if (typeof value === "string") return value;
  return JSON.stringify(value, null, 2) ?? "";
}

export const callName = (tool: string, action: string | null): string => (action === null || action === "" || action === tool ? tool : `${tool} · ${action}`);

const SAFE_LINK = /^(https?:|mailto:)/i;

/** Where a link of an answer may lead; undefined for `javascript:`, `data:` and everything else. */
export function safeLink(target: string | undefined): string | undefined {
  return target !== undefined && SAFE_LINK.test(target.trim()) ? target.trim() : undefined;
}

export function formatSeconds(seconds: number): string {
  if (seconds < 0.0005) return "0 ms";
  if (seconds < 1) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function formatBytes(size: number): string {
  if (size < 1000) return `${size} B`;
  return size < 1e6 ? `${(size / 1e3).toFixed(1)} kB` : `${(size / 1e6).toFixed(1)} MB`;
}

/** An amount of money, with as many digits as matter. */
export function formatCost(amount: number, currency: string): string {
  const digits = amount === 0 || amount >= 1 ? 2 : Math.min(8, 1 - Math.floor(Math.log10(amount)));
  return `${amount.toFixed(digits)} ${currency}`;
}

/** Saves a text as a file of the user. */
export function download(name: string, text: string, type = "application/json"): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** The kind of error of a call; of one that has asked for an approval, what became of it: `approval_used`. */
export const errorTypeOf = (call: CallRecord): string | null =>
  call.error_type === "approval_required" && call.approval_state !== null ? `approval_${call.approval_state}` : call.error_type;

/** Whether a kind of error says that a call has asked for an approval: it did not fail, and was not made. */
export const isAsking = (type: string | null): boolean => type !== null && type.startsWith("approval_");
