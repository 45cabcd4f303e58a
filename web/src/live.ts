/** The one event stream of the page: the server says what has changed, and the page reads it again. */

import { QueryClient, useQuery, type UseQueryResult } from "@tanstack/react-query";
import { useEffect, useSyncExternalStore } from "react";
import { ApiError, get, type AgentSettings, type Approval, type Me } from "./api";

const RETRY_MILLISECONDS = 1500;

export const queries = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: Infinity,
      refetchOnWindowFocus: false,
      retry: (count, error) => !(error instanceof ApiError) || (error.status === 0 && count < 2),
    },
  },
});

type Connection = "connecting" | "open" | "lost";
let connection: Connection = "connecting";
const listeners = new Set<() => void>();

function setConnection(state: Connection): void {
  if (connection === state) return;
  connection = state;
  for (const listener of listeners) listener();
}

export function useConnection(): Connection {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => connection,
  );
}

/** Everything whose key starts with a part is read again. */
function refresh(parts: string[]): void {
  for (const part of parts) void queries.invalidateQueries({ queryKey: [part] });
}

/** Listens while the component is shown. After a lost connection everything may have changed. */
export function useLiveUpdates(): void {
  useEffect(() => {
    let source: EventSource | undefined;
    let timer: number | undefined;
    let wasLost = false;
    const open = () => {
      source = new EventSource("/v1/events?types=changed");
      source.onopen = () => {
        setConnection("open");
        if (wasLost) void queries.invalidateQueries();
        wasLost = false;
      };
      source.addEventListener("changed", (event) => {
        refresh((JSON.parse((event as MessageEvent<string>).data) as { parts: string[] }).parts);
      });
      source.onerror = () => {
        source?.close();
        wasLost = true;
        setConnection("lost");
        timer = window.setTimeout(open, RETRY_MILLISECONDS);
        void queries.invalidateQueries({ queryKey: ["me"] });
      };
    };
    open();
    return () => {
      source?.close();
      window.clearTimeout(timer);
      setConnection("connecting");
    };
  }, []);
}

const ME = { queryKey: ["me"], queryFn: () => get<Me>("/v1/me"), retry: false } as const;
const PENDING = {
  queryKey: ["approvals", "pending"],
  queryFn: async () => (await get<{ approvals: Approval[] }>("/v1/approvals", { limit: 200 })).approvals,
} as const;

/** Both are needed by every view: they are asked for at the same time, and not one after the other. */
export function startLoading(): void {
  void queries.prefetchQuery(ME);
  void queries.prefetchQuery({ ...PENDING, retry: false });
}

export const useMe = (): UseQueryResult<Me, Error> => useQuery(ME);
export const usePendingApprovals = (): UseQueryResult<Approval[], Error> => useQuery(PENDING);

export const useAgentSettings = (): UseQueryResult<AgentSettings, Error> =>
  useQuery({ queryKey: ["agent"], queryFn: () => get<AgentSettings>("/v1/agent") });
