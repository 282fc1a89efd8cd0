// Transcripts of one dictionary, loaded concept by concept: unsteered and steered text side by side.
"use strict";
(() => {
  const { load, element: el, isolate, failure } = window.latentbench;

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

  function table(place, shard) {
    const body = el("tbody", "");
    const heads = ["Prompt half", "Unsteered", "Steered"].map((title) => el("th", "", title));
    for (const th of heads) th.scope = "col";
    const [methods, methodLabel] = choice("Method", shard.methods);
    const [factors, factorLabel] = choice("Factor", []);
    let used = [];
    const draw = () => rows(shard, methods.selectedIndex, used[factors.selectedIndex], body);
    const offer = () => {
      const asked = used[factors.selectedIndex];
      used = shard.factors.map((_, i) => i).filter((i) => shard.rows.some((row) => row[1] === methods.selectedIndex && row[2] === i));
      factors.replaceChildren(...used.map((i) => el("option", "", shard.factors[i])));
      factors.selectedIndex = used.includes(asked) ? used.indexOf(asked) : Math.floor((used.length - 1) / 2);
      draw();
    };
    methods.addEventListener("input", offer);
    factors.addEventListener("input", draw);
    offer();
    const made = el("table", "plain transcript", el("thead", "", el("tr", "", ...heads)), body);
    made.setAttribute("aria-label", `Texts for ${place.dataset.concept}`);
    return [el("p", "tools", shard.methods.length > 1 ? methodLabel : null, factorLabel), made];
  }

  function prepare(place) {
    const details = el("details", "", el("summary", "", "Texts side by side"));
    details.addEventListener("toggle", async () => {
      if (!details.open || details.dataset.loaded) return;
      details.dataset.loaded = "yes";
      try {
        details.append(...table(place, await load(place.dataset.root, place.dataset.name)));
      } catch (error) {
        details.append(failure(error));
      }
    });
    place.append(details);
    return details;
  }

  const made = [...document.querySelectorAll(".transcripts")].map((place) => [place.closest("section"), prepare(place)]);
  const open = () => {
    const asked = made.find(([section]) => `#${section.id}` === location.hash) || (location.hash ? null : made[0]);
    if (asked) asked[1].open = true;
  };
  addEventListener("hashchange", open);
  open();
})();
