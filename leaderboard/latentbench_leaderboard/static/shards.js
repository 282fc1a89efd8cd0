// Shards of data. A page opened from a file can't fetch, but it can load a script that hands its data over.
"use strict";
const latentbench = (() => {
  const arrived = new Map();
  const asked = new Map();

  function load(root, name) {
    if (!asked.has(name)) {
      asked.set(name, new Promise((resolve, reject) => {
        const script = document.createElement("script");
        script.src = `${root}data/${name}.js`;
        script.onload = () => (arrived.has(name) ? resolve(arrived.get(name)) : reject(new Error(`${name} is damaged`)));
        script.onerror = () => reject(new Error(`${name} can't be loaded; is the site's folder complete?`));
        document.head.append(script);
      }));
    }
    return asked.get(name);
  }

  // Text only ever becomes text: nothing here makes markup from data.
  function element(tag, className, ...content) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    made.append(...content.filter((part) => part !== null && part !== undefined));
    return made;
  }

  // Shapes of a drawing, in the namespace of the page's own ones.
  function shape(tag, attributes) {
    const made = document.createElementNS(document.querySelector("svg").namespaceURI, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  const spoken = (text) => element("span", "sr", text); // for screen readers alone
  const isolate = (text) => element("bdi", "", text);
  const failure = (error) => element("p", "error", error.message);
  return { shard: (name, data) => arrived.set(name, data), load, element, isolate, shape, spoken, failure };
})();
window.latentbench = latentbench;
