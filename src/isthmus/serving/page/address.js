// What the page shows is in its address: shared, kept, gone back to.

const KEYS = { query: "q", filter: "f", shown: "r", depth: "n", id: "doc", why: "why" };
const LISTS = new Set(["shown"]);
const LONGEST = 2000; // characters of a text that an address carries

/** The state that an address describes; what it leaves out is null. */
export function read(search = location.search) {
  const parameters = new URLSearchParams(search);
  const state = {};
  for (const [name, key] of Object.entries(KEYS)) {
    const value = LISTS.has(name) ? parameters.getAll(key) : parameters.get(key);
    state[name] = value?.length ? value : null;
  }
  state.depth = Number.parseInt(state.depth, 10) || null;
  return state;
}

/** The address of a state. */
export function address(state) {
  const parameters = new URLSearchParams();
  for (const [name, key] of Object.entries(KEYS)) {
    const value = state[name];
    if (LISTS.has(name)) for (const one of value ?? []) parameters.append(key, one);
    else if (value && String(value).length <= LONGEST) parameters.set(key, value);
  }
  return `?${parameters}`;
}

let typing = false; // whether the newest entry of the history is a query that is still being typed

/** Makes a state the page's address: a new entry of the history, but one entry for a query while it is typed. */
export function write(state, typed = false) {
  const next = address(state);
  const same = next === (location.search || "?");
  if (!same && (!typed || !typing)) history.pushState(null, "", next);
  else if (!same) history.replaceState(null, "", next);
  typing = typed && (typing || !same);
}

/** The next change is a new entry of the history. */
export function settle() {
  typing = false;
}
