/** Keyboard shortcuts: each view adds its own while it is shown; `?` lists them. */

import { useEffect, useRef } from "react";

export interface Shortcut {
  /** One key, or two after each other as in `g a`. */
  keys: string;
  text: string;
  run: () => void;
}

const groups: Shortcut[][] = [];
let first = "";
let firstAt = 0;

export const activeShortcuts = (): Shortcut[] => groups.flat();

export function useShortcuts(shortcuts: Shortcut[]): void {
  const latest = useRef(shortcuts);
  latest.current = shortcuts;
  useEffect(() => {
    const group = shortcuts.map((each, index) => ({
      ...each,
      get text() {
        return latest.current[index]?.text ?? each.text;
      },
      run: () => latest.current[index]?.run(),
    }));
    groups.push(group);
    return () => {
      groups.splice(groups.indexOf(group), 1);
    };
  }, [shortcuts.length]);
}

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}

export function handleKey(event: KeyboardEvent): void {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || document.querySelector("dialog[open]")) return;
  const pressed = event.key;
  const combined = Date.now() - firstAt < 1500 ? `${first} ${pressed}` : pressed;
  const candidates = activeShortcuts();
  const match = candidates.findLast((each) => each.keys === combined) ?? candidates.findLast((each) => each.keys === pressed);
  first = "";
  if (match !== undefined) {
    event.preventDefault();
    match.run();
  } else if (candidates.some((each) => each.keys.startsWith(`${pressed} `))) {
    [first, firstAt] = [pressed, Date.now()];
  }
}
