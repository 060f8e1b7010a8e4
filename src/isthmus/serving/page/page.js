// Where the page starts: one state, in the address, that box, results and panel show.

import { findToken, get, keepToken } from "./api.js";
import { read, settle, write } from "./address.js";
import { $, failure, h, own, plural } from "./elements.js";
import { Judgements } from "./judgements.js";
import { listen } from "./keys.js";
import { Panel } from "./panel.js";
import { Search } from "./search.js";

const PAUSE = 120; // milliseconds without a key after which a query is searched

async function start() {
  findToken();
  let about;
  try {
    about = await get("about");
  } catch (error) {
    if (error.status === 401) askForToken(error);
    else $("results").replaceChildren(failure(error, start));
    return;
  }
  $("collection").replaceChildren(own(about.title), ` ${plural(about.documents, "document")}`);
  $("query").placeholder = `Search ${about.title}`;
  run(about);
}

function run(about) {
  let state = read();
  const judgements = new Judgements(about);
  const search = new Search(about, go, judgements);
  const panel = new Panel(about, go, judgements);

  function go(changes, typed = false) {
    state = { ...state, ...changes };
    write(state, typed);
    show(typed);
  }

  function show(typed = false) {
    const inPanel = $("panel").contains(document.activeElement);
    document.title = [state.query, about.title, "isthmus"].filter(Boolean).join(" · ");
    search.update(state, typed);
    panel.update(state);
    search.mark();
    if (inPanel && !state.id && search.opener?.isConnected) search.opener.focus();
  }

  function fill() {
    $("query").value = state.query ?? "";
    $("filter").value = state.filter ?? "";
  }

  wire(search, go, () => state);
  addEventListener("popstate", () => {
    settle();
    state = read();
    fill();
    show();
  });
  listen({ search, panel, judgements, state: () => state });
  fill();
  show();
  if (!state.query) $("query").focus();
}

/** The box searches while it is typed in. */
function wire(search, go, state) {
  let timer;
  const query = $("query");
  const filter = $("filter");
  const ask = (typed) => {
    clearTimeout(timer);
    const tests = filter.value.trim() || null;
    if (query.value !== (state().query ?? "") || tests !== state().filter) go({ query: query.value, filter: tests, id: null, why: null }, typed);
    if (!typed) settle();
  };
  query.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(ask, PAUSE, true);
  });
  for (const box of [query, filter]) box.addEventListener("change", () => ask(false)); // half a filter is wrong: it waits
  $("search-form").addEventListener("submit", (event) => {
    event.preventDefault();
    ask(false);
  });
}

function askForToken(error) {
  const dialog = $("token");
  const input = h("input", { type: "password", id: "token-value", required: true, autocomplete: "off" });
  dialog.replaceChildren(
    h("h2", { id: "token-title" }, "A token is needed"),
    h("p", { class: "quiet" }, own(error.fix || error.message)),
    h("form", { method: "dialog", onsubmit: () => { keepToken(input.value.trim()); start(); } },
      h("label", { for: "token-value" }, "Token"), input, h("button", { class: "main" }, "Go on")));
  dialog.showModal();
}

start();
