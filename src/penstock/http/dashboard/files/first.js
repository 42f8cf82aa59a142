/*
 * What need not wait for the modules: the theme, so that the page does not flash; who is signed in; and the modules of the page.
 * Not a module: it blocks. The theme is in a cookie, since a browser may take 100 ms until it has opened localStorage.
 */
{
  const theme = /(?:^|; )penstock\.theme=(light|dark)/.exec(document.cookie);
  if (theme) document.documentElement.dataset.theme = theme[1];
  globalThis.penstockWhoami = fetch("api/whoami", { headers: { "X-Penstock": "1" } });
  globalThis.penstockWhoami.catch(() => {}); // parts/api.js says so
  const names = location.hash.split("?")[0].split("/").slice(1);
  const page = names[0] === "queues" && names.length === 3 ? "queue" : names[0] || "overview"; // as pages/index.js says
  for (const link of document.querySelectorAll(`link[data-pages~="${CSS.escape(page)}"]`)) link.rel = "modulepreload";
}
