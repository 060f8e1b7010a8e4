// Lines between neighbouring columns that join a document's places: what moved, at a glance.

import { s } from "./elements.js";

let container = null;

/** Watches the results: lines follow their size, and a document under the pointer or focus stands out. */
function follow(element) {
  container = element;
  new ResizeObserver(draw).observe(element);
  const light = (event) => {
    const id = event.target.closest?.(".hit")?.dataset.id;
    for (const one of container.querySelectorAll("[data-id]")) one.classList.toggle("linked", one.dataset.id === id);
  };
  for (const kind of ["pointerover", "focusin"]) element.addEventListener(kind, light);
  element.addEventListener("pointerleave", () => light({ target: document.activeElement }));
}

function draw() {
  const grid = container.querySelector(".columns.several");
  if (!grid) return;
  grid.querySelector("svg.lines")?.remove();
  const columns = [...grid.querySelectorAll(".column")];
  const frame = grid.getBoundingClientRect();
  const corner = { left: frame.left - grid.scrollLeft, top: frame.top - grid.scrollTop };
  const lines = columns.slice(1).flatMap((column, at) => {
    const places = new Map([...columns[at].querySelectorAll(".hit")].map((one) => [one.dataset.id, one]));
    return [...column.querySelectorAll(".hit")].filter((one) => places.has(one.dataset.id)).map((one) => line(places.get(one.dataset.id), one, corner));
  });
  grid.append(s("svg", { class: "lines", "aria-hidden": "true", width: grid.scrollWidth, height: grid.scrollHeight }, lines));
}

function line(from, to, corner) {
  const [left, right] = [from.getBoundingClientRect(), to.getBoundingClientRect()];
  const [x, y] = [left.right - corner.left + 4, left.top - corner.top + 22];
  const [end, height] = [right.left - corner.left - 4, right.top - corner.top + 22];
  const middle = (x + end) / 2;
  const [before, after] = [from, to].map((one) => [...one.parentElement.children].indexOf(one));
  const kind = before === after ? "same" : before > after ? "up" : "down";
  return s("path", { d: `M${x} ${y}C${middle} ${y} ${middle} ${height} ${end} ${height}`, class: kind, "data-id": to.dataset.id });
}

/** The emblem: what is broad on either side, and the narrow bridge between. */
export function strait(lines = 36) {
  const order = (at) => ((at * 23) % lines) / (lines - 1); // as if ranked anew
  const paths = Array.from({ length: lines }, (_, at) => {
    const [from, to, neck] = [at / (lines - 1), order(at), 0.47 + 0.06 * (at / (lines - 1))].map((share) => (share * 100).toFixed(2));
    return s("path", { d: `M0 ${from}C30 ${from} 32 ${neck} 50 ${neck}S70 ${to} 100 ${to}` });
  });
  return s("svg", { class: "strait", viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" }, paths);
}

export const connect = { follow, draw };
