// What a page shows, in its address: #find=route&sort=core.kl. Copied addresses and the back button work.
"use strict";
window.latentbench.address = (() => {
  const read = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

  // A choice is a step of its own for the back button; typing and corrections replace the present one.
  function write(state, step) {
    const kept = Object.entries(state).filter(([, value]) => value);
    const hash = kept.length ? `#${new URLSearchParams(kept)}` : location.pathname + location.search;
    if (kept.length ? hash === location.hash : !location.hash) return;
    if (step) history.pushState(null, "", hash);
    else history.replaceState(null, "", hash);
  }

  // The back button fires popstate, an edited address hashchange too: once is enough.
  function follow(show) {
    let last = location.hash;
    addEventListener("popstate", () => {
      last = location.hash;
      show();
    });
    addEventListener("hashchange", () => {
      if (location.hash !== last) show();
      last = location.hash;
    });
  }

  // Followed as a link, "Skip to content" would put #main in place of what the address holds.
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById("main").focus();
  });

  return { read, write, follow };
})();
