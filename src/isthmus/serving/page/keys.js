// The keyboard: `/` the box, arrows between results, Esc back, 0 to 3 judge.

import { $ } from "./elements.js";

/** Listens to the whole page. */
export function listen({ search, panel, judgements, state }) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.defaultPrevented) return;
    if ($("token").open) return;
    const handled = event.target.matches("input, select") ? typed(event) : pressed(event);
    if (handled) event.preventDefault();
  });

  function typed(event) {
    if (event.target.id === "query" && event.key === "ArrowDown") return search.move("ArrowDown");
    if (event.key !== "Escape") return false;
    if (state().id) panel.close();
    else if (event.target.id === "query" && event.target.value) return false; // the browser empties it
    else event.target.blur();
    return true;
  }

  function pressed(event) {
    const { key } = event;
    if (key.startsWith("Arrow")) return event.target.closest("dialog") ? false : search.move(key);
    const id = event.target.closest(".hit")?.dataset.id ?? state().id;
    if (key === "/") $("query").focus();
    else if (key === "Escape" && state().id) panel.close();
    else if (/^[0-3]$/.test(key) && id) judgements.judge(id, Number(key));
    else return false;
    return true;
  }
}
