/** What every component uses: html`...` of htm, and the hooks of Preact. */
import htm from "../lib/htm.js";
import { useEffect, useState } from "../lib/hooks.js";
import { h } from "../lib/preact.js";

export { Fragment, h, render } from "../lib/preact.js";
export { useCallback, useEffect, useId, useLayoutEffect, useMemo, useReducer, useRef, useState } from "../lib/hooks.js";
export const html = htm.bind(h);

/**
 * A value that components follow. `use()` is a hook; `set` draws again whoever uses it.
 * @template T
 */
export class Store {
  /** @param {T} value */
  constructor(value) {
    this.value = value;
    this._followers = new Set();
  }

  /** @param {T} value */
  set(value) {
    if (Object.is(value, this.value)) return;
    this.value = value;
    for (const follower of [...this._followers]) follower(value);
  }

  /** Calls `follower` at each change; returns a function that ends it. */
  follow(follower) {
    this._followers.add(follower);
    return () => this._followers.delete(follower);
  }

  /** @returns {T} */
  use() {
    const [, draw] = useState(0);
    const seen = this.value; // it may change before the effect
    useEffect(() => {
      const end = this.follow(() => draw((n) => n + 1));
      if (!Object.is(seen, this.value)) draw((n) => n + 1);
      return end;
    }, [this]);
    return this.value;
  }
}

/**
 * What the browser remembers for the user, such as what is silenced. Never anything secret. Not for what a page needs at once:
 * a browser may take 100 ms until it has opened its storage.
 */
export function remembered(name, otherwise) {
  try {
    return localStorage.getItem(`penstock.${name}`) ?? otherwise;
  } catch {
    return otherwise;
  }
}

/** Remembers a text, if the browser lets us. */
export function remember(name, text) {
  try {
    localStorage.setItem(`penstock.${name}`, text);
  } catch {
    /* storage is switched off */
  }
}
