// The inspect view: what the vector of any text holds, for several models side by side.

import { post } from "./api.js";
import { $, count, failure, h, number, own, tell } from "./elements.js";

export class Inspect {
  /** `go` changes the page's state. */
  constructor(about, go) {
    Object.assign(this, { about, go });
    this.key = null;
    this.controller = new AbortController();
    $("models").append(...about.models.map((name) =>
      h("button", { type: "button", class: "chip", "data-name": name, onclick: () => this.toggle(name) }, own(name))));
    $("inspect-form").addEventListener("submit", (event) => {
      event.preventDefault();
      go({ text: $("text").value });
    });
    $("text").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("inspect-form").requestSubmit();
    });
    $("inspected").addEventListener("pointerover", (event) => {
      const token = event.target.closest("tr[data-token]")?.dataset.token;
      for (const one of $("inspected").querySelectorAll("tr[data-token]")) one.classList.toggle("linked", one.dataset.token === token);
    });
  }

  models(state) {
    const wanted = state.models ?? this.about.models.slice(0, 2);
    const known = this.about.models.filter((name) => wanted.includes(name));
    return known.length ? known : this.about.models.slice(0, 1);
  }

  toggle(name) {
    const names = this.models(this.state);
    const rest = names.filter((one) => one !== name);
    this.go({ models: rest.length === names.length ? [...names, name] : rest.length ? rest : names, text: $("text").value });
  }

  /** Shows a state: the text, its models, and what their vectors hold. */
  update(state) {
    this.state = state;
    const names = this.models(state);
    for (const chip of document.querySelectorAll("#models .chip")) chip.setAttribute("aria-pressed", names.includes(chip.dataset.name));
    const text = state.text ?? "";
    if (document.activeElement !== $("text") || !$("text").value) $("text").value = text;
    if (!this.about.models.length) {
      $("inspected").replaceChildren(h("p", { class: "empty" }, h("b", {}, "Nothing to inspect."), " BM25 has no vectors: serve an index of a dense or sparse model as well."));
      return;
    }
    const limit = this.about.limits.text_characters;
    const tooLong = text.length > limit;
    $("text-problem").textContent = tooLong ? `${count(text.length)} characters: a text has at most ${count(limit)}.` : "";
    $("text-problem").hidden = !tooLong;
    const key = JSON.stringify([text, names]);
    if (key === this.key) return;
    this.key = key;
    this.controller.abort();
    this.controller = new AbortController();
    if (!text.trim() || tooLong) $("inspected").replaceChildren();
    else this.ask(text, names);
  }

  async ask(text, names) {
    const { signal } = this.controller;
    $("inspected").setAttribute("aria-busy", "true");
    $("busy").hidden = false;
    try {
      const { texts } = await post("inspect", { text, models: names }, signal);
      const { models } = texts[0];
      const holding = new Map();
      for (const model of models) for (const { token } of model.tokens ?? []) holding.set(token, (holding.get(token) ?? 0) + 1);
      const grid = h("div", { class: `columns plain${models.length > 1 ? " several" : ""}` }, models.map((model) => projection(model, holding, models.length)));
      grid.style.setProperty("--columns", models.length);
      $("inspected").replaceChildren(grid);
      tell(`What ${models.length === 1 ? "one vector holds" : `${models.length} vectors hold`} is shown below`);
    } catch (error) {
      if (signal.aborted) return;
      $("inspected").replaceChildren(failure(error, () => { this.key = null; this.update(this.state); }));
    }
    $("busy").hidden = true;
    $("inspected").removeAttribute("aria-busy");
  }
}

function projection(model, holding, models) {
  const tokens = model.tokens ?? [];
  const most = Math.max(...tokens.map((one) => Math.abs(one.weight)), 1e-9);
  const least = model.kind === "sparse" ? 0 : Math.min(...tokens.map((one) => one.weight), most);
  const row = (one) => {
    const both = holding.get(one.token) > 1;
    return h("tr", { class: one.in_text ? "hit-token" : "miss-token", "data-token": one.token },
      h("td", { class: "sign" }, h("span", { "aria-hidden": "true" }, one.in_text ? "●" : "○"), h("span", { class: "hidden" }, one.in_text ? "in the text" : "not in the text")),
      h("th", { scope: "row" }, own(one.token), both ? h("span", { class: "shared", title: "in another list too" }, h("span", { "aria-hidden": "true" }, "⇄"), h("span", { class: "hidden" }, "in another list too")) : null),
      h("td", { class: "bar" }, h("div", { share: (Math.abs(one.weight) - least * 0.9) / (most - least * 0.9 || 1) })),
      h("td", { class: "number quiet" }, number(one.weight)));
  };
  const covered = model.coverage === null || model.coverage === undefined ? null
    : h("p", { class: "coverage" }, h("b", {}, `${Math.round(100 * model.coverage)} %`), ` of the text’s tokens are among the first ${tokens.length}`);
  const others = tokens.filter((one) => holding.get(one.token) > 1).length;
  const counts = model.kind === "sparse" && model.terms !== null
    ? h("p", { class: "quiet" }, `${count(model.terms)} terms of the text, ${count(model.expansion)} of expansion`) : null;
  const head = h("thead", {}, h("tr", {}, h("td"), h("th", { scope: "col" }, "token"), h("td"), h("th", { scope: "col", class: "number" }, "weight")));
  return h("section", { class: "column" },
    h("header", {}, h("h2", {}, own(model.model)), h("p", { class: "about" }, model.kind, model.head === "fitted" ? ", with a head fitted on the documents" : "")),
    h("div", {}, covered, counts,
    tokens.length ? h("table", { class: "tokens" }, head, h("tbody", {}, tokens.map(row))) : null,
    tokens.length ? h("p", { class: "quiet legend" }, h("span", {}, "● in the text"), h("span", {}, "○ not in the text"), models > 1 ? h("span", {}, `⇄ ${others} of ${tokens.length} in another list too`) : null) : null,
    model.dropped?.length ? h("p", { class: "dropped" }, h("b", {}, "Dropped "), model.dropped.flatMap((one, at) => (at ? [" ", own(one)] : [own(one)]))) : null,
    model.note ? h("p", { class: "note quiet" }, own(model.note)) : null));
}
