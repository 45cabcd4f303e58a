/** Exchanges a token for the session of this browser. */

import { useState } from "react";
import { ApiError, request } from "./api";
import { t } from "./language";
import { queries } from "./live";
import { Button, errorText } from "./ui";

export function SignIn() {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState("");
  const [isBusy, setBusy] = useState(false);
  const signIn = async () => {
    setBusy(true);
    try {
      await request("/v1/session", { method: "POST", headers: { Authorization: `Bearer ${token.trim()}` } });
      await queries.invalidateQueries();
    } catch (error) {
      setProblem(error instanceof ApiError && error.status === 401 ? t("tokenWrong") : errorText(error));
    } finally {
      setBusy(false);
    }
  };
  return (
    <main className="sign-in">
      <form
        className="card"
        onSubmit={(event) => {
          event.preventDefault();
          void signIn();
        }}
      >
        <img src="/favicon.svg" alt="" width="44" height="44" />
        <h1>Ferrule</h1>
        <p>{t("signInText")}</p>
        <label>
          {t("token")}
          <input type="password" autoComplete="current-password" autoFocus required value={token} onChange={(event) => setToken(event.target.value)} />
        </label>
        {problem !== "" && (
          <p className="problem" role="alert">
            {problem}
          </p>
        )}
        <Button kind="primary" type="submit" disabled={isBusy || token.trim() === ""}>
          {t("signIn")}
        </Button>
        <p className="faint">
          <code>{t("tokenHint")}</code>
        </p>
      </form>
    </main>
  );
}
