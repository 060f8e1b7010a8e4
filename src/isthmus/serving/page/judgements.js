// Relevance, judged from 0 to 3: buttons wherever a document is shown, and the way back.

import { get, post } from "./api.js";
import { h, tell } from "./elements.js";

const GRADES = ["not relevant", "related", "relevant", "perfect"];

export class Judgements {
  constructor(about) {
    this.on = about.judging;
    this.query = "";
    this.grades = new Map();
    this.last = null; // the newest change, for undo
  }

  /** Reads what was judged for a query. */
  async load(query, signal) {
    if (!this.on) return;
    this.query = query;
    this.grades = new Map();
    this.last = null;
    try {
      const { grades } = await get("judgements", { q: query }, signal);
      this.grades = new Map(Object.entries(grades));
      this.show();
    } catch (error) {
      if (!signal.aborted) tell(`Judgements could not be read: ${error.message}`);
    }
  }

  /** Four buttons that judge a document; the pressed one takes its grade back. */
  buttons(id, title, tabindex = 0) {
    if (!this.on) return null;
    const group = h("span", { class: "grades", role: "group", "aria-label": `Relevance of ${title}`, "data-grades": id },
      GRADES.map((name, grade) =>
        h("button", { type: "button", "data-grade": grade, tabindex, title: `${grade}: ${name}`, "aria-label": `${grade}: ${name}`,
          onclick: () => this.judge(id, this.grades.get(id) === grade ? null : grade) }, String(grade))));
    this.press(group);
    return group;
  }

  press(group) {
    const grade = this.grades.get(group.dataset.grades);
    group.classList.toggle("judged", grade !== undefined);
    for (const button of group.children) button.setAttribute("aria-pressed", Number(button.dataset.grade) === grade);
  }

  show() {
    for (const group of document.querySelectorAll("[data-grades]")) this.press(group);
  }

  /** Writes a grade, null to take it back; it shows at once, and goes back where the server refuses. */
  async judge(id, grade) {
    if (!this.on || !this.query) return;
    const before = this.grades.get(id) ?? null;
    const { query } = this;
    this.set(id, grade);
    try {
      await post("judgements", { query, id, grade });
    } catch (error) {
      if (query === this.query) this.set(id, before);
      tell(`Not judged: ${error.message}`);
      return;
    }
    this.last = { query, id, before };
    tell(grade === null ? "Judgement taken back." : `Judged ${grade}: ${GRADES[grade]}.`, () => this.undo());
  }

  set(id, grade) {
    if (grade === null) this.grades.delete(id);
    else this.grades.set(id, grade);
    this.show();
  }

  /** Takes the newest change back. */
  undo() {
    const { last } = this;
    if (!last || last.query !== this.query) return;
    this.last = null;
    this.judge(last.id, last.before);
  }
}
