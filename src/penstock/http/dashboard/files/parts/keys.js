/** Single keys. None of them destroys anything, and they can be switched off. */
import { paused } from "./live.js";
import { go, href, route, setParams } from "./router.js";
import { RANGES } from "./samples.js";
import { openRow } from "./table.js";
import { remember, remembered } from "./ui.js";

let isOn;

/** Whether single keys do something. */
export const areKeysOn = () => (isOn ??= remembered("keys", "on") === "on");

export function setKeysOn(on) {
  isOn = on;
  remember("keys", on ? "on" : "off");
}

export const KEYS = [
  ["/", "search; also ctrl-k"],
  ["g, then o q s l p x", "overview, queues, streams, leases, pipelines, exchanges"],
  ["g, then c v d a i", "connections, vhosts, admin, alarms, log"],
  ["j, k", "next row, previous row"],
  ["enter", "open the row"],
  ["x", "select the row"],
  ["esc", "up"],
  ["space", "stop all figures, go on"],
  ["r", "sort the rows of the table now"],
  ["p", "the messages of this queue"],
  ["[, ]", "a shorter, a longer time of the charts"],
  ["?", "this list"],
];

/** Listens until the returned function is called. */
export function listen({ showKeys, pages }) {
  let afterG = 0;
  const onKey = (event) => {
    if (event.defaultPrevented || event.altKey || document.querySelector("dialog[open]")) return;
    const search = document.getElementById("search");
    if ((event.ctrlKey || event.metaKey) && event.key === "k") {
      event.preventDefault();
      return search?.focus();
    }
    if (event.ctrlKey || event.metaKey || !areKeysOn()) return;
    const target = event.target;
    if (target.closest?.("input,select,textarea,[contenteditable]")) return;
    const isControl = target.closest?.("a,button,summary");
    if (Date.now() - afterG < 1500) {
      afterG = 0;
      const page = pages.find((one) => one.key === event.key);
      if (page) go([page.path]);
      return;
    }
    const rows = [...document.querySelectorAll("main .table tbody tr[tabindex]")];
    const current = rows.indexOf(document.activeElement?.closest("tr"));
    if (event.key === "/") {
      event.preventDefault();
      search?.focus();
    } else if (event.key === "g") afterG = Date.now();
    else if (event.key === "j" || event.key === "k")
      rows[Math.max(0, Math.min(rows.length - 1, current + (event.key === "j" ? 1 : -1)))]?.focus();
    else if (event.key === "Enter" && !isControl && current >= 0) openRow(rows[current]);
    else if (event.key === "x" && current >= 0) rows[current].querySelector(".tick input")?.click();
    else if (event.key === "Escape") {
      const { names } = route.value;
      if (names.length > 1) go([names[0]]);
    } else if (event.key === " " && !isControl) {
      event.preventDefault();
      paused.set(!paused.value);
    } else if (event.key === "r") dispatchEvent(new Event("penstock:reorder"));
    else if (event.key === "p" && route.value.names[0] === "queues" && route.value.names.length === 3)
      location.hash = href(route.value.names, { ...route.value.params, tab: "messages" });
    else if (event.key === "[" || event.key === "]") {
      const now = RANGES.findIndex(([key]) => key === (route.value.params.range ?? RANGES[0][0]));
      const next = RANGES[now + (event.key === "]" ? 1 : -1)];
      if (next) setParams({ range: next[0] });
    } else if (event.key === "?") showKeys();
  };
  addEventListener("keydown", onKey);
  return () => removeEventListener("keydown", onKey);
}
