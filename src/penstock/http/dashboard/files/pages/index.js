/**
 * The pages. Each is a module of this directory that exports a component by default; it gets
 * names (of the address, its own path first), params (of the address) and vhost (of the selector).
 *
 * path: the first name of the address. title. nav: its text in the navigation, if it is there.
 * names: how many names the address has, if that is said; a page without it has the others. key: goes there after "g". load: imports it.
 */
export const PAGES = [
  { path: "overview", title: "Overview", nav: "Overview", key: "o", load: () => import("./overview.js") },
  { path: "queues", title: "Queues", nav: "Queues", key: "q", load: () => import("./queues.js") },
  { path: "queues", names: 3, title: "Queue", load: () => import("./queue.js") },
  { path: "streams", title: "Streams", nav: "Streams", key: "s", load: () => import("./streams.js") },
  { path: "leases", title: "Leases and batches", nav: "Leases & batches", key: "l", load: () => import("./leases.js") },
  { path: "pipelines", title: "Pipelines", nav: "Pipelines", key: "p", load: () => import("./pipelines.js") },
  { path: "exchanges", title: "Exchanges", nav: "Exchanges", key: "x", load: () => import("./exchanges.js") },
  { path: "connections", title: "Connections", nav: "Connections", key: "c", load: () => import("./connections.js") },
  { path: "vhosts", title: "Vhosts", nav: "Vhosts", key: "v", load: () => import("./vhosts.js") },
  { path: "admin", title: "Admin", nav: "Admin", key: "d", load: () => import("./admin.js") },
  { path: "alarms", title: "Alarms", nav: "Alarms", key: "a", load: () => import("./alarms.js") },
  { path: "log", title: "Log", nav: "Log", key: "i", load: () => import("./log.js") },
];

/** The page of an address, or undefined. */
export const pageOf = (names) => {
  const some = PAGES.filter((page) => page.path === names[0]);
  return some.find((page) => page.names === names.length) ?? some.find((page) => page.names === undefined);
};
