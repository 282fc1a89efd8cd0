// Two dictionaries: differences per metric, paired where both rows share their units, corrected by Holm.
"use strict";
(() => {
  const { load, element: el, isolate, shape, spoken, failure, address } = window.latentbench;
  const form = document.getElementById("choose"), place = document.getElementById("compared");
  const { a: first, b: second, all } = form.elements;
  const Z = 1.959963984540054;
  let index = null, turn = 0;

  // Complementary error function, within 1.2e-7 of its value everywhere (Press et al., Numerical Recipes, section 6.2).
  function erfc(x) {
    const t = 1 / (1 + 0.5 * x);
    const terms = [-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277];
    return t * Math.exp(-x * x + terms.reduceRight((sum, term) => sum * t + term, 0));
  }

  function deltas(cell) {
    const bytes = Uint8Array.from(atob(cell.d), (c) => c.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    return Array.from({ length: bytes.length / 2 }, (_, i) => view.getInt16(2 * i, true) * cell.k);
  }

  function pairedError(one, two) {
    const x = deltas(one), y = deltas(two);
    const apart = x.map((value, i) => value - y[i]);
    const mean = apart.reduce((sum, value) => sum + value, 0) / apart.length;
    return Math.sqrt(apart.reduce((sum, value) => sum + (value - mean) ** 2, 0) / apart.length);
  }

  function compared(column, one, two) {
    const why = !one || !two ? "not run" : one.m || two.m || "";
    const row = { column, one, two, why, p: null };
    if (why || one.v === undefined || two.v === undefined) return row;
    row.difference = one.v - two.v;
    row.paired = Boolean(one.u && one.u === two.u);
    if (!row.paired && (one.e === undefined || two.e === undefined)) return row;
    row.error = row.paired ? pairedError(one, two) : Math.hypot(one.e, two.e);
    if (row.difference === 0) row.p = 1;
    else row.p = row.error > 0 ? erfc(Math.abs(row.difference) / row.error / Math.SQRT2) : 0;
    return row;
  }

  function holm(rows) {
    const tested = rows.filter((row) => row.p !== null).sort((x, y) => x.p - y.p);
    let largest = 0;
    tested.forEach((row, i) => {
      largest = Math.max(largest, Math.min(1, (tested.length - i) * row.p));
      row.adjusted = largest;
    });
  }

  // Two significant digits of the standard error, the same for all numbers of a row.
  function formatter(row) {
    const size = Math.abs(row.difference || row.one?.v || row.two?.v || 0);
    const scale = row.error > 1e-6 * size ? row.error : size / 100; // draws are rounded, so 0 may not be quite 0
    const digits = scale > 0 ? Math.min(4, Math.max(0, 1 - Math.floor(Math.log10(scale)))) : 2;
    const options = { minimumFractionDigits: digits, maximumFractionDigits: digits };
    return (value) => (value === undefined ? "—" : value.toLocaleString("en", options).replace("-", "−").replace(/^−(0\.?0*)$/, "$1"));
  }

  function drawing(low, high) {
    const reach = Math.max(Math.abs(low), Math.abs(high)) || 1;
    const at = (value) => (50 + (46 * value) / reach).toFixed(1);
    const svg = shape("svg", { class: "strip", viewBox: "0 0 100 8", "aria-hidden": "true" });
    const paths = [["rail", "M0 4H100"], ["zero", "M50 0V8"], ["span", `M${at(low)} 4H${at(high)}`]];
    svg.append(...paths.map(([name, d]) => shape("path", { class: name, d })));
    return svg;
  }

  const chance = (p) => (p < 0.001 ? "< 0.001" : p.toFixed(3));

  function verdict(row) {
    if (row.adjusted === undefined) return row.why || "no interval, so no test";
    if (row.adjusted > 0.05) return "not separable";
    return row.difference > 0 === row.column.up ? "A better" : "B better";
  }

  function line(row) {
    const { column, one, two } = row;
    const said = formatter(row), verdictText = verdict(row);
    const arrow = el("span", "arrow", column.up ? " ↑" : " ↓");
    arrow.setAttribute("aria-hidden", "true");
    const about = [column.task, column.judge && `judge ${column.judge}`, column.setting].filter(Boolean).join(" · ");
    const head = el("th", "", isolate(column.title), arrow, spoken(column.up ? " higher is better" : " lower is better"), el("span", "sub", isolate(about)));
    head.scope = "row";
    const value = (cell) => el("td", "number", said(cell?.v));
    const cells = [value(one), value(two)];
    const low = row.difference - Z * row.error, high = row.difference + Z * row.error;
    const interval = row.error === undefined ? null : el("span", "sub", `${said(low)} to ${said(high)}`);
    cells.push(el("td", "number", el("b", "", said(row.difference)), " ", el("span", "unit", isolate(column.unit)), interval, interval && drawing(low, high)));
    cells.push(el("td", "number", row.adjusted === undefined ? "—" : chance(row.adjusted)));
    const units = row.paired ? `paired over ${one.n.toLocaleString("en")} ${one.o}s` : row.error === undefined ? "" : "unpaired";
    cells.push(el("td", "", el("b", row.adjusted <= 0.05 ? "yes" : "no", isolate(verdictText)), el("span", "sub", units)));
    return el("tr", "", head, ...cells);
  }

  function fact(which, row) {
    const link = el("a", "", isolate(row.n));
    link.href = `dictionaries/${row.s}.html`;
    const l0 = row.l === null ? "L0 not measured" : `measured L0 ${row.l.toLocaleString("en", { maximumFractionDigits: 2 })}`;
    return el("p", "", el("b", "", `${which} `), link, el("span", "sub", isolate(row.f), ` · ${l0}${row.c ? " · control" : ""}`));
  }

  function page(a, b, rows) {
    const made = el("tbody", "", ...rows.map(line));
    const heads = ["Metric", "A", "B", "A less B, 95 % interval", "p (Holm)", "Verdict"].map((text) => {
      const head = el("th", "", text);
      head.scope = "col";
      return head;
    });
    const table = el("table", "plain compared", el("thead", "", el("tr", "", ...heads)), made);
    const scroll = el("div", "scroll", table);
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", "Differences, scrolls sideways");
    const parts = [el("div", "pair", fact("A", a), fact("B", b))];
    if (a.l && b.l && Math.abs(a.l - b.l) > 0.05 * Math.max(a.l, b.l)) {
      parts.push(el("p", "mark", "These two are at different sparsities. Most scores move with L0, so a difference may say nothing else."));
    }
    if (a.s === b.s) parts.push(el("p", "empty", "A and B are the same dictionary."));
    return [...parts, rows.length ? scroll : el("p", "empty", "These two have no metric in common.")];
  }

  async function show() {
    const mine = (turn += 1);
    const [a, b] = [first.value, second.value].map((slug) => index.rows.find((row) => row.s === slug));
    try {
      const [one, two] = await Promise.all([a, b].map((row) => load("", `compare/${row.s}`)));
      if (mine !== turn) return;
      const columns = index.columns.filter((column) => column.m === a.m && (all.checked || column.main) && (one[column.id] || two[column.id]));
      const rows = columns.map((column) => compared(column, one[column.id], two[column.id]));
      holm(rows);
      place.replaceChildren(...page(a, b, rows));
    } catch (error) {
      place.replaceChildren(failure(error));
    }
  }

  function options(rows) {
    const families = Map.groupBy(rows, (row) => `${row.f}, ${row.lm}`);
    return [...families].sort(([x], [y]) => x.localeCompare(y)).map(([family, members]) => {
      const group = el("optgroup", "", ...members.map((row) => {
        const option = el("option", "", row.n);
        option.value = row.s;
        return option;
      }));
      group.label = family;
      return group;
    });
  }

  // B is always of A's language model: nothing else can be compared.
  function fillSecond(wanted) {
    const a = index.rows.find((row) => row.s === first.value);
    const rows = index.rows.filter((row) => row.m === a.m);
    second.replaceChildren(...options(rows));
    const other = rows.find((row) => row.s === wanted) || rows.find((row) => row.s !== a.s && !row.c) || rows[0];
    second.value = other.s;
  }

  function fromAddress() {
    const { a, b, all: every } = address.read();
    const known = index.rows.find((row) => row.s === a);
    first.value = known ? a : index.first[0] || index.rows[0].s;
    fillSecond(known ? b : index.first[1]);
    all.checked = every === "yes";
    show();
  }

  function toAddress() {
    address.write({ a: first.value, b: second.value, all: all.checked ? "yes" : "" }, true);
    show();
  }

  async function start() {
    try {
      index = await load("", "compare/index");
    } catch (error) {
      place.replaceChildren(failure(error));
      return;
    }
    first.append(...options(index.rows));
    form.hidden = false;
    form.addEventListener("submit", (event) => event.preventDefault());
    first.addEventListener("input", () => {
      fillSecond(second.value);
      toAddress();
    });
    for (const field of [second, all]) field.addEventListener("input", toAddress);
    document.getElementById("swap").addEventListener("click", () => {
      const [a, b] = [first.value, second.value];
      first.value = b;
      fillSecond(a);
      toAddress();
    });
    address.follow(fromAddress);
    fromAddress();
  }

  start();
})();
