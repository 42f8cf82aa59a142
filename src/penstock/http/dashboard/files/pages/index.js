/**
 * The pages. Each is a module of this directory that exports a component by default; it gets
 * names (of the address, its own path first), params (of the address) and vhost (of the selector).
 *
 * path: the first name of the address. title. nav: its text in the navigation, if it is there.
 * key: goes there after "g". load: imports it.
 */
export const PAGES = [
  { path: "overview", title: "Overview", nav: "Overview", key: "o", load: () => import("./overview.js") },
  { path: "queues", title: "Queues", nav: "Queues", key: "q", load: () => import("./queues.js") },
];

/** The page of an address, or undefined. */
export const pageOf = (names) => PAGES.find((page) => page.path === names[0]);
