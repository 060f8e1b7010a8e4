// Runs before anything is painted, so that a chosen theme does not flash; the switch is set up once there is one.
"use strict";
(() => {
  const THEMES = ["system", "light", "dark"];
  const SIGNS = { system: "◐", light: "○", dark: "●" };
  const WORDS = { system: "as the system", light: "light", dark: "dark" };
  const root = document.documentElement;
  let theme = "system";
  try {
    const kept = localStorage.getItem("isthmus-theme");
    if (THEMES.includes(kept)) theme = kept;
  } catch {
    // Storage is switched off: the choice lasts as long as the page.
  }
  const apply = () => {
    if (theme === "system") delete root.dataset.theme;
    else root.dataset.theme = theme;
  };
  apply();
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const show = () => {
      button.textContent = SIGNS[theme];
      button.title = `Theme: ${WORDS[theme]}`;
      button.setAttribute("aria-label", button.title);
    };
    button.addEventListener("click", () => {
      theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
      try {
        localStorage.setItem("isthmus-theme", theme);
      } catch {
        // As above.
      }
      apply();
      show();
    });
    show();
  });
})();
