/*
 * What need not wait for the modules: the theme, so that the page does not flash; who is signed in; the modules of the page; and
 * the list of queues, which takes longest: as pages/queues.js asks for it if nothing was filtered or sorted.
 * Not a module: it blocks. The theme is in a cookie, since a browser may take 100 ms until it has opened localStorage.
 */
{
  const theme = /(?:^|; )penstock\.theme=(light|dark)/.exec(document.cookie);
  if (theme) document.documentElement.dataset.theme = theme[1];
  globalThis.penstockWhoami = fetch("api/whoami", { headers: { "X-Penstock": "1" } });
  globalThis.penstockWhoami.catch(() => {}); // parts/api.js says so
  globalThis.penstockQueueColumns =
    "name,vhost,type,state,durable,policy,messages_ready,messages_unacknowledged,messages,consumers,message_bytes,idle_since,message_stats.publish_details.rate,message_stats.deliver_get_details.rate,message_stats.ack_details.rate,penstock.alphas,penstock.betas,penstock.gammas,penstock.delta,penstock.why,penstock.set_aside,penstock.generation,arguments";
  globalThis.penstockAsked = new Map(); // address -> its first answer
  if (location.hash === "#/queues") {
    const list = `api/queues?columns=${encodeURIComponent(globalThis.penstockQueueColumns)}&page=1&page_size=50`;
    const answer = fetch(list, { headers: { "X-Penstock": "1" } });
    answer.catch(() => {});
    globalThis.penstockAsked.set(list, answer);
  }
  const names = location.hash.split("?")[0].split("/").slice(1);
  const page = names[0] === "queues" && names.length === 3 ? "queue" : names[0] || "overview"; // as pages/index.js says
  for (const link of document.querySelectorAll(`link[data-pages~="${CSS.escape(page)}"]`)) link.rel = "modulepreload";
}
