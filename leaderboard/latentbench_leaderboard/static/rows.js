// Rows of the board that the page does not hold yet, drawn from shards exactly as the page's own rows are.
"use strict";
window.latentbench.drawRow = (() => {
  const { element: el, isolate, shape, spoken } = window.latentbench;

  function link(className, href, ...content) {
    const made = el("a", className, ...content);
    made.href = href;
    return made;
  }

  function strip([value, low, high]) {
    const made = shape("svg", { class: "strip", viewBox: "0 0 100 8", "aria-hidden": "true" });
    made.append(shape("path", { class: "rail", d: "M0 4H100" }));
    if (high > low) made.append(shape("path", { class: "span", d: `M${low} 4H${high}` }));
    made.append(shape("circle", { cx: value, cy: 4, r: 2.6 }));
    return made;
  }

  function rank(cell) {
    const tie = cell.g ? el("span", "tie", spoken("tie group "), cell.g) : null;
    return el("span", "rank", spoken("rank "), cell.r, tie ? " " : null, tie);
  }

  function scored(cell, href) {
    const value = link("value", href, cell.v);
    value.title = cell.t;
    const made = el("td", cell.g === "a" ? "score best" : "score", el("span", "line", value, cell.r ? rank(cell) : null));
    made.dataset.v = cell.s;
    made.append(el("span", "ci", cell.i || "no interval"));
    if (cell.p) made.append(strip(cell.p));
    if (cell.m) made.append(el("span", "mark", cell.m));
    return made;
  }

  function cell(one, page) {
    const reason = el("span", "reason", one.e || "");
    if (one.k === "a") return el("td", "score absent", reason);
    const href = `${page}#${one.a}`;
    if (one.k === "s") return scored(one, href);
    const state = one.k === "f" ? "failed" : "unscored";
    const value = link("", href, one.k === "f" ? "failed" : "no score");
    value.title = one.t;
    return el("td", `score ${state}`, value, reason);
  }

  return (root, row) => {
    const page = `${root}dictionaries/${row.s}.html`;
    const about = el("span", "sub", isolate(row.f));
    if (row.i) {
      const sites = isolate(row.i);
      sites.className = "sites";
      about.append(" · ", sites);
    }
    const more = el("span", "sub");
    if (row.l) more.append(link("", `${root}latents/${row.s}.html`, "latents", spoken(` of ${row.n}`)), " · ");
    more.append(link("", `${root}compare.html#a=${row.s}`, "compare", spoken(` ${row.n}`)));
    const mark = row.r ? el("span", "mark", isolate(row.r)) : null;
    const head = el("th", "", link("name", page, isolate(row.n)), about, mark, more);
    head.scope = "row";
    const made = el("tr", "", head, ...row.c.map((one) => cell(one, page)));
    made.dataset.family = row.f;
    made.dataset.suites = JSON.stringify(row.u || []);
    return made;
  };
})();
