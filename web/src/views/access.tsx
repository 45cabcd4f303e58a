/** For administrators: the rules with what they decided, what would happen to a call, tokens, and who did what. */

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useLocation } from "wouter";
import { get, post, remove, request, segment, type AccessToken, type AuditEntry, type CallRecord, type Json, type PolicyDescription, type PolicyRule, type PredictedDecision, type Tool } from "../api";
import type { ViewProps } from "../app";
import { formatNumber, hasText, t, type TextKey } from "../language";
import { queries } from "../live";
import { parseObject } from "../schema";
import { asText, callName, oneLine, visible } from "../text";
import { Badge, Button, Confirm, EffectBadge, Empty, ErrorBadge, errorText, Failed, Icon, Loading, StateBadge, Tabs, Time, toast, VerdictBadge } from "../ui";

const TABS = ["rules", "tester", "tokens_", "audit"] as const;
type Tab = (typeof TABS)[number];

export default function Access({ me }: ViewProps) {
  const [location, navigate] = useLocation();
  const tab = TABS.find((name) => name.replace("_", "") === location.slice(1)) ?? "rules";
  return (
    <div className="page wide">
      <header className="page-head">
        <h1>{t("access")}</h1>
        <Tabs names={TABS} active={tab} onSelect={(name: Tab) => navigate(`/${name.replace("_", "")}`)} />
      </header>
      {tab === "rules" && <Rules />}
      {tab === "tester" && <Tester hasLocalUser={me.token === null || me.token.tenant === ""} />}
      {tab === "tokens_" && <TokenList isOpen={me.token === null} />}
      {tab === "audit" && <Audit />}
    </div>
  );
}

// Rules

const usePolicy = () => useQuery({ queryKey: ["calls", "policy"], queryFn: () => get<PolicyDescription>("/v1/policy") });

function Rules() {
  const policy = usePolicy();
  const [open, setOpen] = useState<number | null>(null);
  if (policy.isError) return <Failed error={policy.error} retry={() => void policy.refetch()} />;
  if (policy.data === undefined) return <Loading />;
  const { rules, warnings, days, kind } = policy.data;
  return (
    <>
      <p className="lead">{t("rulesText")}</p>
      {kind !== "Policy" && <p className="notice">{t("ownPolicy", { name: visible(kind) })}</p>}
      {warnings.map((warning) => (
        <p key={warning} className="notice warn">
          {visible(warning)}
        </p>
      ))}
      <ol className="rules card">
        {rules.map((rule, index) => (
          <li key={index}>
            <button className="rule" aria-expanded={open === index} onClick={() => setOpen(open === index ? null : index)}>
              <span className="faint rule-number">{index + 1}</span>
              <VerdictBadge verdict={rule.verdict} />
              <span className="rule-text">
                <strong>{conditionsOf(rule)}</strong>
                {rule.reason !== "" && <span className="faint">{visible(rule.reason)}</span>}
              </span>
              {rule.is_built_in && <Badge>{t("builtInRule")}</Badge>}
              <span className="rule-calls">
                {t("loadedCalls", { count: formatNumber(rule.calls) })}
                {rule.last_called !== null && (
                  <span className="faint small">
                    <Time at={rule.last_called} />
                  </span>
                )}
              </span>
              <Icon name="down" />
            </button>
            {open === index && <MatchedCalls rule={rule} days={days} />}
          </li>
        ))}
        <li>
          <div className="rule">
            <span className="faint rule-number">{rules.length + 1}</span>
            {policy.data.default !== null && <VerdictBadge verdict={policy.data.default} />}
            <span className="rule-text">
              <strong>{t("everythingElse")}</strong>
              {policy.data.default === null && <span className="faint">{t("usualDefault")}</span>}
            </span>
          </div>
        </li>
      </ol>
    </>
  );
}

/** The conditions of a rule, as people read them. */
function conditionsOf(rule: PolicyRule): string {
  const parts = [rule.tool === "*" ? t("everyTool") : rule.tool];
  if (rule.tag !== "") parts.push(t("withTag", { tag: rule.tag }));
  if (rule.effect !== "") parts.push(t("withEffect", { effect: rule.effect }));
  for (const [name, condition] of Object.entries(rule.arguments)) parts.push(`${name} ${conditionText(condition)}`);
  if (rule.principal !== "") parts.push(t("calledBy", { principal: rule.principal }));
  return visible(parts.join(", "));
}

function conditionText(condition: Json): string {
  if (Array.isArray(condition)) return condition.length === 1 ? `= ${asText(condition[0])}` : t("oneOf", { values: condition.map(asText).join(", ") });
  if (typeof condition !== "object" || condition === null) return `= ${asText(condition)}`;
  const limits = [typeof condition.more_than === "number" ? `> ${condition.more_than}` : "", typeof condition.less_than === "number" ? `< ${condition.less_than}` : ""];
  return limits.filter((limit) => limit !== "").join(" & ");
}

function MatchedCalls({ rule, days }: { rule: PolicyRule; days: number }) {
  const calls = useQuery({
    queryKey: ["calls", "rule", rule.text],
    queryFn: async () => (await get<{ calls: CallRecord[] }>("/v1/calls", { rule: rule.text, limit: 20 })).calls,
  });
  if (calls.isError) return <Failed error={calls.error} />;
  if (calls.data === undefined) return <Loading />;
  if (calls.data.length === 0) return <p className="faint matched">{t("neverMatched", { count: days })}</p>;
  return (
    <div className="scroll matched" tabIndex={0}>
      <table>
        <tbody>
          {calls.data.map((call) => (
            <tr key={call.record_id}>
              <td>{call.error_type === null ? <StateBadge state={call.status} /> : <ErrorBadge type={call.error_type} />}</td>
              <td>
                <Link href={`~/calls/${segment(call.record_id)}`}>{visible(callName(call.tool_name, call.action))}</Link>
              </td>
              <td className="mono faint">{oneLine(JSON.stringify(call.params ?? {}), 90)}</td>
              <td>{visible(call.principal ?? call.caller_id ?? call.caller_type)}</td>
              <td className="faint">
                <Time at={call.created_at} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

// Tester

const useTokens = () => useQuery({ queryKey: ["runs", "tokens"], queryFn: async () => (await get<{ tokens: AccessToken[] }>("/v1/tokens")).tokens });
const isValid = (token: AccessToken): boolean => token.revoked_at === null && (token.expires_at === null || token.expires_at * 1000 > Date.now());

function Tester({ hasLocalUser }: { hasLocalUser: boolean }) {
  const tokens = (useTokens().data ?? []).filter(isValid);
  const tools = useQuery({ queryKey: ["tools", ""], queryFn: async () => (await get<{ tools: Tool[] }>("/v1/tools")).tools });
  const actions = (tools.data ?? []).flatMap((tool) => tool.actions.map((action) => ({ id: action.model_name, tool: tool.tool_id, action: action.name })));
  const [token, setToken] = useState("");
  const [byModel, setByModel] = useState(true);
  const [name, setName] = useState("");
  const [text, setText] = useState("{}");
  const [result, setResult] = useState<PredictedDecision | null>(null);
  const [problem, setProblem] = useState("");
  const given = parseObject(text);
  const who = token || (hasLocalUser ? "" : (tokens[0]?.name ?? ""));
  const predict = async () => {
    const chosen = actions.find((each) => each.id === name);
    const target = chosen === undefined ? { tool: name } : { tool: chosen.tool, action: chosen.action };
    setProblem("");
    setResult(null);
    try {
      setResult(await post<PredictedDecision>("/v1/policy/test", { ...target, token: who === "" ? null : who, chosen_by_model: byModel, arguments: given }));
    } catch (error) {
      setProblem(errorText(error));
    }
  };
  return (
    <div className="tester">
      <form
        className="card tool-form"
        onSubmit={(event) => {
          event.preventDefault();
          void predict();
        }}
      >
        <p className="lead">{t("testerText")}</p>
        <div className="grid-form">
          <label>
            {t("token")}
            <select value={who} onChange={(event) => setToken(event.target.value)}>
              {hasLocalUser && <option value="">{t("localUser")}</option>}
              {tokens.map((each) => (
                <option key={each.token_id} value={each.name}>
                  {visible(each.name)}
                </option>
              ))}
            </select>
          </label>
          <label>
            {t("whoChooses")}
            <select value={String(byModel)} onChange={(event) => setByModel(event.target.value === "true")}>
              <option value="true">{t("aModelChooses")}</option>
              <option value="false">{t("aPersonWrites")}</option>
            </select>
          </label>
        </div>
        <label>
          {t("tool")}
          <input list="actions" required value={name} onChange={(event) => setName(event.target.value)} />
          <datalist id="actions">
            {actions.map((each) => (
              <option key={each.id} value={each.id} />
            ))}
          </datalist>
        </label>
        <label>
          {t("editArguments")}
          <textarea rows={6} spellCheck={false} value={text} aria-invalid={given === null} onChange={(event) => setText(event.target.value)} />
        </label>
        {given === null && <p className="problem">{t("invalidJson")}</p>}
        <div>
          <Button kind="primary" type="submit" disabled={given === null || name === ""}>
            {t("predict")}
          </Button>
        </div>
      </form>
      <section className="card" aria-label={t("result")} aria-live="polite">
        {problem !== "" && <p className="notice bad">{problem}</p>}
        {result === null && problem === "" && <p className="faint">{t("predictEmpty")}</p>}
        {result !== null && <Prediction result={result} />}
      </section>
    </div>
  );
}

const OUTCOMES: Record<PredictedDecision["verdict"], TextKey> = { allow: "wouldRun", ask: "wouldAsk", deny: "wouldDeny" };

function Prediction({ result }: { result: PredictedDecision }) {
  const runs = result.verdict === "allow" && result.problems.length === 0 && result.needs === null;
  return (
    <>
      <div className="row wrap">
        <VerdictBadge verdict={result.verdict} />
        <h2>{t(result.verdict === "allow" && !runs ? "wouldFail" : OUTCOMES[result.verdict])}</h2>
      </div>
      {result.reason !== "" && <p className="pre-line">{visible(result.reason)}</p>}
      {result.problems.map((problem) => (
        <p key={problem} className="notice warn">
          {visible(problem)}
        </p>
      ))}
      {result.needs !== null && (
        <p className="notice warn">
          <strong>{t("needsSetup")}:</strong> {visible(result.needs)}
        </p>
      )}
      <dl className="facts">
        <div>
          <dt>{t("caller")}</dt>
          <dd>{visible(result.principal)}</dd>
        </div>
        <div>
          <dt>{t("decidedBy")}</dt>
          <dd>{result.rule === "" ? t("everythingElse") : visible(result.rule)}</dd>
        </div>
        <div>
          <dt>{t("isListed")}</dt>
          <dd>{t(result.is_listed ? "yes" : "no")}</dd>
        </div>
      </dl>
    </>
  );
}

// Tokens

function TokenList({ isOpen }: { isOpen: boolean }) {
  const tokens = useTokens();
  const [isMaking, setMaking] = useState(false);
  const [secret, setSecret] = useState("");
  const [toRevoke, setToRevoke] = useState<AccessToken | null>(null);
  const revoke = async (token: AccessToken) => {
    setToRevoke(null);
    try {
      await remove(`/v1/tokens/${segment(token.token_id)}`);
    } catch (error) {
      toast(errorText(error), "bad");
    }
    void queries.invalidateQueries({ queryKey: ["runs", "tokens"] });
  };
  if (tokens.isError) return <Failed error={tokens.error} retry={() => void tokens.refetch()} />;
  if (tokens.data === undefined) return <Loading />;
  return (
    <>
      {secret !== "" && (
        <div className="card secret" role="status">
          <p>{t("tokenOnce")}</p>
          <div className="row">
            <input readOnly aria-label={t("newToken")} value={secret} onFocus={(event) => event.target.select()} />
            <Button
              kind="primary"
              onClick={() => {
                void navigator.clipboard?.writeText(secret).then(() => toast(t("copied")));
              }}
            >
              {t("copy")}
            </Button>
            <Button onClick={() => setSecret("")}>{t("close")}</Button>
          </div>
        </div>
      )}
      {isMaking ? (
        <TokenForm
          isFirst={isOpen}
          onDone={(text) => {
            setMaking(false);
            setSecret(text);
          }}
          onCancel={() => setMaking(false)}
        />
      ) : (
        <div>
          <Button kind="primary" onClick={() => setMaking(true)}>
            <Icon name="plus" /> {t("newToken")}
          </Button>
        </div>
      )}
      {tokens.data.length === 0 && isMaking ? null : tokens.data.length === 0 ? (
        <Empty icon="access" title={t("noTokens")}>
          {t("noTokensText")}
        </Empty>
      ) : (
        <div className="card scroll" tabIndex={0}>
          <table>
            <thead>
              <tr>
                {(["name", "roles", "tools", "maxEffect", "tenant", "expires", "status"] as const).map((key) => (
                  <th key={key} scope="col">
                    {t(key)}
                  </th>
                ))}
                <th scope="col" aria-label={t("revoke")} />
              </tr>
            </thead>
            <tbody>
              {tokens.data.map((token) => (
                <tr key={token.token_id} className={isValid(token) ? "" : "ended"}>
                  <td>
                    <strong>{visible(token.name)}</strong>
                  </td>
                  <td>{token.roles.join(", ")}</td>
                  <td className="clip-lines">{token.tools === null ? t("all") : visible(token.tools.join(", "))}</td>
                  <td>
                    <EffectBadge effect={token.max_effect} />
                  </td>
                  <td>{token.tenant === "" ? "–" : visible(token.tenant)}</td>
                  <td>{token.expires_at === null ? t("never") : <Time at={token.expires_at} />}</td>
                  <td>
                    <Badge tone={isValid(token) ? "good" : "muted"}>{t(token.revoked_at !== null ? "revoked" : isValid(token) ? "valid" : "expired")}</Badge>
                  </td>
                  <td>
                    {isValid(token) && (
                      <Button kind="danger" onClick={() => setToRevoke(token)}>
                        {t("revoke")}
                      </Button>
                    )}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {toRevoke !== null && (
        <Confirm text={t("revokeAsk", { name: visible(toRevoke.name) })} action={t("revoke")} onCancel={() => setToRevoke(null)} onConfirm={() => void revoke(toRevoke)} />
      )}
    </>
  );
}

const ROLES = ["viewer", "caller", "approver", "admin"] as const;
const DAYS = [1, 7, 30, 90, 365];

interface TokenFormProps {
  /** There is none yet: whoever creates it needs it from then on. */
  isFirst: boolean;
  onDone: (secret: string) => void;
  onCancel: () => void;
}

function TokenForm({ isFirst, onDone, onCancel }: TokenFormProps) {
  const [name, setName] = useState("");
  const [roles, setRoles] = useState<string[]>([isFirst ? "admin" : "caller"]);
  const [tools, setTools] = useState("");
  const [effect, setEffect] = useState("destructive");
  const [tenant, setTenant] = useState("");
  const [days, setDays] = useState("90");
  const [problem, setProblem] = useState("");
  const create = async () => {
    const patterns = tools.split(/[\s,]+/).filter((each) => each !== "");
    try {
      const made = await post<{ token: string }>("/v1/tokens", {
        ...{ name, roles, tools: patterns.length > 0 ? patterns : null, max_effect: effect, tenant },
        expires_in: days === "" ? null : Number(days) * 86_400,
      });
      if (isFirst) await request("/v1/session", { method: "POST", headers: { Authorization: `Bearer ${made.token}` } });
      onDone(made.token);
      void queries.invalidateQueries();
    } catch (error) {
      setProblem(errorText(error));
    }
  };
  return (
    <form
      className="card tool-form"
      aria-label={t("newToken")}
      onSubmit={(event) => {
        event.preventDefault();
        void create();
      }}
    >
      <div className="grid-form">
        <label>
          {t("name")}
          <input autoFocus required pattern="[A-Za-z0-9._\-]{1,100}" value={name} onChange={(event) => setName(event.target.value)} />
        </label>
        <label>
          {t("toolPatterns")}
          <input placeholder={t("all")} value={tools} onChange={(event) => setTools(event.target.value)} />
        </label>
        <label>
          {t("maxEffect")}
          <select value={effect} onChange={(event) => setEffect(event.target.value)}>
            {(["read_only", "changing", "destructive"] as const).map((each) => (
              <option key={each} value={each}>
                {t(each)}
              </option>
            ))}
          </select>
        </label>
        <label>
          {t("tenant")}
          <input placeholder="–" pattern="[A-Za-z0-9._\-]{1,100}" value={tenant} onChange={(event) => setTenant(event.target.value)} />
        </label>
        <label>
          {t("expires")}
          <select value={days} onChange={(event) => setDays(event.target.value)}>
            {DAYS.map((each) => (
              <option key={each} value={each}>
                {t("inDays", { count: each })}
              </option>
            ))}
            <option value="">{t("never")}</option>
          </select>
        </label>
      </div>
      <fieldset className="role-choice">
        <legend>{t("roles")}</legend>
        {ROLES.map((role) => (
          <label key={role} className="inline">
            <input type="checkbox" checked={roles.includes(role)} disabled={isFirst && role === "admin"} onChange={(event) => setRoles(event.target.checked ? [...roles, role] : roles.filter((each) => each !== role))} />
            <span>
              <strong>{role}</strong> <span className="faint">{t(`role_${role}`)}</span>
            </span>
          </label>
        ))}
      </fieldset>
      {isFirst && <p className="notice">{t("firstToken")}</p>}
      {problem !== "" && (
        <p className="problem" role="alert">
          {problem}
        </p>
      )}
      <div className="row">
        <Button kind="primary" type="submit" disabled={roles.length === 0}>
          {t("createToken")}
        </Button>
        <Button onClick={onCancel}>{t("cancel")}</Button>
      </div>
    </form>
  );
}

// Audit

const deed = (action: string): string => {
  const key = `did_${action}`;
  return hasText(key) ? t(key) : visible(action);
};

function Audit() {
  const audit = useQuery({ queryKey: ["runs", "audit"], queryFn: async () => (await get<{ entries: AuditEntry[] }>("/v1/audit", { limit: 500 })).entries });
  if (audit.isError) return <Failed error={audit.error} retry={() => void audit.refetch()} />;
  if (audit.data === undefined) return <Loading />;
  return (
    <>
      <p className="lead">
        {t("auditText")} <Link href="~/calls">{t("calls")}</Link> · <Link href="~/approvals">{t("approvals")}</Link>
      </p>
      {audit.data.length === 0 ? (
        <Empty icon="access" title={t("noAudit")} />
      ) : (
        <div className="card scroll" tabIndex={0}>
          <table>
            <tbody>
              {audit.data.map((entry, index) => (
                <tr key={index}>
                  <td className="faint">
                    <Time at={entry.at} />
                  </td>
                  <td>
                    <strong>{visible(entry.by)}</strong>
                  </td>
                  <td>{deed(entry.action)}</td>
                  <td>{visible(entry.subject)}</td>
                  <td className="mono faint">{Object.keys(entry.details).length > 0 && oneLine(JSON.stringify(entry.details), 120)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}
