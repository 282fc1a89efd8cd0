// The latents of one dictionary: find, order, page through, and read contexts with highlighted tokens.
"use strict";
(() => {
  const { load, address, element: el, isolate, failure } = window.latentbench;
  const byId = (id) => document.getElementById(id);
  const list = byId("latents");
  const { name, root, steering } = list.dataset;
  const PER_PAGE = 10;
  const fields = Object.fromEntries(["find", "order", "show"].map((field) => [field, byId(`latent-${field}`)]));
  let index = null, chosen = [], page = 0, drawing = 0;

  // Line ends, tabs and characters that turn the direction of writing are shown as what they are.
  const visible = (token) => token.replace(/\r/g, "").replace(/[\n\u2028\u2029]/g, "↵\n").replace(/\t/g, "⇥")
    .replace(/[\u202a-\u202e\u2066-\u2069]/g, (c) => `‹U+${c.charCodeAt(0).toString(16).toUpperCase()}›`);

  function tokens(context) {
    const text = el("p", "context");
    text.dir = "auto";
    context.w.forEach((token, i) => {
      const step = context.h[i] || 0;
      if (!step && i !== context.i) return text.append(visible(i ? token : token.trimStart()));
      text.append(el("span", `tok h${step}${i === context.i ? " at" : ""}`, visible(token)));
    });
    return text;
  }

  function context(one) {
    const where = `${one.o || "unnamed source"}, document ${one.d.slice(0, 12)}, offset ${one.s}–${one.f}`;
    const strength = one.a === null ? "" : `activation ${one.a} · `;
    const head = el("p", "where sub", strength, isolate(where));
    const text = one.w ? tokens(one) : el("p", "withheld", "text withheld: source terms");
    return el("li", "", text, head);
  }

  const contexts = (all) => el("ol", "contexts", ...all.map(context));

  function verdict(one) {
    const score = one.s === null ? el("b", "", `unscored: ${one.x}`) : el("b", "", one.s.toFixed(2));
    return el("span", "verdict", isolate(one.j), " ", score, one.r ? el("span", "sub", " ", isolate(one.r)) : null);
  }

  function density(active) {
    const share = active === 0 ? "none" : `${Number((100 * active / index.tokens).toPrecision(2))} %`;
    return `active on ${share} of ${index.tokens.toLocaleString("en")} tokens`;
  }

  function sample(one) {
    const link = el("a", "", isolate(one.c));
    link.href = `${steering}#${one.a}`;
    const others = one.l === 1 ? "alone" : `with ${one.l - 1} other${one.l === 2 ? "" : "s"}`;
    const said = (title, text) => {
      const paragraph = el("p", "said", el("span", "prompt", visible(one.h)), text ? visible(text) : el("i", "", "(nothing)"));
      paragraph.dir = "auto";
      return el("div", "", el("p", "sub", title), paragraph);
    };
    return el(
      "li", "",
      el("p", "", link, el("span", "sub", ` · ${one.m}, ${others}, factor ${one.f} · `), el("b", one.s ? "yes" : "no", one.s ? "✓ success" : "✗ no success")),
      el("div", "sides", said("Unsteered", one.b), said("Steered", one.w)),
    );
  }

  function card(latent) {
    const article = el("article", "latent");
    const facts = [
      latent.y === null ? "" : density(latent.y),
      latent.e === null ? "" : `${latent.e.toLocaleString("en")} token${latent.e === 1 ? "" : "s"} above the lowest threshold`,
      latent.t === null ? "" : `${latent.t} token class${latent.t === 1 ? "" : "es"}`,
      latent.k.length ? `kept at ${latent.k.join(", ")}` : "",
    ].filter(Boolean);
    const link = el("a", "", `Latent ${latent.n}`);
    link.href = `#latent=${latent.n}`;
    article.append(el("h2", "", link), el("p", "sub", facts.join(" · ")));
    if (latent.g.length) {
      const words = latent.g.flatMap((token) => [" ", el("code", "", isolate(visible(token).replace("\n", "")))]);
      article.append(el("p", "promotes sub", "Its direction promotes (logit lens):", ...words));
    }
    if (latent.v.length) article.append(el("p", "verdicts", ...latent.v.map(verdict)));
    if (latent.p.length) article.append(contexts(latent.p));
    else if (!latent.z.length) article.append(el("p", "sub", "no contexts stored"));
    if (latent.m > latent.p.length) article.append(el("p", "sub", `the strongest ${latent.p.length} of ${latent.m} contexts`));
    if (latent.q.length) {
      article.append(el("details", "", el("summary", "", "Texts without this latent, as the judge saw them"), contexts(latent.q)));
    }
    if (latent.z.length) {
      const count = `What steering by it wrote, for ${latent.z.length} concept${latent.z.length === 1 ? "" : "s"}`;
      article.append(el("details", "steers", el("summary", "", count), el("ol", "contexts", ...latent.z.map(sample))));
    }
    return article;
  }

  async function draw() {
    const turn = (drawing += 1);
    const last = Math.max(0, Math.ceil(chosen.length / PER_PAGE) - 1);
    page = Math.min(Math.max(0, page), last);
    const here = chosen.slice(page * PER_PAGE, (page + 1) * PER_PAGE);
    try {
      const numbers = [...new Set(here.map((i) => Math.floor(i / index.perShard)))];
      const shards = new Map(await Promise.all(numbers.map(async (n) => [n, await load(root, `${name}/${n}`)])));
      if (turn !== drawing) return; // a later choice is being drawn already
      const cards = here.map((i) => card(shards.get(Math.floor(i / index.perShard))[i % index.perShard]));
      list.replaceChildren(...(cards.length ? cards : [el("p", "empty", "No latent fits.")]));
      byId("latent-count").textContent = `${chosen.length.toLocaleString("en")} of ${index.latent.length.toLocaleString("en")} latents`;
      byId("latent-page").textContent = `page ${page + 1} of ${last + 1}`;
      byId("latent-previous").disabled = page === 0;
      byId("latent-next").disabled = page === last;
      byId("latent-pager").hidden = last === 0;
    } catch (error) {
      list.replaceChildren(failure(error));
    }
  }

  const orders = () => [
    ...index.judges.map((judge, j) => [`score by ${judge}`, (i) => index.scores[j][i], -1]),
    ["tokens above the lowest threshold", (i) => index.events[i], -1],
    ...(index.tokens === null ? [] : [["density, most active first", (i) => index.active[i], -1], ["density, least active first", (i) => index.active[i], 1]]),
    ["number", (i) => index.latent[i], 1],
  ];

  const kinds = () => [
    ["all", () => true],
    ...[...new Set(index.kept.flat())].sort((a, b) => b - a).map((at) => [`kept at ${at}`, (i) => index.kept[i].includes(at)]),
    ...(index.judges.length ? [["judged", (i) => index.scores.some((score) => score[i] !== null)]] : []),
    ...(index.texts.some(Boolean) && !index.texts.every(Boolean) ? [["with text", (i) => index.texts[i] > 0]] : []),
    ...(index.steered.some(Boolean) ? [["steered", (i) => index.steered[i] > 0]] : []),
  ];

  function choose(first) {
    const words = fields.find.value.trim().toLowerCase();
    const [, key, sign] = orders()[fields.order.selectedIndex];
    const fits = kinds()[fields.show.selectedIndex][1];
    const found = (i) => !words || (/^\d+$/.test(words) ? String(index.latent[i]) === words : index.word[i].toLowerCase().includes(words));
    const values = index.latent.map((_, i) => key(i));
    chosen = index.latent.map((_, i) => i).filter((i) => fits(i) && found(i));
    chosen.sort((a, b) => {
      const x = values[a], y = values[b];
      if (x === null || y === null) return (x === null) - (y === null);
      return sign * (x - y);
    });
    page = first;
    return draw();
  }

  function toAddress(step) {
    const state = Object.entries(fields).map(([name, field]) => [name, field.value]);
    address.write({ ...Object.fromEntries(state), page: page ? page + 1 : "" }, step);
  }

  function turnTo(step) {
    page += step;
    draw().then(() => list.scrollIntoView({ block: "start" }));
    toAddress(true);
  }

  // Links everywhere hold #latent=12: that latent alone, whatever was chosen before.
  function fromAddress() {
    const { latent, ...asked } = address.read();
    const state = /^\d+$/.test(latent) ? { find: latent } : asked;
    for (const [name, field] of Object.entries(fields)) {
      const wanted = state[name] || "";
      field.value = wanted;
      if (field.value !== wanted) field.value = ""; // an address of another dictionary
    }
    choose(/^\d+$/.test(state.page) ? state.page - 1 : 0);
  }

  // The first choice is the usual one, which the address leaves out.
  const options = (labels) => labels.map((label, i) => {
    const option = el("option", "", label);
    option.value = i ? label : "";
    return option;
  });

  async function start() {
    try {
      index = await load(root, `${name}/index`);
    } catch (error) {
      list.replaceChildren(failure(error));
      return;
    }
    fields.order.append(...options(orders().map(([label]) => label)));
    fields.show.append(...options(kinds().map(([label]) => label)));
    byId("latent-tools").hidden = false;
    byId("latent-tools").addEventListener("submit", (event) => event.preventDefault());
    for (const field of Object.values(fields)) {
      let typing = false; // a word is one step for the back button, not one for every letter
      field.addEventListener("focus", () => (typing = false));
      field.addEventListener("input", () => {
        choose(0);
        toAddress(!typing);
        typing = field.type === "search";
      });
    }
    byId("latent-previous").addEventListener("click", () => turnTo(-1));
    byId("latent-next").addEventListener("click", () => turnTo(1));
    address.follow(fromAddress);
    fromAddress();
  }

  start();
})();
