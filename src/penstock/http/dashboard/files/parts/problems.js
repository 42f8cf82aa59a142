/** What is wrong now, as the server says it, and about what of it this browser is silent. */
import { useEvent } from "./live.js";
import { remember, remembered, Store } from "./ui.js";

const HOUR_MS = 3_600_000;

function read() {
  try {
    return Object.fromEntries(
      Object.entries(JSON.parse(remembered("silenced", "{}"))).filter(([, until]) => until > Date.now()),
    );
  } catch {
    return {};
  }
}

/** Problem -> until when it is silenced, in milliseconds; null before the first problem. */
const silenced = new Store(null);

/** A problem without its figures: it is the same one when these have changed. */
const keyOf = ({ text }) => text.replace(/\d+([.,:]\d+)*/g, "#");

/** Is silent about a problem for an hour, in this browser; or not any more. */
export function silence(problem, isSilent = true) {
  const { [keyOf(problem)]: _, ...others } = read();
  const now = isSilent ? { ...others, [keyOf(problem)]: Date.now() + HOUR_MS } : others;
  remember("silenced", JSON.stringify(now));
  silenced.set(now);
}

/**
 * {all, loud}: the problems of the newest event, the worst first, each with `until` if it is silenced; those that are not. all
 * is null before the first event.
 */
export function useProblems() {
  const { data } = useEvent("overview");
  silenced.use();
  const now = Date.now();
  const untilOf = (one) => {
    silenced.value ??= read();
    return silenced.value[keyOf(one)];
  };
  const all = data?.problems.map((one) => ({
    ...one,
    until: untilOf(one) > now ? untilOf(one) : undefined,
  }));
  return { all: all ?? null, loud: all?.filter((one) => !one.until) ?? [] };
}
