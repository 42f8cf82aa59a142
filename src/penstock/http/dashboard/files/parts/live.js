/** What changes by itself: events of the server, and lists that are asked for again. */
import { query, user, whoami } from "./api.js";
import { Store, useCallback, useEffect, useLayoutEffect, useRef, useState } from "./ui.js";

const STALE_MS = 3000;
const HIDDEN_MS = 10_000;

/** Whether the user has stopped all figures (the space bar). */
export const paused = new Store(false);
/** Whether events come: "live", "stale", or "off" if no page wants any. */
export const stream = new Store("off");
/** Whether the tab is hidden: nothing is asked for then. */
export const hidden = new Store(document.hidden);
document.addEventListener("visibilitychange", () => hidden.set(document.hidden));

/** The topic of a queue's events. */
export const queueTopic = (vhost, name) => `queue:${encodeURIComponent(vhost)}:${encodeURIComponent(name)}`;

const wanted = new Map(); // topic -> the functions that get its events
const latest = new Map(); // topic -> its newest event, while somebody wants it
let source = null;
let connecting = null;
let leaving = null;
let newest = 0;

function connect() {
  connecting = null;
  source?.close();
  source = null;
  if (!wanted.size || !user.value) return stream.set(wanted.size ? "stale" : "off");
  newest = Date.now();
  source = new EventSource(`api/penstock/events${query({ topics: [...wanted.keys()].join(",") })}`);
  for (const topic of wanted.keys()) {
    source.addEventListener(topic, (event) => {
      newest = Date.now();
      stream.set("live");
      if (paused.value) return;
      const data = JSON.parse(event.data);
      latest.set(topic, { topic, data, at: newest });
      for (const give of wanted.get(topic) ?? []) give(data);
    });
  }
  const mine = source;
  source.onerror = () => {
    // The browser tries again by itself, unless the answer was not a stream: 401, 503.
    if (mine.readyState === EventSource.CLOSED && mine === source) {
      stream.set("stale");
      whoami(); // is the session still there?
      connecting ??= setTimeout(connect, 5000);
    }
  };
}

const reconnect = () => {
  clearTimeout(connecting);
  connecting = setTimeout(connect, 20); // once for all components that a page draws
};

setInterval(() => {
  if (source && Date.now() - newest > STALE_MS) stream.set("stale");
}, 1000);
hidden.follow((isHidden) => {
  clearTimeout(leaving);
  if (isHidden)
    leaving = setTimeout(() => {
      source?.close();
      source = null;
    }, HIDDEN_MS);
  else if (!source) reconnect();
});
user.follow(reconnect);

function subscribe(topic, give) {
  const all = wanted.get(topic) ?? new Set();
  if (!all.size) reconnect();
  wanted.set(topic, all.add(give));
  return () => {
    all.delete(give);
    if (!all.size) {
      wanted.delete(topic);
      latest.delete(topic);
      reconnect();
    }
  };
}

/**
 * The newest event of a topic, once a second: {data, at}. data is null before the first one.
 * @param {string|null} topic "overview", queueTopic(...), or null for nothing
 */
export function useEvent(topic) {
  const [state, set] = useState(() => latest.get(topic) ?? { topic, data: null, at: 0 });
  useEffect(() => (topic ? subscribe(topic, (data) => set({ topic, data, at: Date.now() })) : undefined), [topic]);
  return state.topic === topic ? state : { topic, data: null, at: 0 };
}

/**
 * Asks once, and again each `seconds` while the tab is visible and not paused.
 * @param {() => Promise<any>} ask
 * @param {any[]} inputs asks at once when one of these changes; the old answer is kept meanwhile
 * @param {number} [seconds] 0: only once
 * @returns {{data: any, error: Error|null, at: number, isLoading: boolean, refresh: () => Promise<void>}}
 *   at: when data came, in milliseconds; after an error data is the last good answer, but null if what was asked for is gone.
 */
export function usePolled(ask, inputs, seconds = 3) {
  const [state, set] = useState({ data: null, error: null, at: 0, isLoading: true });
  const last = useRef({ ask, turn: 0, isAsking: false, hasSignedIn: false });
  last.current.ask = ask;
  const refresh = useCallback(async () => {
    const turn = ++last.current.turn;
    last.current.isAsking = true;
    last.current.hasSignedIn = false;
    try {
      const data = await last.current.ask();
      if (turn === last.current.turn) set({ data, error: null, at: Date.now(), isLoading: false });
    } catch (error) {
      if (turn !== last.current.turn) return undefined;
      if (last.current.hasSignedIn) return refresh(); // meanwhile: it was refused to nobody
      set((before) => ({ ...before, data: error.status === 404 ? null : before.data, error, isLoading: false }));
    } finally {
      if (turn === last.current.turn) last.current.isAsking = false;
    }
  }, []);
  // Before the browser paints: the answer is on its way meanwhile.
  useLayoutEffect(() => {
    set((before) => ({ ...before, isLoading: true }));
    refresh();
    const timer =
      seconds &&
      setInterval(() => {
        if (!hidden.value && !paused.value && user.value && !last.current.isAsking) refresh();
      }, seconds * 1000);
    // Who signs in again sees the view at once. An answer that is on its way, at the start, is waited for.
    const end = user.follow((value) => {
      if (value && last.current.isAsking) last.current.hasSignedIn = true;
      else if (value) refresh();
    });
    return () => {
      clearInterval(timer);
      end();
      last.current.turn++;
    };
  }, [...inputs, seconds]);
  return { ...state, refresh };
}
