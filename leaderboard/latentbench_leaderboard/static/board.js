// The board: sorting, filtering, and a note on every value. Its first rows read without any of it.
"use strict";
(() => {
  const { load, address, drawRow, failure } = window.latentbench;
  const byId = (id) => document.getElementById(id);
  const table = byId("board"), form = byId("filters"), more = byId("more");
  const { root, name: place } = table.dataset;
  const page = Number(table.dataset.page);
  const [groups, columns] = table.tHead.rows;
  const heads = [...columns.cells];
  const buttons = [...table.tHead.querySelectorAll("button.sort")];
  const names = ["find", "family", "judge", "suite", "rows"];
  const fields = () => names.map((name) => form.elements[name]).filter(Boolean);
  const sortedHead = heads.find((head) => head.hasAttribute("aria-sort"));
  const usual = sortedHead ? sortedHead.querySelector("button").dataset.sort : "";
  let state = {}, shown = page, turn = 0;

  const bands = [...table.tBodies].map((body) => ({
    body,
    title: [...body.rows].filter((row) => row.classList.contains("title")),
    rows: [...body.rows].filter((row) => !row.classList.contains("title")).map(fromPage),
  }));

  function fromPage(element) {
    const [head, ...cells] = element.cells;
    return {
      element,
      name: head.querySelector(".name").textContent,
      text: [...head.querySelectorAll(".name, .sub > bdi")].map((part) => part.textContent).join(" ").toLowerCase(),
      family: element.dataset.family,
      suites: JSON.parse(element.dataset.suites),
      values: cells.map((cell) => (cell.dataset.v === undefined ? null : Number(cell.dataset.v))),
    };
  }

  function fromShard(data) {
    return {
      data,
      name: data.n,
      text: [data.n, data.f, data.i].join(" ").toLowerCase(),
      family: data.f,
      suites: data.u || [],
      values: data.c.map((cell) => (cell.s === undefined ? null : cell.s)),
    };
  }

  let rest = null;
  function everyRow() {
    const shards = Number(table.dataset.shards);
    rest ||= Promise.all([...Array(shards).keys()].map((n) => load(root, `${place}/${n}`))).then((loaded) => {
      for (const data of loaded.flat()) bands.find(({ body }) => body.classList.contains(data.b)).rows.push(fromShard(data));
    });
    return rest;
  }

  function fits(row, band) {
    const words = (state.find || "").toLowerCase().split(/\s+/).filter(Boolean);
    return words.every((word) => row.text.includes(word)) && (!state.family || row.family === state.family) &&
      (!state.suite || row.suites.includes(state.suite)) && (!state.rows || band.body.classList.contains(state.rows));
  }

  // Rows without a value stay last whichever way the rest goes; every band is sorted by itself.
  function sorted(rows) {
    const key = state.sort || usual;
    if (!key) return rows;
    const column = heads.findIndex((head) => head.querySelector("button").dataset.sort === key);
    if (column < 0 && key !== "name") return rows;
    const sign = order(key) === "ascending" ? 1 : -1;
    if (key === "name") return [...rows].sort((a, b) => sign * a.name.toLowerCase().localeCompare(b.name.toLowerCase()));
    return [...rows].sort((a, b) => {
      const x = a.values[column], y = b.values[column];
      if (x === null || y === null) return (x === null) - (y === null);
      return sign * (x - y);
    });
  }

  function firstOrder(key) {
    const button = buttons.find((one) => one.dataset.sort === key);
    const head = button && button.closest("th");
    return !head || key === "name" || head.dataset.direction === "lower" ? "ascending" : "descending";
  }

  const other = (way) => (way === "ascending" ? "descending" : "ascending");
  const order = (key) => (state.order === "turned" ? other(firstOrder(key)) : firstOrder(key));

  function showColumns() {
    const visible = heads.map((head) => (!state.judge || !head.dataset.judge || head.dataset.judge === state.judge) &&
      (!state.suite || JSON.parse(head.dataset.suites).includes(state.suite)));
    heads.forEach((head, i) => (head.hidden = !visible[i]));
    let first = 0;
    for (const group of [...groups.cells].slice(1)) {
      group.dataset.columns ||= group.colSpan;
      const mine = visible.slice(first, (first += Number(group.dataset.columns)));
      group.hidden = !mine.includes(true);
      group.colSpan = Math.max(1, mine.filter(Boolean).length);
    }
    for (const { body } of bands) {
      for (const row of body.rows) if (row.cells.length > 1) visible.forEach((seen, i) => (row.cells[i + 1].hidden = !seen));
    }
  }

  function showHeads() {
    const key = state.sort || usual;
    for (const button of buttons) {
      const head = button.closest("th");
      if (button.dataset.sort === key) head.setAttribute("aria-sort", order(key));
      else head.removeAttribute("aria-sort");
    }
  }

  function showRows() {
    let left = shown, found = 0;
    const active = names.some((name) => state[name]);
    for (const band of bands) {
      const mine = sorted(band.rows.filter((row) => fits(row, band)));
      found += mine.length;
      const here = mine.slice(0, left);
      left -= here.length;
      for (const row of here) row.element ||= drawRow(root, row.data);
      const title = here.length || (!active && !band.rows.length) ? band.title : [];
      band.body.replaceChildren(...title, ...here.map((row) => row.element));
    }
    const total = Number(table.dataset.total);
    byId("count").textContent = active ? `${found.toLocaleString("en")} of ${total.toLocaleString("en")} shown` : "";
    byId("nothing").hidden = found > 0 || total === 0;
    if (more) more.parentElement.hidden = found <= shown;
  }

  const plain = () => shown === page && !Object.values(state).some(Boolean);

  async function show() {
    const mine = (turn += 1);
    try {
      if (!plain()) await everyRow();
    } catch (error) {
      table.parentElement.before(failure(error));
      return;
    }
    if (mine !== turn) return; // a later choice is being shown already
    showRows();
    showHeads();
    showColumns();
  }

  function fromAddress() {
    state = address.read();
    for (const field of fields()) {
      const wanted = state[field.name] || "";
      field.value = wanted;
      if (field.value !== wanted) state[field.name] = field.value = ""; // an address of another board
    }
    show();
  }

  function change(changes, step) {
    state = { ...state, ...changes };
    shown = page;
    address.write(state, step);
    show();
  }

  function sortBy(button) {
    const key = button.dataset.sort;
    const again = key === (state.sort || usual);
    const turned = again && state.order !== "turned" ? "turned" : "";
    change({ sort: key === usual ? "" : key, order: turned }, true);
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
    const noted = (target) => {
      const cell = target instanceof Element && target.closest("td.score");
      const link = cell && cell.querySelector("a[title], a[data-note]");
      if (link && link.title) {
        link.dataset.note = `${link.title}\n${heads[cell.cellIndex - 1].dataset.definition}`;
        link.removeAttribute("title");
      }
      return link;
    };
    const show = (link) => {
      if (link === owner) return;
      hide();
      owner = link;
      note.replaceChildren(...link.dataset.note.split("\n").filter(Boolean).map((line) => {
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
    addEventListener("pointerover", (event) => {
      const link = event.pointerType === "mouse" && noted(event.target);
      if (link) show(link);
      else hide();
    });
    addEventListener("focusin", (event) => {
      const link = noted(event.target);
      if (link && event.target.matches(":focus-visible")) show(link);
    });
    addEventListener("focusout", hide);
    addEventListener("keydown", (event) => event.key === "Escape" && hide());
    addEventListener("scroll", hide, { capture: true, passive: true });
  }

  for (const button of buttons) button.addEventListener("click", () => sortBy(button));
  for (const field of fields()) {
    let typing = false; // a word is one step for the back button, not one for every letter
    field.addEventListener("focus", () => (typing = false));
    field.addEventListener("input", () => {
      change({ [field.name]: field.value }, !typing);
      typing = field.type === "search";
    });
  }
  const reset = () => {
    for (const field of fields()) field.value = "";
    change(Object.fromEntries([...names, "sort", "order"].map((name) => [name, ""])), true);
  };
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    reset();
  });
  byId("clear").addEventListener("click", reset);
  if (more) more.addEventListener("click", () => {
    shown += page;
    show();
  });
  form.hidden = false;
  address.follow(fromAddress);
  if (location.hash.length > 1) fromAddress();
  notes();
})();
