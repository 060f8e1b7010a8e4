// The panel beside the results: why a document was found, and its text.

import { get } from "./api.js";
import { $, count, failure, fields, h, label, number, own } from "./elements.js";
import { explained } from "./explanations.js";

const PIECE = 20_000; // characters of a text that are shown at a time

export class Panel {
  /** `go` changes the page's state. */
  constructor(about, go, judgements) {
    Object.assign(this, { about, go, judgements });
    this.key = null;
    this.reading = new AbortController();
    this.explaining = new AbortController();
    this.dialog = $("panel");
    this.dialog.addEventListener("cancel", (event) => {
      event.preventDefault(); // the address says whether the panel is open
      this.close();
    });
    matchMedia("(max-width: 52rem)").addEventListener("change", () => this.dialog.open && this.open());
  }

  close() {
    this.go({ id: null, why: null });
  }

  /** Shows a state: opens, closes, or turns to another document or retriever. */
  update(state) {
    const key = state.id && JSON.stringify([state.id, state.why, state.query]);
    if (key === this.key) return;
    const [id] = this.key ? JSON.parse(this.key) : [];
    const same = id === state.id;
    this.key = key;
    this.explaining.abort();
    this.explaining = new AbortController();
    if (!same) {
      this.reading.abort();
      this.reading = new AbortController();
    }
    if (!key) {
      this.dialog.close();
      document.body.classList.remove("beside");
      return;
    }
    this.draw(state, same);
    if (!this.dialog.open) this.open();
    else (same ? this.dialog.querySelector(".chip[aria-pressed=true]") : $("panel-title"))?.focus();
  }

  /** On a narrow screen the panel covers the page, which then cannot be reached. */
  open() {
    this.dialog.close();
    if (matchMedia("(max-width: 52rem)").matches) this.dialog.showModal();
    else this.dialog.show();
    document.body.classList.add("beside");
    $("panel-title").focus();
  }

  draw(state, same) {
    const retriever = this.about.retrievers.find((one) => one.name === state.why) ?? this.about.retrievers.find((one) => one.name === this.about.default);
    const query = (state.query ?? "").trim();
    const title = h("h2", { id: "panel-title", tabindex: "-1" }, own(state.id));
    const why = h("div", { class: "why", "aria-live": "off" }, h("p", { class: "quiet" }, "Explaining …"));
    const kept = same ? this.dialog.querySelector(".text") : null;
    const text = kept ?? h("div", { class: "text" }, h("p", { class: "quiet" }, "Reading …"));
    const tabs = this.about.retrievers.map((one) =>
      h("button", { type: "button", class: "chip", "aria-pressed": String(one === retriever), onclick: () => this.go({ why: one.name }) }, own(label(one))));
    const heading = same ? this.dialog.querySelector("#panel-title") : null;
    this.dialog.replaceChildren(
      h("header", {},
        heading ?? title,
        h("button", { type: "button", class: "close", "aria-label": "Close", title: "Close (Esc)", onclick: () => this.close() }, "×"),
        h("p", { class: "quiet id" }, own(state.id)),
        query ? this.judgements.buttons(state.id, state.id) : null),
      query ? h("section", { "aria-label": "Why" }, h("div", { class: "choices", role: "group", "aria-label": "Explain by" }, h("h3", {}, "Why, by"), tabs), why) : null,
      h("section", { "aria-label": "Document" }, h("h3", {}, "Document"), text));
    if (!same) this.dialog.scrollTop = 0;
    if (!kept) this.read(state.id, title, text, query);
    if (query) this.explain(query, state.id, retriever, why);
  }

  async read(id, title, text, query) {
    const { signal } = this.reading;
    try {
      const found = await get("document", { id }, signal);
      title.replaceChildren(own(found.title || found.id));
      text.replaceChildren(...[fields(found.metadata)].filter(Boolean));
      append(text, found.text, wordsOf(id, query));
      const left = (found.characters ?? 0) - [...found.text].length;
      if (left > 0) text.append(h("p", { class: "quiet" }, `The server sends no more: ${count(left)} characters are left out.`));
    } catch (error) {
      if (!signal.aborted) text.replaceChildren(failure(error));
    }
  }

  async explain(query, id, retriever, place) {
    const { signal } = this.explaining;
    try {
      const found = await get("explain", { q: query, id, use: retriever.name }, signal);
      place.replaceChildren(
        h("p", { class: "standing" }, found.rank ? [h("b", {}, `Rank ${count(found.rank)}`), ", "] : "", "score ", h("b", {}, number(found.score)), found.model ? [" by ", own(found.model, { class: "quiet" })] : ""),
        explained(found));
    } catch (error) {
      if (!signal.aborted) place.replaceChildren(failure(error));
    }
  }
}

/** What to mark in a text: the words that its snippets mark, or those of the query where it has no snippet. */
function wordsOf(id, query) {
  const marks = [...document.querySelectorAll(`.hit[data-id="${CSS.escape(id)}"] mark`)].map((one) => one.textContent).join(" ");
  const words = (marks || query).toLowerCase().match(/[\p{L}\p{N}]{2,}/gu) ?? [];
  return words.length ? new RegExp(`(?<![\\p{L}\\p{N}])(${[...new Set(words)].slice(0, 50).join("|")})(?![\\p{L}\\p{N}])`, "giu") : null;
}

/** Adds a text piece by piece: a book is not laid out at once. */
function append(place, text, words, start = 0) {
  let end = Math.min(start + PIECE, text.length);
  const line = text.lastIndexOf("\n", end);
  if (end < text.length && line > start + PIECE / 2) end = line;
  else if (end < text.length && /[\ud800-\udbff]/.test(text[end - 1])) end += 1; // not between the halves of one character
  place.append(h("div", { class: "piece", dir: "auto" }, marked(text.slice(start, end), words)));
  if (end === text.length) return;
  const more = h("button", { type: "button", onclick: () => { more.remove(); append(place, text, words, end); } }, `Show more (${count(text.length - end)} characters left)`);
  place.append(more);
}

/** A text with the words of the query marked. */
function marked(text, words) {
  if (!words) return text;
  return text.split(words).map((part, at) => (at % 2 ? h("mark", {}, part) : part));
}
