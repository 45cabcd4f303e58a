/** The frame of the page: who is signed in, the navigation, and the view. */

import { lazy, Suspense, useEffect, useState, type ComponentType } from "react";
import { Link, Redirect, Route, Switch, useLocation } from "wouter";
import { ApiError, request, type Me, type Permission } from "./api";
import { activeShortcuts, handleKey, useShortcuts } from "./keys";
import { setLanguage, t, useLanguage, type TextKey } from "./language";
import { queries, useConnection, useLiveUpdates, useMe, usePendingApprovals } from "./live";
import { SignIn } from "./sign_in";
import { Boundary, Button, Dialog, Failed, Icon, Loading, Toasts } from "./ui";
import { visible } from "./text";
import { Approvals } from "./views/approvals";
import { Ask } from "./views/ask";
import { Runs } from "./views/runs";

export interface ViewProps {
  me: Me;
  may: (permission: Permission) => boolean;
}

interface View {
  name: "ask" | "runs" | "approvals" | "calls" | "tools" | "failures" | "access";
  key: string;
  component: ComponentType<ViewProps>;
  permission?: Permission;
}

const VIEWS: View[] = [
  { name: "ask", key: "q", component: Ask },
  { name: "runs", key: "r", component: Runs },
  { name: "approvals", key: "a", component: Approvals },
  { name: "calls", key: "c", component: lazy(() => import("./views/calls")) },
  { name: "tools", key: "t", component: lazy(() => import("./views/tools")) },
  { name: "failures", key: "f", component: lazy(() => import("./views/failures")) },
  { name: "access", key: "p", component: lazy(() => import("./views/access")), permission: "administer" },
];

export function App() {
  useLanguage();
  const me = useMe();
  useEffect(() => {
    document.addEventListener("keydown", handleKey);
    return () => document.removeEventListener("keydown", handleKey);
  }, []);
  if (me.data !== undefined && !(me.error instanceof ApiError && me.error.status === 401)) return <Frame me={me.data} />;
  if (me.error instanceof ApiError && me.error.status === 401) return <SignIn />;
  if (me.isError) return <Failed error={me.error} retry={() => void me.refetch()} />;
  return <Loading />;
}

type Theme = "system" | "light" | "dark";

function useTheme(): [Theme, (theme: Theme) => void] {
  const [theme, setTheme] = useState<Theme>(() => (localStorage.getItem("ferrule.theme") as Theme | null) ?? "system");
  useEffect(() => {
    localStorage.setItem("ferrule.theme", theme);
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  }, [theme]);
  return [theme, setTheme];
}

function Frame({ me }: { me: Me }) {
  useLiveUpdates();
  const language = useLanguage();
  const [theme, setTheme] = useTheme();
  const [location, navigate] = useLocation();
  const [showsKeys, setShowsKeys] = useState(false);
  const pending = usePendingApprovals().data?.length ?? 0;
  const may = (permission: Permission) => me.permissions.includes(permission);
  const views = VIEWS.filter((view) => view.permission === undefined || may(view.permission));
  const active = views.find((view) => location.split("/")[1] === view.name);

  useEffect(() => {
    document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
    const name = active === undefined ? "" : `${t(active.name)} · `;
    document.title = `${pending > 0 ? `(${pending}) ` : ""}${name}Ferrule`;
  }, [pending, active, language]);
  useShortcuts([
    ...views.map((view) => ({
      keys: `g ${view.key}`,
      text: t("keyGo", { view: t(view.name) }),
      run: () => navigate(`/${view.name}`),
    })),
    {
      keys: "/",
      text: t("keySearch"),
      run: () => document.querySelector<HTMLElement>("main input[type=search], main textarea")?.focus(),
    },
    { keys: "d", text: t("keyTheme"), run: () => setTheme(isDark() ? "light" : "dark") },
    { keys: "?", text: t("keyHelp"), run: () => setShowsKeys(true) },
  ]);

  return (
    <div className="frame">
      <a className="skip" href="#content">
        {t("skip")}
      </a>
      <nav aria-label={t("navigation")} className="sidebar">
        <Link href="/approvals" className="brand" aria-label="Ferrule">
          <img src="/favicon.svg" alt="" width="26" height="26" />
          <span>Ferrule</span>
        </Link>
        <ul>
          {views.map((view) => (
            <li key={view.name}>
              <Link href={`/${view.name}`} aria-current={view === active ? "page" : undefined}>
                <Icon name={view.name} />
                <span>{t(view.name)}</span>
                {view.name === "approvals" && pending > 0 && <span className="count">{pending}</span>}
              </Link>
            </li>
          ))}
        </ul>
        <Settings me={me} theme={theme} setTheme={setTheme} onKeys={() => setShowsKeys(true)} />
      </nav>
      <main id="content" tabIndex={-1}>
        <ConnectionNotice />
        <Boundary name={location}>
          <Suspense fallback={<Loading />}>
            <Switch>
              {views.map(({ name, component: Shown }) => (
                <Route key={name} path={`/${name}`} nest>
                  <Shown me={me} may={may} />
                </Route>
              ))}
              <Route>
                <Redirect to="/approvals" replace />
              </Route>
            </Switch>
          </Suspense>
        </Boundary>
      </main>
      <Toasts />
      {showsKeys && <Keys onClose={() => setShowsKeys(false)} />}
    </div>
  );
}

function isDark(): boolean {
  return getComputedStyle(document.documentElement).getPropertyValue("--is-dark").trim() === "1";
}

function ConnectionNotice() {
  if (useConnection() !== "lost") return null;
  return (
    <div className="notice warn" role="status">
      {t("lost")}
    </div>
  );
}

interface SettingsProps {
  me: Me;
  theme: Theme;
  setTheme: (theme: Theme) => void;
  onKeys: () => void;
}

function Settings({ me, theme, setTheme, onKeys }: SettingsProps) {
  const language = useLanguage();
  const signOut = async () => {
    await request("/v1/session", { method: "DELETE" }).catch(() => undefined);
    queries.clear();
    location.reload();
  };
  const themes: [Theme, TextKey][] = [
    ["system", "themeSystem"],
    ["light", "themeLight"],
    ["dark", "themeDark"],
  ];
  return (
    <div className="settings">
      <div className="who">
        <div>
          <strong>{me.token === null ? t("localUser") : visible(me.token.name)}</strong>
          {me.token !== null && <span className="faint small">{me.token.roles.join(", ")}</span>}
        </div>
        <Button kind="quiet" aria-label={t("shortcuts")} title={t("shortcuts")} onClick={onKeys}>
          <Icon name="keyboard" />
        </Button>
      </div>
      <div className="row">
        <select aria-label={t("theme")} value={theme} onChange={(event) => setTheme(event.target.value as Theme)}>
          {themes.map(([value, key]) => (
            <option key={value} value={value}>
              {t(key)}
            </option>
          ))}
        </select>
        <select aria-label={t("language")} value={language} onChange={(event) => setLanguage(event.target.value as "en" | "zh")}>
          <option value="en">English</option>
          <option value="zh">中文</option>
        </select>
      </div>
      {me.token !== null && (
        <Button kind="quiet" onClick={() => void signOut()}>
          {t("signOut")}
        </Button>
      )}
    </div>
  );
}

function Keys({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title={t("shortcuts")} onClose={onClose}>
      <dl className="keys">
        {activeShortcuts().map((each) => (
          <div key={each.keys}>
            <dt>
              {each.keys.split(" ").map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{each.text}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
