/** The texts of the page in English and Chinese. */

import { useSyncExternalStore } from "react";
import { chinese } from "./texts_chinese";
import { english } from "./texts_english";

export type Texts = Record<keyof typeof english, string>;
export type TextKey = keyof Texts;
export type Language = "en" | "zh";

const STORED = "ferrule.language";
let current: Language = initialLanguage();
const listeners = new Set<() => void>();

function initialLanguage(): Language {
  const stored = globalThis.localStorage?.getItem(STORED);
  if (stored === "en" || stored === "zh") return stored;
  return globalThis.navigator?.language?.toLowerCase().startsWith("zh") ? "zh" : "en";
}

export function setLanguage(language: Language): void {
  current = language;
  localStorage.setItem(STORED, language);
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  for (const listener of listeners) listener();
}

export function useLanguage(): Language {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => current,
  );
}

/** The text for a key in the current language. `{count|call|calls}` is a number with the right form of a word. */
export function t(key: TextKey, values: Record<string, string | number> = {}): string {
  const text: string = (current === "zh" ? chinese : english)[key];
  return text.replace(/\{(\w+)(?:\|([^|}]*)\|([^}]*))?\}/g, (whole, name: string, one?: string, many?: string) => {
    const value = String(values[name] ?? whole);
    return one === undefined ? value : `${value} ${value === "1" ? one : many}`;
  });
}

export const hasText = (key: string): key is TextKey => key in english;

const UNITS = { en: ["s", "min", "h", "d"], zh: [" 秒", " 分钟", " 小时", " 天"] } as const;

/** How long ago a time is, or how far away. */
export function relativeTime(milliseconds: number, now: number = Date.now()): string {
  const seconds = Math.round((milliseconds - now) / 1000);
  const size = Math.abs(seconds);
  if (size < 5) return t("now");
  const [amount, unit] = size < 60 ? [size, 0] : size < 3600 ? [size / 60, 1] : size < 86400 ? [size / 3600, 2] : [size / 86400, 3];
  const space = current === "en" ? " " : "";
  const time = `${Math.round(amount)}${space}${UNITS[current][unit as 0]}`;
  return t(seconds > 0 ? "inTime" : "ago", { time });
}

export const formatNumber = (value: number): string => value.toLocaleString(current === "zh" ? "zh-CN" : "en-US");
export const formatTime = (value: string | number): string =>
  new Date(value).toLocaleString(current === "zh" ? "zh-CN" : "en-GB", { dateStyle: "medium", timeStyle: "medium" });

/** When something begins: the time of day, and the date where it is not today's. */
export function formatClock(start: number, end: number): string {
  const options: Intl.DateTimeFormatOptions = end - start > 86_400_000 ? { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" } : { hour: "2-digit", minute: "2-digit" };
  return new Date(start).toLocaleString(current === "zh" ? "zh-CN" : "en-GB", options);
}
