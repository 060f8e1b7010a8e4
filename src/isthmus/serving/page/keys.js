// The keyboard: everything that the page does without a pointer.

import { $, h } from "./elements.js";

const KEYS = [
  ["/", "go to the search box"],
  ["↓ ↑", "from the box to the results, and between them"],
  ["← →", "the same document in the next column"],
  ["Enter", "why this result, and its text"],
  ["Esc", "close the panel; in the box, empty it"],
  ["0 1 2 3", "judge the result: not relevant, related, relevant, perfect"],
  ["u", "take the last judgement back"],
  ["c", "all retrievers side by side, or one"],
  ["i", "inspect a text"],
  ["?", "this list"],
];

/** Listens to the whole page. */
export function listen({ search, panel, judgements, go, state }) {
  $("help").addEventListener("click", show);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.defaultPrevented) return;
    if ($("keys").open || $("token").open) return;
    const handled = event.target.matches("input, textarea, select") ? typed(event) : pressed(event);
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
    const id = event.target.closest(".hit")?.dataset.id ?? state().id;
    switch (event.key) {
      case "/":
        go({ view: null });
        $("query").focus();
        $("query").select();
        return true;
      case "?":
        show();
        return true;
      case "Escape":
        if (!state().id) return false;
        panel.close();
        return true;
      case "c":
        if (state().view) return false;
        search.compare();
        return true;
      case "i":
        go({ view: "inspect" });
        $("text").focus();
        return true;
      case "u":
        judgements.undo();
        return true;
      case "0": case "1": case "2": case "3":
        if (!id) return false;
        judgements.judge(id, Number(event.key));
        return true;
      case "ArrowUp": case "ArrowDown": case "ArrowLeft": case "ArrowRight":
        return event.target.closest("dialog") ? false : search.move(event.key);
      default:
        return false;
    }
  }
}

function show() {
  const dialog = $("keys");
  dialog.replaceChildren(
    h("h2", { id: "keys-title", tabindex: "-1" }, "Keys"),
    h("dl", {}, KEYS.flatMap(([keys, what]) => [h("dt", {}, keys.split(" ").map((key) => h("kbd", {}, key))), h("dd", {}, what)])),
    h("form", { method: "dialog" }, h("button", { class: "main" }, "Close")));
  dialog.showModal();
}
