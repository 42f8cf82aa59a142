/** Samples over time: those that the server kept, and those that have come since. */
import { get } from "./api.js";
import { paused, useEvent } from "./live.js";
import { useEffect, useRef, useState } from "./ui.js";

/** The ranges of charts: [key, title, seconds, seconds between two samples]. */
export const RANGES = [
  ["10m", "10 min", 600, 1],
  ["2h", "2 h", 7200, 10],
  ["24h", "24 h", 86_400, 60],
];

/**
 * Rows {time, ...}, the oldest first, of a topic's events.
 * @param {string|null} topic of parts/live.js
 * @param {string[]} paths of the server's samples, one for each vhost, or one for a queue
 * @param {(event: Object) => Object} rowOf the row of an event, without time
 * @param {(rows: Object[]) => Object} joined the row of samples of the same time, one of each path
 * @param {string} range the key of RANGES
 */
export function useSamples(topic, paths, rowOf, joined, range) {
  const { data, at } = useEvent(topic);
  const [past, setPast] = useState([]);
  const fresh = useRef([]);
  const [, , span, step] = RANGES.find(([key]) => key === range) ?? RANGES[0];
  const question = JSON.stringify([topic, paths, step]);
  useEffect(() => {
    let isOld = false;
    fresh.current = [];
    const load = () =>
      Promise.all(paths.map((path) => get(path, { step }))).then(
        (all) => {
          if (isOld || paused.value) return;
          const rows = new Map();
          for (const one of all)
            for (const row of one.samples) rows.set(row.time, [...(rows.get(row.time) ?? []), row]);
          setPast([...rows].sort(([a], [b]) => a - b).map(([time, some]) => ({ ...joined(some), time })));
          fresh.current = fresh.current.filter((row) => row.time > (past.at(-1)?.time ?? 0));
        },
        () => {},
      );
    load();
    const timer = step > 1 && setInterval(load, step * 1000);
    return () => {
      isOld = true;
      clearInterval(timer);
    };
  }, [question]);
  if (data && fresh.current.at(-1)?.at !== at) {
    fresh.current.push({ ...rowOf(data), time: data.time ?? at / 1000, at });
    if (fresh.current.length > 600) fresh.current.shift();
  }
  const last = past.at(-1)?.time ?? 0;
  const rows = step === 1 ? [...past, ...fresh.current.filter((row) => row.time > last)] : past;
  const from = (rows.at(-1)?.time ?? 0) - span;
  return { event: data, at, rows: rows.filter((row) => row.time >= from) };
}
