/** The parts that all views are made of. */

import { Component, lazy, Suspense, useEffect, useRef, useState, type ButtonHTMLAttributes, type ReactNode } from "react";
import { ApiError, type CallRecord, type Effect, type Verdict } from "./api";
import { formatTime, hasText, relativeTime, t, type TextKey } from "./language";
import { asText, download, errorTypeOf, formatBytes, isAsking, MAX_SHOWN, shorten, visible } from "./text";

const PATHS = {
  ask: "M4 5h16v11H9l-5 4z",
  runs: "M4 6h9M8 12h12M4 18h7",
  approvals: "M12 3l7 3v6c0 4.5-3 7.5-7 9-4-1.500-7-4.500-7-9V6zM9 12l2 2 4-4",
  calls: "M4 17l5-6 4 4 7-9",
  tools: "M14.500 6.500a4 4 0 0 0 5 5L11 20l-4-4zM7 16l-3 3",
  failures: "M12 4l9 16H3zM12 10v4M12 17v.5",
  access: "M7 11V8a5 5 0 0 1 10 0v3M5 11h14v9H5z",
  back: "M15 5l-7 7 7 7",
  close: "M6 6l12 12M18 6L6 18",
  plus: "M12 5v14M5 12h14",
  send: "M5 12h13M12 5l7 7-7 7",
  stop: "M7 7h10v10H7z",
  keyboard: "M3 7h18v10H3zM7 11h.5M11 11h.5M15 11h.5M8 14h8",
  check: "M5 13l4 4L19 7",
  down: "M6 9l6 6 6-6",
} as const;

export function Icon({ name }: { name: keyof typeof PATHS }) {
  return (
    <svg className="icon" viewBox="0 0 24 24" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

interface ButtonProps extends ButtonHTMLAttributes<HTMLButtonElement> {
  kind?: "primary" | "danger" | "plain" | "quiet";
  shortcut?: string;
}

export function Button({ kind = "plain", shortcut, children, className = "", ...rest }: ButtonProps) {
  return (
    <button type="button" className={`button ${kind} ${className}`} {...rest}>
      {children}
      {shortcut !== undefined && <kbd aria-hidden="true">{shortcut}</kbd>}
    </button>
  );
}

const TONES: Record<string, string> = {
  running: "info",
  waiting: "warn",
  pending: "warn",
  finished: "good",
  success: "good",
  approved: "good",
  used: "good",
  stopped: "bad",
  failed: "bad",
  refused: "bad",
  interrupted: "bad",
  cancelled: "muted",
  expired: "muted",
  destructive: "bad",
  changing: "warn",
  read_only: "muted",
  allow: "good",
  ask: "warn",
  deny: "bad",
  starting: "info",
  disabled: "muted",
};

export function Badge({ tone = "muted", children }: { tone?: string; children: ReactNode }) {
  return <span className={`badge ${tone}`}>{children}</span>;
}

export function StateBadge({ state }: { state: string }) {
  const key = (state === "failed" ? "failedState" : state) as TextKey;
  return (
    <Badge tone={TONES[state]}>
      <span className="dot" aria-hidden="true" />
      {t(key)}
    </Badge>
  );
}

export const VerdictBadge = ({ verdict }: { verdict: Verdict }) => <Badge tone={TONES[verdict]}>{t(verdict)}</Badge>;

/** Errors by which a call was not made; a person or a limit stood before it. */
const NOT_MADE = new Set(["known_failure", "rejected", "permission_denied", "validation_error", "cancelled"]);

/** The kind of an error in words, with its name in the API on hover. */
export function ErrorBadge({ type }: { type: string }) {
  const key = `error_${type}`;
  return (
    <span className={`badge ${NOT_MADE.has(type) || isAsking(type) ? "warn" : "bad"}`} title={visible(type)}>
      {errorName(type, key)}
    </span>
  );
}

export const errorName = (type: string, key = `error_${type}`): string => (hasText(key) ? t(key) : visible(type));

/** The state of a call: one that has asked for an approval was not cancelled. */
export function CallBadge({ call }: { call: CallRecord }) {
  const type = errorTypeOf(call);
  return type !== null && (isAsking(type) || type === "known_failure" || type === "rejected") ? <ErrorBadge type={type} /> : <StateBadge state={call.status} />;
}

interface TabsProps<Name extends TextKey> {
  names: readonly Name[];
  active: Name;
  onSelect: (name: Name) => void;
}

export function Tabs<Name extends TextKey>({ names, active, onSelect }: TabsProps<Name>) {
  return (
    <div className="tabs" role="group">
      {names.map((name) => (
        <button key={name} aria-pressed={active === name} onClick={() => onSelect(name)}>
          {t(name)}
        </button>
      ))}
    </div>
  );
}

export const EffectBadge = ({ effect }: { effect: Effect }) => <Badge tone={TONES[effect]}>{t(effect)}</Badge>;

/** A time relative to now, which stays current; the exact one on hover. */
export function Time({ at }: { at: number | string }) {
  const [, update] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => update((count) => count + 1), 15_000);
    return () => clearInterval(timer);
  }, []);
  const milliseconds = typeof at === "number" ? at * 1000 : Date.parse(at);
  return (
    <time dateTime={new Date(milliseconds).toISOString()} title={formatTime(milliseconds)}>
      {relativeTime(milliseconds)}
    </time>
  );
}

export function Empty({ title, children, icon }: { title: string; children?: ReactNode; icon?: keyof typeof PATHS }) {
  return (
    <div className="empty">
      {icon !== undefined && <Icon name={icon} />}
      <h2>{title}</h2>
      {children !== undefined && <p>{children}</p>}
    </div>
  );
}

export function Loading() {
  return (
    <div className="empty" role="status">
      <span className="spinner" aria-hidden="true" />
      <span className="hidden-text">{t("loading")}</span>
    </div>
  );
}

export function Failed({ error, retry }: { error: unknown; retry?: () => void }) {
  return (
    <div className="notice bad" role="alert">
      <strong>{t("failed")}</strong> <span>{errorText(error)}</span>
      {retry !== undefined && <Button onClick={retry}>{t("retry")}</Button>}
    </div>
  );
}

export function errorText(error: unknown): string {
  if (error instanceof ApiError && error.status === 0) return t("unreachable");
  return visible(error instanceof Error ? error.message : String(error));
}

/** Text from elsewhere: what is invisible in it is shown, and what is long is cut. */
export function LongText({ text, name = "text.txt", plain = false }: { text: string; name?: string; plain?: boolean }) {
  const [length, setLength] = useState(MAX_SHOWN);
  const part = shorten(text, length);
  return (
    <div className="long-text">
      <pre className={plain ? "plain" : ""} tabIndex={0}>
        {visible(part)}
      </pre>
      {part.length < text.length && (
        <div className="cut">
          <span>{t("truncated", { shown: formatBytes(part.length), total: formatBytes(text.length) })}</span>
          <Button onClick={() => setLength(length * 5)}>{t("showMore")}</Button>
          <Button onClick={() => download(name, text, "text/plain")}>{t("download")}</Button>
        </div>
      )}
    </div>
  );
}

/** The members of an object, one under the other. */
export function Fields({ value, empty }: { value: { [name: string]: unknown }; empty: string }) {
  const entries = Object.entries(value);
  if (entries.length === 0) return <p className="faint">{empty}</p>;
  return (
    <dl className="fields">
      {entries.map(([name, member]) => (
        <div key={name}>
          <dt>{visible(name)}</dt>
          <dd>
            <LongText text={asText(member)} name={`${name}.txt`} />
          </dd>
        </div>
      ))}
    </dl>
  );
}

/** A diff as `difflib` writes it. */
export function Diff({ text }: { text: string }) {
  const tone = (line: string) => (/^[+](?![+]{2})/.test(line) ? "added" : /^-(?!--)/.test(line) ? "removed" : "");
  return (
    <pre className="diff" tabIndex={0}>
      {text.split("\n").map((line, index) => (
        <span key={index} className={tone(line)}>
          {visible(line)}
          {"\n"}
        </span>
      ))}
    </pre>
  );
}

const MarkdownText = lazy(() => import("./markdown"));

/** An answer of a model: Markdown, of which no HTML and no unsafe link is left. */
export function Markdown({ text }: { text: string }) {
  const [length, setLength] = useState(MAX_SHOWN);
  const part = shorten(text, length);
  return (
    <div className="markdown">
      <Suspense fallback={<p className="pre-line">{visible(part)}</p>}>
        <MarkdownText text={visible(part)} />
      </Suspense>
      {part.length < text.length && (
        <div className="cut">
          <Button onClick={() => setLength(length * 2)}>{t("showMore")}</Button>
          <Button onClick={() => download("answer.md", text, "text/markdown")}>{t("download")}</Button>
        </div>
      )}
    </div>
  );
}

export function Dialog({ title, onClose, children }: { title: string; onClose: () => void; children: ReactNode }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  return (
    <dialog ref={dialog} onClose={onClose} aria-label={title} onClick={(event) => event.target === dialog.current && onClose()}>
      <header>
        <h2>{title}</h2>
        <Button kind="quiet" aria-label={t("close")} onClick={onClose}>
          <Icon name="close" />
        </Button>
      </header>
      {children}
    </dialog>
  );
}

/** Asks before something happens that cannot be undone. */
export function Confirm({ text, action, onCancel, onConfirm, children }: { text: string; action: string; onCancel: () => void; onConfirm: () => void; children?: ReactNode }) {
  return (
    <Dialog title={text} onClose={onCancel}>
      {children}
      <div className="row end">
        <Button onClick={onCancel}>{t("cancel")}</Button>
        <Button kind="danger" onClick={onConfirm}>
          {action}
        </Button>
      </div>
    </Dialog>
  );
}

// Short messages at the bottom of the page

type Toast = { id: number; text: string; tone: string };
let showToast: (text: string, tone: string) => void = () => undefined;
export const toast = (text: string, tone = "good"): void => showToast(text, tone);

export function Toasts() {
  const [toasts, setToasts] = useState<Toast[]>([]);
  useEffect(() => {
    showToast = (text, tone) => {
      const id = Math.random();
      setToasts((all) => [...all.slice(-2), { id, text, tone }]);
      setTimeout(() => setToasts((all) => all.filter((each) => each.id !== id)), 6000);
    };
  }, []);
  return (
    <div className="toasts" role="status" aria-live="polite">
      {toasts.map((each) => (
        <div key={each.id} className={`toast ${each.tone}`}>
          {each.text}
        </div>
      ))}
    </div>
  );
}

/** One view that fails must not take the page with it. */
export class Boundary extends Component<{ children: ReactNode; name: string }, { error: unknown }> {
  override state = { error: null as unknown };
  static getDerivedStateFromError(error: unknown) {
    return { error };
  }
  override componentDidUpdate(before: { name: string }) {
    if (before.name !== this.props.name && this.state.error !== null) this.setState({ error: null });
  }
  override render() {
    if (this.state.error === null) return this.props.children;
    return (
      <div className="notice bad" role="alert">
        {t("crashed")} {errorText(this.state.error)}
      </div>
    );
  }
}
