// Why a document was found: term by term, word by word, sentence by sentence, retriever by retriever.

import { h, label, number, own, plural } from "./elements.js";

const TERMS = 12; // rows that are shown before the others unfold
const SENTENCES = 300; // that are shown

/** An explanation of any type, with those that it is made of inside. */
export function explained(explanation) {
  const { terms, words, sentences, fusion, before, passage, notes } = explanation;
  return h("div", { class: "explanation" },
    passage && (passage.heading || passage.number > 1) ? h("p", { class: "quiet" }, `Passage ${passage.number} counts`, passage.heading ? [", under ", own(passage.heading)] : "", ".") : null,
    fusion ? fused(fusion, explanation) : null,
    before ? rereading(before, explanation) : null,
    terms ? contributions(terms, explanation) : null,
    words ? answers(words, explanation) : null,
    sentences?.length ? shading(sentences) : null,
    (notes ?? []).map((note) => h("p", { class: "note quiet" }, own(note))),
    before ? nested(before, "Before re-ranking") : null);
}

/** What a field within several is called: its name, or type, and which model it has. */
function typeOf({ field, kind, model }) {
  return [label({ name: field ?? kind, type: kind }), model ? own(` ${model.split(/[/:]/).pop()}`, { class: "quiet" }) : ""];
}

function contributions(terms, { score }) {
  const most = Math.max(...terms.map((one) => Math.abs(one.contribution)), 1e-9);
  const row = (one) =>
    h("tr", { class: one.contribution === 0 ? "absent" : null },
      h("th", { scope: "row" }, own(one.term)),
      bar(one.contribution / most),
      h("td", { class: "number" }, number(one.contribution)),
      h("td", { class: "number quiet" }, `${number(one.query_weight)} × ${number(one.document_weight)}`),
      h("td", { class: "quiet" }, frequency(one)));
  const foot = h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, "score"), h("td"), h("td", { class: "number" }, number(score)), h("td"), h("td")));
  const head = h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "term"), h("td"), h("th", { scope: "col", class: "number" }, "adds"),
    h("th", { scope: "col", class: "number" }, "query × document"), h("th", { scope: "col" }, "found")));
  return h("figure", {}, h("figcaption", {}, "What each term adds to the score"),
    h("div", { class: "wide" }, h("table", { class: "terms" }, head, folding(terms.map(row)), foot)));
}

/** Each word of the query with the words of the text that are nearest to it. */
function answers(words, { score }) {
  const most = Math.max(...words.map((one) => Math.abs(one.contribution)), 1e-9);
  const row = (one) =>
    h("tr", {},
      h("th", { scope: "row" }, own(one.word)),
      bar(one.contribution / most),
      h("td", { class: "number" }, number(one.contribution)),
      h("td", { class: "number quiet" }, `${number(one.weight)} × ${number(one.product)}`),
      h("td", {}, own([...new Set(one.answers.map((answer) => answer.text))].join(", "))));
  const foot = h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, "score"), h("td"), h("td", { class: "number" }, number(score)), h("td"), h("td")));
  const head = h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "word"), h("td"), h("th", { scope: "col", class: "number" }, "adds"),
    h("th", { scope: "col", class: "number" }, "weight × product"), h("th", { scope: "col" }, "nearest in the text")));
  return h("figure", {}, h("figcaption", {}, "What each word of the query adds to the score"),
    h("div", { class: "wide" }, h("table", { class: "terms" }, head, folding(words.map(row)), foot)));
}

function frequency(one) {
  if (one.contribution === 0) return "not in the document";
  if (one.frequency === null || one.frequency === undefined) return "";
  return `${one.frequency}×${one.documents ? `, in ${plural(one.documents, "document")}` : ""}`;
}

/** Rows of a table; beyond the first dozen they come with a button. */
function folding(rows) {
  const body = h("tbody", {}, rows.slice(0, TERMS));
  if (rows.length > TERMS) {
    const more = h("tr", {}, h("td", { colspan: 9 },
      h("button", { type: "button", class: "plain", onclick: () => more.replaceWith(...rows.slice(TERMS)) }, `${rows.length - TERMS} more`)));
    body.append(more);
  }
  return body;
}

function bar(share) {
  return h("td", { class: `bar${share < 0 ? " less" : ""}` }, h("div", { share: Math.abs(share) }));
}

/** The text, its sentences the darker the more the score falls without them. */
function shading(sentences) {
  const most = sentences.reduce((most, one) => Math.max(most, Math.abs(one.contribution ?? 0)), 1e-9);
  const parts = sentences.slice(0, SENTENCES).flatMap((one) => {
    if (one.contribution === null) return [h("span", { class: "unread", title: "the model does not read this far" }, one.text), " "];
    const share = one.contribution / most;
    const said = Math.abs(share) > 0.25 ? h("sup", {}, `${share > 0 ? "+" : ""}${number(one.contribution)}`) : null;
    return [h("span", { class: share < 0 ? "less" : "more", share: Math.abs(share), title: number(one.contribution) }, one.text, said), " "];
  });
  return h("figure", {}, h("figcaption", {}, "How much the score falls without each sentence"), h("p", { class: "sentences", dir: "auto" }, parts),
    sentences.length > SENTENCES ? h("p", { class: "note quiet" }, `${plural(sentences.length - SENTENCES, "more sentence")}: the text below has them`) : null);
}

function fused(fusion, { score }) {
  const whole = fusion.parts.reduce((sum, one) => sum + Math.abs(one.contribution ?? 0), 0) || 1;
  const rows = fusion.parts.map((one) =>
    h("tr", {},
      h("th", { scope: "row" }, typeOf(one.explanation)),
      bar((one.contribution ?? 0) / whole),
      h("td", { class: "number" }, number(one.contribution)),
      h("td", { class: "number quiet" }, one.explanation.rank ? `rank ${one.explanation.rank}` : "not ranked"),
      h("td", { class: "number quiet" }, one.weight === null || one.weight === undefined ? "" : `weight ${number(one.weight)}`)));
  const foot = h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, "score"), h("td"), h("td", { class: "number" }, number(score)), h("td"), h("td")));
  return h("div", {},
    h("figure", {}, h("figcaption", {}, "What each retriever adds, by ", own(fusion.name.replaceAll("_", " "))),
      h("div", { class: "wide" }, h("table", { class: "terms" }, h("tbody", {}, rows), foot))),
    fusion.parts.map((one) => nested(one.explanation, typeOf(one.explanation))));
}

function rereading(before, { rank, score }) {
  const place = (at) => (at ? `rank ${at}` : "unranked");
  return h("p", { class: "jump" }, place(before.rank), h("span", { "aria-hidden": "true" }, " → "), h("span", { class: "hidden" }, " became "), h("b", {}, place(rank)),
    h("span", { class: "quiet" }, `  by a score of ${number(score)}; before: ${number(before.score)}`));
}

function nested(explanation, title) {
  const facts = [explanation.rank ? `rank ${explanation.rank}` : null, `score ${number(explanation.score)}`].filter(Boolean).join(", ");
  return h("details", { open: true }, h("summary", {}, h("b", {}, title), " ", h("span", { class: "quiet" }, facts)), explained(explanation));
}
