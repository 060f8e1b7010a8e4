// Elements without HTML strings: whatever a document holds ends as text.

/** An element; properties set attributes (false and null leave them out), on* listeners; strings become text. */
export function h(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "share") element.style.setProperty("--share", value.toFixed(4)); // no style attribute: the policy forbids it
    else element.setAttribute(key, value === true ? "" : value);
  }
  const given = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== "");
  element.append(...given.map((child) => (typeof child === "string" ? visible(child) : child)));
  return element;
}

/** A text whose characters that turn others round, or cannot be seen, can be: `\u202e` is no way to write. */
function visible(text) {
  return text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f\u202d\u202e]/gu, (found) => `\\u${found.codePointAt(0).toString(16).padStart(4, "0")}`);
}

/** Text from a document or a user within a line of ours: its direction stays its own. */
export function own(text, properties = {}) {
  return h("bdi", properties, text);
}

export const $ = (id) => document.getElementById(id);

/** Announces a text to screen readers; with `undo` it also shows, with a button. */
export function tell(text, undo = null) {
  const place = $("told");
  clearTimeout(tell.timer);
  place.replaceChildren(text, ...(undo ? [h("button", { type: "button", onclick: undo }, "Undo")] : []));
  place.classList.toggle("shown", Boolean(undo));
  tell.timer = setTimeout(() => place.classList.remove("shown"), 6000);
}

/** What went wrong, in the words of the server, and a way to try again. */
export function failure(error, again = null) {
  return h("div", { class: "failure", role: "alert" },
    h("p", { class: "what" }, own(error.message)),
    error.expected ? h("p", {}, own(error.expected)) : null,
    error.fix ? h("p", { class: "quiet" }, own(error.fix)) : null,
    again ? h("button", { type: "button", onclick: again }, "Try again") : null);
}

/** What else a document has, as chips: all of it, or the first `most`. */
export function fields(metadata, most = Infinity) {
  const entries = Object.entries(metadata ?? {});
  if (!entries.length) return null;
  const chips = entries.slice(0, most).map(([name, value]) => {
    const text = [value].flat().join(", ");
    return h("li", { title: `${name}: ${text}` }, own(`${name}:`, { class: "quiet" }), " ", own(text));
  });
  const left = entries.length - chips.length;
  return h("ul", { class: "fields", "aria-label": "Metadata" }, chips, left ? h("li", { class: "quiet" }, `${left} more`) : null);
}

const TYPES = { bm25: "BM25", dense: "Dense", sparse: "Sparse", tokens: "Tokens", fused: "Fused", reranked: "Re-ranked" };

/** A retriever's name as the page shows it: that of its type, or its own where it has another. */
export function label(retriever) {
  return retriever.name === retriever.type ? (TYPES[retriever.type] ?? retriever.name) : retriever.name;
}

const DIGITS = new Intl.NumberFormat("en", { minimumFractionDigits: 3, maximumFractionDigits: 3, useGrouping: false });
const COUNT = new Intl.NumberFormat("en");
export const number = (value) => (value === null || value === undefined ? "–" : DIGITS.format(value).replace("-", "−"));
export const count = (value) => COUNT.format(value);
export const plural = (value, word) => `${count(value)} ${word}${value === 1 ? "" : "s"}`;
