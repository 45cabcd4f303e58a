/** The MCP server behind a tool: its state, what it changed, what was accepted of it, and its log. */

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get, post, segment, type McpServer } from "../api";
import { t } from "../language";
import { queries } from "../live";
import { visible } from "../text";
import { Badge, Button, Confirm, Diff, errorText, LongText, StateBadge, toast } from "../ui";

export const useServers = () =>
  useQuery({ queryKey: ["tools", "servers"], queryFn: async () => (await get<{ servers: McpServer[] }>("/v1/servers")).servers });

/** The name of a pinned part of a server: an action, or its instructions. */
const nameOf = (action: string) => (action === "" ? t("serverInstructions") : visible(action));

export function ServerPanel({ id, mayAdminister }: { id: string; mayAdminister: boolean }) {
  const server = useQuery({ queryKey: ["tools", "server", id], queryFn: () => get<McpServer>(`/v1/servers/${segment(id)}`) });
  const [toAccept, setToAccept] = useState<{ action: string; diff: string } | null>(null);
  if (server.data === undefined) return null;
  const { data } = server;
  const accept = async (change: { action: string; diff: string }) => {
    setToAccept(null);
    try {
      await post(`/v1/servers/${segment(id)}/accept`, change);
      toast(t("accepted", { name: nameOf(change.action) }));
    } catch (error) {
      toast(errorText(error), "bad");
    }
    void queries.invalidateQueries({ queryKey: ["tools"] });
  };
  return (
    <section className="card server" aria-label={t("mcpServer")}>
      <header className="row wrap">
        <h3>{t("mcpServer")}</h3>
        <StateBadge state={data.state} />
        {data.protocol_version !== null && <Badge>MCP {visible(data.protocol_version)}</Badge>}
        <Button kind="quiet" onClick={() => void server.refetch()}>
          {t("refresh")}
        </Button>
      </header>
      {data.location !== undefined && <p className="mono faint clip-lines">{visible(data.location)}</p>}
      {data.error !== "" && <p className="notice bad">{visible(data.error)}</p>}
      {data.changes.map((change) => (
        <div key={change.action}>
          <h3>{t("actionChanged", { name: nameOf(change.action) })}</h3>
          <Diff text={change.diff} />
          {mayAdminister && data.pins !== undefined && (
            <div className="decision row">
              <Button onClick={() => setToAccept(change)}>{t("acceptChange")}</Button>
              <span className="faint small">{t(change.action === "" ? "serverInstructionsHint" : "acceptHint")}</span>
            </div>
          )}
        </div>
      ))}
      {data.removed !== undefined && data.removed.length > 0 && <p className="faint">{t("removedActions", { names: visible(data.removed.join(", ")) })}</p>}
      {data.pins !== undefined && (
        <details>
          <summary>{t("pins", { count: data.pins.length })}</summary>
          {data.pins.map((pin) => (
            <div key={pin.action}>
              <h3>{nameOf(pin.action)}</h3>
              <LongText text={pin.text} />
            </div>
          ))}
        </details>
      )}
      {data.log !== undefined && (
        <details>
          <summary>{t("serverLog", { count: data.log.length })}</summary>
          {data.log.length === 0 ? <p className="faint">{t("emptyLog")}</p> : <LongText text={data.log.join("\n")} name={`${id}.log`} />}
        </details>
      )}
      {toAccept !== null && <Confirm text={toAccept.action === "" ? t("serverInstructionsAsk") : t("acceptAsk", { name: nameOf(toAccept.action) })} action={t("acceptChange")} onCancel={() => setToAccept(null)} onConfirm={() => void accept(toAccept)} />}
    </section>
  );
}
