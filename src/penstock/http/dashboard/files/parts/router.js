/** The view is the address: "#/queues/%2F/orders?tab=messages". Copying it copies the view. */
import { Store } from "./ui.js";

function parse(hash) {
  const [path, search = ""] = hash.replace(/^#?\/?/, "").split(/\?(.*)/s);
  const names = path
    .split("/")
    .filter(Boolean)
    .map((part) => {
      try {
        return decodeURIComponent(part);
      } catch {
        return part;
      }
    });
  return { names: names.length ? names : ["overview"], params: Object.fromEntries(new URLSearchParams(search)) };
}

/** Where we are: {names: ["queues", "/", "orders"], params: {tab: "messages"}}. */
export const route = new Store(parse(location.hash));
addEventListener("hashchange", () => route.set(parse(location.hash)));

/**
 * The address of a view, for <a href>. The vhost of the selector is kept.
 * @param {string[]} names
 * @param {Object<string, string>} [params] "" and undefined leave a member out
 */
export function href(names, params = {}) {
  const all = { vhost: route.value.params.vhost, ...params };
  const kept = Object.entries(all).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return `#/${names.map(encodeURIComponent).join("/")}${kept.length ? `?${new URLSearchParams(kept)}` : ""}`;
}

/** Goes to a view. */
export const go = (names, params) => {
  location.hash = href(names, params);
};

/** Changes members of the address's query in place: no new step of "back". */
export function setParams(changes) {
  const address = href(route.value.names, { ...route.value.params, ...changes });
  history.replaceState(null, "", address);
  route.set(parse(address));
}
