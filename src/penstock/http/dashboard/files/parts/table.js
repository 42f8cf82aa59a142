/**
 * Tables. What is shown (page, order, filter) is in the address; the server sorts and cuts long lists.
 * Rows keep their place while the pointer or the keyboard is at the table; only numbers change.
 */
import { get } from "./api.js";
import { grouped } from "./format.js";
import { useEvent, usePolled } from "./live.js";
import { href, route, setParams } from "./router.js";
import { html, useEffect, useRef, useState } from "./ui.js";
import { Problem } from "./words.js";

export const PAGE_ROWS = 50;
const FIRST_ROWS = 20;
const QUIET_MS = 10_000;
const TYPING_MS = 100; // who types faster is asked for when the hand rests

/** A member of a row: dig(row, "message_stats.publish_details.rate"). */
export const dig = (row, key) => key.split(".").reduce((at, part) => at?.[part], row);

/**
 * @typedef {Object} Column
 * @property {string} key a member of the row, dotted; also the sort key
 * @property {string} title
 * @property {(row: Object) => any} [render] otherwise the member as it is
 * @property {boolean} [number] at the right
 * @property {boolean|string} [sort] false: not sortable; a text: another member to sort by
 * @property {string} [help] the title of the heading
 * @property {boolean} [narrow] false: left out on narrow screens
 */

/**
 * @param {Object} props
 * @param {string} props.caption what the table lists, for screen readers
 * @param {Column[]} props.columns
 * @param {string} [props.path] a list of the API with pages; the table asks for the page that is seen
 * @param {Object} [props.params] more of that query
 * @param {Object[]} [props.rows] instead of path: all rows, which the page has; null while they are not known
 * @param {(row: Object) => string} [props.rowKey] row.name
 * @param {(row: Object) => string} [props.href] where a row leads (enter, and its first cell)
 * @param {Array<{title: string, danger?: boolean, run: (rows: Object[]) => any}>} [props.actions] for selected rows
 * @param {boolean} [props.filter] whether rows can be filtered by name; true
 * @param {any} [props.empty] shown if there are no rows at all
 * @param {string} [props.prefix] of the members in the address, if a page has two tables
 * @param {{sort: string, desc: boolean}} [props.initial] the order if the address has none
 * @param {number} [props.every] seconds between two questions
 * @param {string[]} [props.down] vhosts whose rows are missing
 * @param {boolean} [props.isCut] whether a vhost has more rows than it was asked for
 * @param {any} [props.version] asks at once when it changes, such as after an action
 */
export function Table(props) {
  return props.path ? html`<${ServerTable} ...${props} />` : html`<${LocalTable} ...${props} />`;
}

function stateOf(prefix, initial) {
  const params = route.use().params;
  const of = (name) => params[prefix + name];
  return {
    page: Math.max(1, Number(of("page")) || 1),
    sort: of("sort") ?? initial?.sort ?? "",
    isReverse: of("sort") ? of("desc") === "1" : Boolean(initial?.desc),
    filter: of("filter") ?? "",
    set: (changes) => setParams(Object.fromEntries(Object.entries(changes).map(([k, v]) => [prefix + k, v]))),
  };
}

// "/regex/" filters by a regular expression, anything else by a part of the name.
function nameOf(filter) {
  const regex = /^\/(.+)\/$/.exec(filter);
  return regex ? { name: regex[1], use_regex: true } : { name: filter };
}

function ServerTable(props) {
  const state = stateOf(props.prefix ?? "", props.initial);
  const asked = {
    ...props.params,
    page: state.page,
    page_size: PAGE_ROWS,
    sort: state.sort,
    sort_reverse: state.isReverse || "",
    ...nameOf(state.filter),
  };
  const question = JSON.stringify([props.path, asked, props.version]); // after an action rows may move and go
  const answer = usePolled(
    async () => {
      const page = await get(props.path, asked);
      return {
        question,
        rows: page.items,
        filtered: page.filtered_count,
        total: page.total_count,
        down: page.penstock?.down,
      };
    },
    [question, props.version],
    props.every ?? 3,
  );
  useEffect(() => {
    if (answer.error?.status === 400 && state.page > 1) state.set({ page: "" }); // fewer pages than before
  }, [answer.error]);
  const data = answer.data;
  return html`<${View} ...${props} state=${state} rows=${data?.rows ?? null} question=${data?.question} filtered=${data?.filtered} total=${data?.total}
    down=${data?.down} error=${answer.error} retry=${answer.refresh} isLoading=${answer.isLoading} />`;
}

function LocalTable(props) {
  const state = stateOf(props.prefix ?? "", props.initial);
  const all = props.rows;
  let rows = all;
  let filtered = 0;
  if (all) {
    const keyOf = props.rowKey ?? ((row) => row.name);
    const { name, use_regex } = nameOf(state.filter);
    let matches = (text) => text.toLowerCase().includes(name.toLowerCase());
    if (use_regex) {
      try {
        const regex = new RegExp(name);
        matches = (text) => regex.test(text);
      } catch {
        matches = () => false;
      }
    }
    rows = name ? all.filter((row) => matches(String(row.name ?? keyOf(row)))) : [...all];
    if (state.sort) rows.sort((a, b) => compare(dig(a, state.sort), dig(b, state.sort)));
    if (state.isReverse) rows.reverse();
    filtered = rows.length;
    const first = (Math.min(state.page, Math.max(1, Math.ceil(filtered / PAGE_ROWS))) - 1) * PAGE_ROWS;
    rows = rows.slice(first, first + PAGE_ROWS);
  }
  const question = JSON.stringify([state.page, state.sort, state.isReverse, state.filter]);
  return html`<${View} ...${props} state=${state} rows=${rows} question=${question} filtered=${filtered} total=${all?.length} />`;
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if ((a ?? null) === null || (b ?? null) === null)
    return ((a ?? null) === null ? 0 : 1) - ((b ?? null) === null ? 0 : 1);
  return String(a).localeCompare(String(b));
}

/** The rows in the order that is shown: the old one while somebody is at the table. */
function useSteadyOrder(rows, question, keyOf) {
  const seen = useRef({ question: undefined, keys: [], rows: new Map(), touched: 0 });
  const [, draw] = useState(0);
  const now = seen.current;
  const fresh = new Map((rows ?? []).map((row) => [keyOf(row), row]));
  const wanted = [...fresh.keys()];
  const isHeld = question === now.question && Date.now() - now.touched < QUIET_MS;
  let moved = 0;
  if (isHeld) {
    const kept = new Set(now.keys);
    const keys = [...now.keys, ...wanted.filter((key) => !kept.has(key))];
    moved = wanted.filter((key, i) => key !== keys[i]).length;
    now.keys = keys;
    now.rows = new Map(keys.map((key) => [key, fresh.get(key) ?? now.rows.get(key)]));
  } else {
    now.question = question;
    now.keys = wanted;
    now.rows = fresh;
  }
  const reorder = () => {
    now.touched = 0;
    draw((n) => n + 1);
  };
  useEffect(() => {
    addEventListener("penstock:reorder", reorder);
    return () => removeEventListener("penstock:reorder", reorder);
  }, []);
  return {
    list: now.keys.map((key) => ({ key, row: now.rows.get(key), isGone: !fresh.has(key) })),
    moved,
    reorder,
    touch: () => {
      now.touched = Date.now();
    },
  };
}

function View(props) {
  const { state, columns, rows, question, filtered, total, error, caption } = props;
  const keyOf = props.rowKey ?? ((row) => row.name);
  const order = useSteadyOrder(rows, question, keyOf);
  const [selected, setSelected] = useState(() => new Map());
  const [text, setText] = useState(state.filter);
  const typed = useRef({ timer: 0, at: 0, asked: state.filter }).current;
  useEffect(() => {
    if (state.filter !== typed.asked) setText(state.filter); // more may have been typed since it was asked
    typed.asked = state.filter;
  }, [state.filter]);
  const filterBy = (value) => {
    const wait = Date.now() - typed.at < TYPING_MS ? TYPING_MS : 0;
    setText(value);
    clearTimeout(typed.timer);
    typed.at = Date.now();
    typed.timer = setTimeout(() => {
      typed.asked = value;
      state.set({ filter: value, page: "" });
    }, wait);
  };
  // The first screen is drawn before the rest of the rows.
  const [isWhole, setWhole] = useState(false);
  useEffect(() => {
    if (rows === null || isWhole) return;
    const frame = requestAnimationFrame(() => setTimeout(() => setWhole(true)));
    return () => cancelAnimationFrame(frame);
  }, [rows === null, isWhole]);
  const toggle = (key, row) => {
    const next = new Map(selected);
    if (!next.delete(key)) next.set(key, row);
    setSelected(next);
  };
  const sortBy = (key) =>
    state.set(
      state.sort === key
        ? { sort: key, desc: state.isReverse ? "" : "1", page: "" }
        : { sort: key, desc: "", page: "" },
    );
  const actions = props.actions ?? [];
  const pages = Math.max(1, Math.ceil((filtered ?? 0) / PAGE_ROWS));
  const page = Math.min(state.page, pages);
  const isKnown = rows !== null && !error && !props.down?.length;
  if (isKnown && total === 0 && !state.filter && props.empty) return props.empty;
  const isOfAll = new Set(order.list.map(({ row }) => row.vhost)).size > 1; // then a narrow screen has the vhost, too
  const isAll = order.list.length > 0 && order.list.every(({ key }) => selected.has(key));
  const open = (event, row) => {
    if (props.href && !event.target.closest("a,button,input,label,summary") && !getSelection().toString())
      location.hash = props.href(row);
  };
  return html`<div class="table" onPointerMove=${order.touch} onKeyDown=${order.touch} onFocusIn=${order.touch}>
    <div class="tools">
      ${props.filter !== false && html`<input type="search" class="filter" aria-label=${`Filter: ${caption}`} placeholder="filter by name, /regex/" value=${text} onInput=${(e) => filterBy(e.currentTarget.value)} />`}
      ${props.tools}
    </div>
    <${Problem} error=${error} retry=${props.retry} />
    ${props.down?.length > 0 && html`<${NotListed} names=${props.down} />`}
    ${props.isCut && html`<p class="sentence warning"><span>Not all are listed: a vhost has more than are asked of it. The command <code>penstock</code> lists all.</span></p>`}
    <div class="wide"><table role="table" class=${`cards${error ? " stale" : ""}`} aria-busy=${rows === null}>
      <caption class="unseen">${caption}</caption>
      <thead role="rowgroup"><tr role="row">
        ${
          actions.length > 0 &&
          html`<th scope="col" class="tick" role="columnheader"><input type="checkbox" aria-label="Select all rows of this page" disabled=${!order.list.length} checked=${isAll}
          onChange=${() => setSelected(isAll ? new Map() : new Map([...selected, ...order.list.map(({ key, row }) => [key, row])]))} /></th>`
        }
        ${columns.map((column) => {
          const key = typeof column.sort === "string" ? column.sort : column.key;
          const isSorted = state.sort === key;
          return html`<th key=${column.key} scope="col" role="columnheader" title=${column.help} class=${column.number ? "number" : ""}
            aria-sort=${isSorted ? (state.isReverse ? "descending" : "ascending") : undefined}>${
              column.sort === false
                ? column.title
                : html`<button class="sort" onClick=${() => sortBy(key)}>${column.title}<span aria-hidden="true">${isSorted ? (state.isReverse ? " ▼" : " ▲") : ""}</span></button>`
            }</th>`;
        })}
      </tr></thead>
      <tbody role="rowgroup">
        ${(isWhole ? order.list : order.list.slice(0, FIRST_ROWS)).map(
          ({
            key,
            row,
            isGone,
          }) => html`<tr key=${key} role="row" tabindex="-1" class=${`${isGone ? "gone " : ""}${selected.has(key) ? "selected" : ""}`} onClick=${(e) => open(e, row)}>
          ${actions.length > 0 && html`<td class="tick" role="cell"><input type="checkbox" aria-label=${`Select ${key}`} checked=${selected.has(key)} onChange=${() => toggle(key, row)} /></td>`}
          ${columns.map((column, i) => {
            const value = column.render ? column.render(row) : dig(row, column.key);
            const cell = i === 0 && props.href ? html`<a href=${props.href(row)}>${value}</a>` : (value ?? "–");
            const isWide = column.narrow === false && !(column.key === "vhost" && isOfAll);
            return html`<td key=${column.key} role="cell" data-title=${column.title} class=${`${column.number ? "number" : ""}${isWide ? " wide-only" : ""}`}>${cell}</td>`;
          })}</tr>`,
        )}
        ${rows === null && !error && html`<tr role="row"><td role="cell" colspan=${columns.length + 1}>Loading …</td></tr>`}
        ${rows !== null && order.list.length === 0 && html`<tr role="row"><td role="cell" colspan=${columns.length + 1}>${state.filter ? html`Nothing has this in its name. <button class="plain" onClick=${() => filterBy("")}>Show all</button>` : "None."}</td></tr>`}
      </tbody>
    </table></div>
    <div class="foot">
      ${rows !== null && html`<span>${filtered ? `${grouped((page - 1) * PAGE_ROWS + 1)}–${grouped(Math.min(page * PAGE_ROWS, filtered))} of ` : ""}${grouped(filtered ?? 0)}${total > filtered ? ` (${grouped(total)} in all)` : ""}</span>`}
      ${
        pages > 1 &&
        html`<span class="buttons"><button aria-label="Previous page" disabled=${page <= 1} onClick=${() => state.set({ page: page - 1 })}>‹</button>
        <button aria-label="Next page" disabled=${page >= pages} onClick=${() => state.set({ page: page + 1 })}>›</button></span>`
      }
      ${order.moved > 0 && html`<button class="plain" onClick=${order.reorder}>${order.moved} ${order.moved === 1 ? "row" : "rows"} would move · reorder</button>`}
      ${
        selected.size > 0 &&
        html`<span class="buttons"><b>${selected.size} selected:</b> ${actions.map(
          (action) =>
            html`<button key=${action.title} class=${action.danger ? "danger" : ""} onClick=${async () => {
              if (await action.run([...selected.values()])) setSelected(new Map());
            }}>${action.title}</button>`,
        )}
        <button class="plain" onClick=${() => setSelected(new Map())}>none</button></span>`
      }
    </div>
  </div>`;
}

/** Why the rows of these vhosts are not in a list. */
export function NotListed({ names }) {
  const vhosts = useEvent("overview").data?.vhosts ?? {};
  const known = names.filter((name) => vhosts[name]);
  const reasons = Map.groupBy(known, (name) => vhosts[name].why ?? "it does not answer");
  return [...reasons].map(([why, of]) => {
    const isDown = of.some((name) => vhosts[name].state !== "stopped");
    return html`<p key=${why} class=${`sentence ${isDown ? "warning" : ""}`}><span>Not listed: ${of.map((name, i) => html`${i > 0 && ", "}<a href=${href(["vhosts", name])}>${name}</a>`)} (${why}).</span></p>`;
  });
}

/** For keys: goes to the row that has the focus. */
export function openRow(row) {
  const link = row?.querySelector("a[href]");
  if (link) location.hash = link.getAttribute("href");
}
