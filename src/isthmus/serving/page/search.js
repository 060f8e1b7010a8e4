// The search view: a query's answers side by side, each as soon as it is there.

import { get } from "./api.js";
import { address } from "./address.js";
import { $, count, failure, fields, h, label, number, own, plural, tell } from "./elements.js";

const DEPTHS = [5, 10, 20, 50, 100];
const FIELDS = 8; // of metadata, that are shown of a result, and named below the filter
const COMPARED = { text: "", number: " (number)", boolean: " (true or false)" };
const SETTLED = 600; // milliseconds that a query stands before it is worth re-ranking
const SLOW = 2500; // milliseconds after which a column says that it still waits

export class Search {
  /** `go` changes the page's state; `judgements` has the grades and their buttons. */
  constructor(about, go, judgements) {
    Object.assign(this, { about, go, judgements });
    this.state = {};
    this.key = null; // the query, the depth and the filter that the answers are of
    this.drawn = null; // what the columns show
    this.opener = null; // the link that opened the panel
    this.answers = new Map(); // by retriever; a Failure where there is none
    this.pending = new Set();
    this.controller = new AbortController();
    const allowed = DEPTHS.filter((depth) => depth <= about.limits.k);
    $("depth").append(...allowed.map((depth) => h("option", { value: depth }, String(depth))));
    $("depth").addEventListener("change", (event) => go({ depth: Number(event.target.value) }));
    this.chips();
    this.filterable();
  }

  /** The box of the filter, where documents have anything to filter by. */
  filterable() {
    const names = Object.entries(this.about.metadata).filter(([, type]) => type in COMPARED);
    $("filtering").hidden = !names.length;
    $("filter").placeholder = names.slice(0, 2).map(([name, type]) => `${name}${type === "number" ? ">=…" : "=…"}`).join(" ");
    const shown = names.slice(0, FIELDS).flatMap(([name, type], at) => [at ? ", " : "", own(name), COMPARED[type]]);
    $("filter-fields").replaceChildren("by ", ...shown, names.length > FIELDS ? ", …" : "");
  }

  /** The retrievers that a state shows, in the server's order. */
  shown(state) {
    const wanted = new Set(state.shown ?? [this.about.default]);
    const known = this.about.retrievers.filter((one) => wanted.has(one.name));
    return known.length ? known : this.about.retrievers.filter((one) => one.name === this.about.default);
  }

  depth(state) {
    return Math.max(1, Math.min(state.depth ?? 10, this.about.limits.k));
  }

  /** One retriever becomes all, all become the default. */
  compare() {
    const all = this.about.retrievers.map((one) => one.name);
    this.go({ shown: this.shown(this.state).length < all.length ? all : null });
  }

  chips() {
    if (this.about.retrievers.length === 1) return;
    const toggle = (name) => {
      const names = this.shown(this.state).map((one) => one.name);
      const rest = names.filter((one) => one !== name);
      this.go({ shown: rest.length === names.length ? [...names, name] : rest.length ? rest : names });
    };
    $("retrievers").append(
      ...this.about.retrievers.map((one) =>
        h("button", { type: "button", class: "chip", "data-name": one.name, title: one.model, onclick: () => toggle(one.name) }, own(label(one)))),
      h("button", { type: "button", class: "all", id: "compare", onclick: () => this.compare() }, "Side by side"));
  }

  /** Shows a state: asks for what is not there yet, and draws. While a query is typed, re-ranking waits. */
  update(state, typed = false) {
    this.state = state;
    const query = (state.query ?? "").trim();
    const shown = this.shown(state);
    const names = new Set(shown.map((one) => one.name));
    for (const chip of document.querySelectorAll("#retrievers .chip")) chip.setAttribute("aria-pressed", names.has(chip.dataset.name));
    $("compare")?.setAttribute("aria-pressed", names.size === this.about.retrievers.length);
    this.choose(this.depth(state));
    const tooLong = [...query].length > this.about.limits.query_characters;
    this.complain("query", tooLong ? `${count([...query].length)} characters: a query has at most ${count(this.about.limits.query_characters)}.` : "");
    const key = JSON.stringify([query, this.depth(state), state.filter]);
    if (key !== this.key) {
      this.controller.abort();
      this.controller = new AbortController();
      this.answers.clear();
      this.pending.clear();
      this.key = key;
      if (query && !tooLong) this.judgements.load(query, this.controller.signal);
    }
    if (!query || tooLong) {
      this.complain("filter", "");
      return this.land(tooLong);
    }
    for (const one of shown) {
      if (this.answers.has(one.name) || this.pending.has(one.name)) continue;
      this.ask(one.name, query, typed && one.type === "reranked" ? SETTLED : 0);
    }
    const drawn = JSON.stringify([key, [...names]]);
    if (drawn !== this.drawn) this.draw();
    this.drawn = drawn;
    return undefined;
  }

  choose(depth) {
    const select = $("depth");
    if (![...select.options].some((one) => Number(one.value) === depth)) select.append(h("option", { value: depth }, String(depth)));
    select.value = depth;
  }

  /** Says below a box what is wrong with it. */
  complain(box, problem) {
    const place = $(`${box}-problem`);
    if (place.textContent !== problem) place.textContent = problem;
    place.hidden = !problem;
    if (problem) $(box).setAttribute("aria-invalid", "true");
    else $(box).removeAttribute("aria-invalid");
  }

  async ask(name, query, delay) {
    const { signal } = this.controller;
    this.pending.add(name);
    if (delay) await new Promise((go) => setTimeout(go, delay));
    if (signal.aborted) return; // typed on
    const slow = setTimeout(() => this.late(name), SLOW);
    let answer;
    try {
      const { filter } = this.state;
      answer = await get("search", { q: query, use: name, k: this.depth(this.state), show: "snippets", ...(filter ? { filter } : {}) }, signal);
    } catch (error) {
      answer = error;
    }
    clearTimeout(slow);
    if (signal.aborted) return; // of a query that is no longer the one in the box
    this.pending.delete(name);
    this.answers.set(name, answer);
    this.draw();
    if (!this.pending.size) this.announce();
  }

  late(name) {
    const column = document.querySelector(`.column[data-name="${CSS.escape(name)}"] .about`);
    column?.replaceChildren("Still searching …");
    tell("Still searching");
  }

  announce() {
    const found = this.shown(this.state).map((one) => {
      const { hits } = this.answers.get(one.name) ?? {};
      return `${label(one)}: ${hits ? (hits.length ? plural(hits.length, "result") : "no results") : "failed"}`;
    });
    tell(found.join("; "));
  }

  /** What is there before anything is typed. */
  land(keep) {
    $("busy").hidden = true;
    if (keep) return;
    this.drawn = null;
    $("results").replaceChildren(
      h("section", { class: "landing" },
        h("h2", {}, h("span", {}, `${plural(this.about.documents, "document")},`), " ", h("span", {}, `${ways(this.about.retrievers.length)} to find them.`)),
        h("dl", {}, this.about.retrievers.flatMap((one) => [h("dt", {}, own(label(one))), h("dd", {}, own(one.model ?? DESCRIBED[one.type] ?? one.type))])),
        h("p", { class: "quiet" }, h("kbd", {}, "/"), " search ", h("kbd", {}, "↓"), " results ", h("kbd", {}, "Enter"), " why ", h("kbd", {}, "Esc"), " back")));
  }

  draw() {
    const shown = this.shown(this.state);
    $("busy").hidden = !this.pending.size;
    const refused = [...this.answers.values()].find((one) => one.status === 422 && one.message.startsWith("filter: "));
    this.complain("filter", refused ? `${refused.message.slice("filter: ".length)}${refused.expected && ` (${refused.expected})`}: ${refused.fix}` : "");
    if (refused) return $("results").replaceChildren(); // said once, and not by every column
    const old = new Map([...document.querySelectorAll(".column")].map((one) => [one.dataset.name, one]));
    const [first] = shown;
    const ranks = shown.length > 1 ? ranksOf(this.answers.get(first.name)) : null;
    const columns = shown.map((one) => {
      const answer = this.answers.get(one.name);
      if (answer) return this.column(one, answer, one === first ? null : ranks, first);
      const waiting = old.get(one.name) ?? this.frame(one, "Searching …");
      waiting.setAttribute("aria-busy", "true");
      return waiting;
    });
    const grid = h("div", { class: `columns${columns.length > 1 ? " several" : ""}` }, columns);
    grid.style.setProperty("--columns", columns.length);
    $("results").replaceChildren(grid);
    return this.mark();
  }

  frame(retriever, about, ...inner) {
    const id = `column-${this.about.retrievers.indexOf(retriever)}`;
    return h("section", { class: "column", "data-name": retriever.name, "aria-labelledby": id },
      h("header", {}, h("h2", { id }, own(label(retriever))), h("p", { class: "about" }, about)), h("div", {}, inner));
  }

  column(retriever, answer, ranks, reference) {
    if (!answer.hits) return this.frame(retriever, "", failure(answer, () => this.again(retriever.name)));
    const about = [times(answer.milliseconds)];
    if (ranks && answer.hits.length) {
      const shared = answer.hits.filter((hit) => ranks.has(hit.id)).length;
      about.push(h("span", { class: "against" }, `${shared} of ${answer.hits.length} also in `, own(label(reference))));
    }
    const scores = answer.hits.map((hit) => hit.score);
    const least = Math.min(...scores, 0);
    const share = (score) => (score - least) / (Math.max(...scores) - least || 1);
    const inner = answer.hits.length
      ? h("ol", {}, answer.hits.map((hit) => this.hit(retriever, hit, share(hit.score), ranks, reference)))
      : h("p", { class: "empty" }, h("b", {}, "Nothing found."), " ", own(answer.note ?? ""));
    const note = answer.hits.length && answer.note ? h("p", { class: "note quiet" }, own(answer.note)) : null;
    return this.frame(retriever, h("span", {}, about), note, inner);
  }

  /** Asks a retriever that failed once more. */
  again(name) {
    this.answers.delete(name);
    this.drawn = null;
    this.update(this.state);
  }

  hit(retriever, hit, share, ranks, reference) {
    const open = { ...this.state, id: hit.id, why: retriever.name };
    const follow = (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.target.closest("button")) return;
      if (!event.target.closest("a") && getSelection().toString()) return;
      event.preventDefault();
      this.opener = event.currentTarget.querySelector("a");
      this.go({ id: hit.id, why: retriever.name });
    };
    const place = [hit.heading, hit.place].filter(Boolean).map((one) => own(one));
    return h("li", { class: "hit", "data-id": hit.id, onclick: follow, onfocusin: reachable },
      h("span", { class: "rank", "aria-hidden": "true" }, String(hit.rank)),
      h("div", { class: "inner" },
        h("h3", {}, h("a", { href: address(open) }, own(hit.title || hit.id))),
        place.length ? h("p", { class: "place" }, place.flatMap((one, at) => (at ? [" · ", one] : [one]))) : null,
        h("p", { class: "snippet", dir: "auto" }, hit.snippet.map((part) => (part.match ? h("mark", {}, part.text) : part.text))),
        fields(hit.metadata, FIELDS),
        h("div", { class: "facts" },
          h("span", { class: "score", title: "score" }, h("i", { share }), number(hit.score)),
          ranks ? moved(hit, ranks, reference) : null,
          hit.title ? own(hit.id, { class: "id" }) : null,
          this.judgements.buttons(hit.id, hit.title || hit.id, -1))));
  }

  /** Marks the document that the panel shows. */
  mark() {
    for (const one of document.querySelectorAll(".hit")) one.classList.toggle("open", one.dataset.id === this.state.id);
  }

  /** Moves the focus between results, columns and the box. */
  move(key) {
    const current = document.activeElement.closest(".hit");
    const columns = [...document.querySelectorAll(".column")].map((one) => [...one.querySelectorAll(".hit")]).filter((one) => one.length);
    if (!columns.length) return false;
    const at = columns.findIndex((one) => one.includes(current));
    if (at < 0) return key === "ArrowDown" && focus(columns[0][0]);
    const row = columns[at].indexOf(current);
    if (key === "ArrowUp" && row === 0) return focus($("query"));
    if (key === "ArrowUp" || key === "ArrowDown") return focus(columns[at][row + (key === "ArrowUp" ? -1 : 1)]);
    const beside = columns[at + (key === "ArrowLeft" ? -1 : 1)];
    return focus(beside?.find((one) => one.dataset.id === current.dataset.id) ?? beside?.[Math.min(row, beside.length - 1)]);
  }
}

const DESCRIBED = { bm25: "terms, weighted by rarity", fused: "their rankings together", reranked: "the best, read again" };

function ways(number) {
  return number === 1 ? "one way" : `${["two", "three", "four", "five", "six"][number - 2] ?? number} ways`;
}

function focus(target) {
  if (!target) return false;
  (target.querySelector("a") ?? target).focus();
  target.scrollIntoView({ block: "nearest", inline: "nearest" });
  return true;
}

/** Lets Tab reach the buttons of the result that has the focus, and of no other: ten results are ten stops. */
function reachable({ currentTarget }) {
  for (const button of document.querySelectorAll(".hit .grades button")) button.tabIndex = currentTarget.contains(button) ? 0 : -1;
}

function ranksOf(answer) {
  return answer?.hits ? new Map(answer.hits.map((hit) => [hit.id, hit.rank])) : null;
}

/** How far a document is from its rank in the first column. */
function moved(hit, ranks, reference) {
  const before = ranks.get(hit.id);
  const difference = before - hit.rank;
  const [kind, sign, words] =
    before === undefined ? ["new", "new", `not among the results of ${label(reference)}`]
    : difference === 0 ? ["same", "=", `as in ${label(reference)}`]
    : difference > 0 ? ["up", `↑${difference}`, `up from rank ${before} of ${label(reference)}`]
    : ["down", `↓${-difference}`, `down from rank ${before} of ${label(reference)}`];
  return h("span", { class: `moved ${kind}`, title: words }, h("span", { "aria-hidden": "true" }, sign), h("span", { class: "hidden" }, words));
}

function times(milliseconds) {
  const { total, ...stages } = milliseconds;
  const shown = (value) => (value < 10 ? value.toFixed(1) : value.toFixed(0));
  const parts = Object.entries(stages).filter(([, value]) => value >= 0.05).map(([name, value]) => `${name} ${shown(value)}`);
  return h("span", { class: "times" }, h("b", {}, `${shown(total)} ms`), parts.length ? ` ${parts.join(" + ")}` : "");
}
