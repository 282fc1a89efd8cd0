// Transcripts of one dictionary, loaded concept by concept: unsteered and steered text side by side.
// Links lead to #c0; a choice of method or factor makes that #concept=c0&method=Prompt&factor=2.
"use strict";
(() => {
  const { load, address, element: el, isolate, failure } = window.latentbench;

  function text(prompt, said) {
    const paragraph = el("p", "said", el("span", "prompt", prompt), said || el("i", "", "(nothing)"));
    paragraph.dir = "auto";
    return paragraph;
  }

  function verdict([, , , , concept, fluency, success, status]) {
    const parts = [
      concept === null ? "" : ` · concept ${concept.toFixed(2)}`,
      fluency === null ? "" : ` · fluency ${fluency.toFixed(2)}`,
      status === "ok" ? "" : ` · ${status}`,
    ];
    return el("p", "sub", el("b", success ? "yes" : "no", success ? "✓ success" : "✗ no success"), ...parts);
  }

  function rows(shard, method, factor, body) {
    body.replaceChildren(...shard.rows.filter((row) => row[1] === method && row[2] === factor).map((row) => {
      const prompt = shard.prompts[row[0]];
      const half = el("td", "half", el("span", "flag", prompt.half));
      return el("tr", "", half, el("td", "", text(prompt.prompt, prompt.plain)), el("td", "", text(prompt.prompt, row[3]), verdict(row)));
    }));
  }

  const choice = (title, names) => {
    const picker = el("select", "", ...names.map((name) => el("option", "", name)));
    return [picker, el("label", "", `${title} `, picker)];
  };

  function table(place, shard, changed) {
    const body = el("tbody", "");
    const heads = ["Prompt half", "Unsteered", "Steered"].map((title) => el("th", "", title));
    for (const th of heads) th.scope = "col";
    const [methods, methodLabel] = choice("Method", shard.methods);
    const [factors, factorLabel] = choice("Factor", []);
    let used = [];
    const usual = () => Math.floor((used.length - 1) / 2);
    const draw = () => rows(shard, methods.selectedIndex, used[factors.selectedIndex], body);
    const offer = (asked) => {
      used = shard.factors.map((_, i) => i).filter((i) => shard.rows.some((row) => row[1] === methods.selectedIndex && row[2] === i));
      factors.replaceChildren(...used.map((i) => el("option", "", shard.factors[i])));
      const known = used.findIndex((i) => shard.factors[i] === asked);
      factors.selectedIndex = known < 0 ? usual() : known;
      draw();
    };
    const show = ({ method, factor }) => {
      methods.selectedIndex = Math.max(0, shard.methods.indexOf(method));
      offer(factor);
    };
    const tell = () => changed({
      method: methods.selectedIndex ? methods.value : "",
      factor: factors.selectedIndex === usual() ? "" : factors.value,
    });
    methods.addEventListener("input", () => {
      offer(factors.value);
      tell();
    });
    factors.addEventListener("input", () => {
      draw();
      tell();
    });
    const made = el("table", "plain transcript", el("thead", "", el("tr", "", ...heads)), body);
    made.setAttribute("aria-label", `Texts for ${place.dataset.concept}`);
    return { show, parts: [el("p", "tools", shard.methods.length > 1 ? methodLabel : null, factorLabel), made] };
  }

  function prepare(place) {
    const section = place.closest("section");
    const summary = el("summary", "", "Texts side by side");
    const details = el("details", "", summary);
    let state = {}, made = null;
    const toAddress = (step) => address.write({ concept: section.id, ...state }, step);
    const changed = (choice) => {
      state = choice;
      toAddress(true);
    };
    details.addEventListener("toggle", async () => {
      if (!details.open || details.dataset.loaded) return;
      details.dataset.loaded = "yes";
      try {
        made = table(place, await load(place.dataset.root, place.dataset.name), changed);
        made.show(state);
        details.append(...made.parts);
      } catch (error) {
        details.append(failure(error));
      }
    });
    summary.addEventListener("click", () => {
      if (!details.open) toAddress(false); // reading on is no step to go back
    });
    place.append(details);
    const show = (choice) => {
      state = choice;
      if (made) made.show(state);
    };
    return { section, details, show };
  }

  const places = [...document.querySelectorAll(".transcripts")].map(prepare);

  // The address holds the choice for one concept; the others are shown as usual.
  function fromAddress(arriving) {
    const { concept, method, factor } = address.read();
    const asked = places.find(({ section }) => section.id === (concept || location.hash.slice(1))) || places[0];
    if (!asked) return;
    for (const one of places) one.show(one === asked ? { method, factor } : {});
    asked.details.open = true;
    const { top, bottom } = asked.section.getBoundingClientRect();
    const seen = !arriving && bottom > 0 && top < innerHeight;
    if (concept === asked.section.id && !seen) asked.section.scrollIntoView();
  }

  address.follow(() => fromAddress(false));
  fromAddress(true);
})();
