// Requests to the server that this page came from, and to no other.

const KEY = "isthmus-token";
const PATIENCE = 60_000; // milliseconds after which a request is given up

/** A request that failed: what is wrong, what to do, and the choices, if there are any. */
export class Failure extends Error {
  constructor({ what, fix = "", expected = "" }, status = 0) {
    super(what);
    Object.assign(this, { fix, expected, status });
  }
}

let token = null;

/** Keeps a token for this tab. */
export function keepToken(value) {
  token = value;
  try {
    sessionStorage.setItem(KEY, value);
  } catch {
    // Storage is switched off: the token lasts as long as the page.
  }
}

/** Takes the token out of `#token=…`, so that the address can be shared, or from this tab's storage. */
export function findToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    keepToken(given);
    history.replaceState(history.state, "", location.pathname + location.search);
    return;
  }
  try {
    token = sessionStorage.getItem(KEY);
  } catch {
    token = null;
  }
}

/** The answer of GET /api/NAME; addresses are relative, so that the page works below any path. */
export function get(name, parameters = {}, signal = null) {
  const query = new URLSearchParams(parameters).toString();
  return request(`api/${name}${query ? `?${query}` : ""}`, {}, signal);
}

/** The answer of POST /api/NAME. */
export function post(name, body, signal = null) {
  const headers = { "Content-Type": "application/json" };
  return request(`api/${name}`, { method: "POST", headers, body: JSON.stringify(body) }, signal);
}

/** The answer of a request to an address of this server. */
export async function request(address, options = {}, signal = null) {
  const patience = AbortSignal.timeout(PATIENCE);
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  let answer;
  try {
    answer = await fetch(address, { ...options, headers, signal: signal ? AbortSignal.any([signal, patience]) : patience });
    if (answer.ok) return await answer.json();
  } catch (error) {
    if (signal?.aborted) throw error; // its answer is no longer wanted
    if (patience.aborted) throw new Failure({ what: `The server gave no answer within ${PATIENCE / 1000} s.`, fix: "Try again, or ask for fewer results." });
    throw new Failure({ what: "The server does not answer.", fix: "Check that it still runs, then try again." });
  }
  throw new Failure(await problem(answer), answer.status);
}

async function problem(answer) {
  try {
    const { error } = await answer.json();
    if (typeof error?.what === "string") return error;
  } catch {
    // Not an answer of ours: a proxy's page, for example.
  }
  return { what: `The server answered ${answer.status} ${answer.statusText}.` };
}
