/** Limits of vhosts and of users, for the pages that change them. */
import { at, del, put } from "../parts/api.js";
import { ask, ofVhost, shell } from "../parts/dialog.js";
import { grouped } from "../parts/format.js";

/** Of a vhost and of a user: [the limit's name, what it limits]. */
export const LIMITS = {
  vhost: [
    ["max-connections", "connections"],
    ["max-queues", "queues and streams"],
    ["max-exchanges", "exchanges"],
    ["max-bindings", "bindings"],
  ],
  user: [
    ["max-connections", "connections"],
    ["max-channels", "channels"],
    ["max-publish-rate", "messages published each second"],
  ],
};

/** A limit as people read it. value: undefined if it was not set. */
export const limitOf = (value) => (value === undefined ? "as the server says" : value < 0 ? "none" : grouped(value));

/**
 * Asks for the limits of a vhost or a user. Resolves to whether they were changed.
 * @param {"vhost"|"user"} kind
 * @param {string} name
 * @param {Object<string, number>} set the limits that were set
 */
export function editLimits(kind, name, set) {
  const changed = (v) =>
    LIMITS[kind].map(([key]) => [key, v[key]]).filter(([key, value]) => value !== (set[key] ?? ""));
  return ask({
    title: `Limits of ${name}`,
    action: "Change",
    fields: LIMITS[kind].map(([key, title]) => ({
      name: key,
      label: `Most ${title}`,
      type: "number",
      min: -1,
      value: set[key] ?? "",
      help: "empty: as the server says; -1: no limit",
    })),
    command: (v) =>
      changed(v)
        .map(([key, value]) => {
          const who = kind === "user" ? ` ${shell(name)}` : "";
          const where = kind === "vhost" ? ofVhost(name) : "";
          return value === ""
            ? `penstock clear_${kind}_limits${who} ${key}${where}`
            : `penstock set_${kind}_limits${who} ${shell(JSON.stringify({ [key]: value }))}${where}`;
        })
        .join("\n"),
    run: async (v) => {
      for (const [key, value] of changed(v)) {
        const path = at(`${kind}-limits`, name, key);
        await (value === "" ? del(path) : put(path, { value }));
      }
    },
    done: "The limits were changed.",
  });
}
