// The board: sorting, filtering, and a note on every value. The table reads without any of it.
"use strict";
(() => {
  const number = (cell) => (cell.dataset.v === undefined ? null : Number(cell.dataset.v));

  // Rows without a value stay last whichever way the rest goes; every band (rows, controls) is sorted by itself.
  function sortRows(table, column, sign) {
    for (const body of table.tBodies) {
      const rows = [...body.rows].filter((row) => row.cells.length > 1);
      const key = (row) => (column === 0 ? row.cells[0].textContent.trim().toLowerCase() : number(row.cells[column]));
      rows.sort((a, b) => {
        const x = key(a), y = key(b);
        if (x === null || y === null) return (x === null) - (y === null);
        return sign * (typeof x === "string" ? x.localeCompare(y) : x - y);
      });
      body.append(...rows);
    }
  }

  function sortBy(button) {
    const table = button.closest("table");
    const head = button.closest("th");
    const column = button.dataset.sort === "name" ? 0 : Number(button.dataset.sort);
    const first = column === 0 || head.dataset.direction === "lower" ? "ascending" : "descending";
    const other = first === "ascending" ? "descending" : "ascending";
    const next = head.getAttribute("aria-sort") === first ? other : first;
    for (const th of table.querySelectorAll("th[aria-sort]")) th.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", next);
    sortRows(table, column, next === "ascending" ? 1 : -1);
  }

  function filter(input) {
    const table = document.getElementById(input.dataset.filter);
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0, all = 0;
    for (const row of table.querySelectorAll("tbody tr")) {
      if (row.cells.length < 2) continue;
      const text = row.cells[0].textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      all += 1;
      shown += row.hidden ? 0 : 1;
    }
    const count = document.querySelector(`[data-count="${input.dataset.filter}"]`);
    count.textContent = words.length ? `${shown} of ${all} shown` : "";
  }

  // One floating note for all values, shown to pointer and keyboard alike; Escape hides it.
  function notes() {
    const note = document.createElement("div");
    note.id = "note";
    note.className = "note-box";
    note.setAttribute("role", "tooltip");
    note.hidden = true;
    document.body.append(note);
    let owner = null;
    const hide = () => {
      note.hidden = true;
      if (owner) owner.removeAttribute("aria-describedby");
      owner = null;
    };
    const show = (link) => {
      hide();
      owner = link;
      note.replaceChildren(...link.dataset.note.split("\n").map((line) => {
        const paragraph = document.createElement("p");
        paragraph.textContent = line;
        return paragraph;
      }));
      note.hidden = false;
      link.setAttribute("aria-describedby", note.id);
      const at = link.getBoundingClientRect(), box = note.getBoundingClientRect();
      const left = Math.min(Math.max(8, at.left - 12), innerWidth - box.width - 8);
      const below = at.bottom + 8 + box.height < innerHeight;
      note.style.left = `${left}px`;
      note.style.top = `${below ? at.bottom + 8 : Math.max(8, at.top - box.height - 8)}px`;
    };
    for (const link of document.querySelectorAll("td.score a[title]")) {
      link.dataset.note = link.title;
      link.removeAttribute("title");
      const cell = link.closest("td");
      cell.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && show(link));
      cell.addEventListener("pointerleave", hide);
      link.addEventListener("focus", () => link.matches(":focus-visible") && show(link));
      link.addEventListener("blur", hide);
    }
    addEventListener("keydown", (event) => event.key === "Escape" && hide());
    addEventListener("scroll", hide, { capture: true, passive: true });
  }

  for (const button of document.querySelectorAll("button.sort")) button.addEventListener("click", () => sortBy(button));
  for (const input of document.querySelectorAll("[data-filter]")) {
    input.addEventListener("input", () => filter(input));
    input.form.addEventListener("submit", (event) => event.preventDefault());
    if (input.value) filter(input);
  }
  notes();
})();
