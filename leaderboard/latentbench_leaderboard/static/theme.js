// Light, dark, or what the system prefers. Runs before the page is drawn, so that it does not flash.
"use strict";
(() => {
  const order = ["auto", "light", "dark"];
  // Where storage is switched off, a choice lasts as long as the page.
  const stored = (action) => {
    try {
      return action();
    } catch {
      return null;
    }
  };
  const found = stored(() => localStorage.getItem("latentbench-theme"));
  let theme = order.includes(found) ? found : "auto";
  const apply = () => (document.documentElement.dataset.theme = theme);
  apply();
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const name = document.getElementById("theme-name");
    button.hidden = false;
    name.textContent = theme;
    button.addEventListener("click", () => {
      theme = order[(order.indexOf(theme) + 1) % order.length];
      stored(() => localStorage.setItem("latentbench-theme", theme));
      apply();
      name.textContent = theme;
    });
  });
})();
