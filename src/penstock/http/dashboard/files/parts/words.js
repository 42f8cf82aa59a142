/** Small things that pages are made of. */
import { bytes, clock, count, dateOf, ago, grouped } from "./format.js";
import { html } from "./ui.js";

/** A count: short, with all digits as its title. */
export const Num = ({ value }) => html`<span title=${grouped(value)}>${count(value)}</span>`;

/** A size in bytes. */
export const Bytes = ({ value }) => html`<span title=${grouped(value)}>${bytes(value)}</span>`;

/** A time: how long ago, with the time itself as title. */
export const Time = ({ value }) =>
  html`<time class="word" title=${dateOf(value)?.toISOString() ?? ""}>${dateOf(value) === null ? "–" : `${ago(value)}`}</time>`;

/** A small label. level: "ok", "warning", "danger", "info" or none. */
export const Chip = ({ level = "", title, children }) =>
  html`<span class=${`chip ${level}`} title=${title}>${children}</span>`;

/** The sentence on top of a page. level as of Chip. action: what ends it. href: where the cause is. */
export function Sentence({ level = "ok", text, do: action, href, since, children }) {
  const mark = { ok: "✓", warning: "!", danger: "!!", info: "i" }[level] ?? "i";
  return html`<p class=${`sentence ${level}`}><b aria-hidden="true">${mark}</b> <span>${text}${action && `. ${action[0].toUpperCase()}${action.slice(1)}.`}${children}
    ${href && html` <a href=${href}>→ show</a>`}${since && html` <small>since ${clock(since)}</small>`}</span></p>`;
}

/** What to do next, where there is nothing yet. */
export const Empty = ({ title, children }) => html`<div class="empty"><p><b>${title}</b></p>${children}</div>`;

/** An error of a request, with the server's reason. */
export const Problem = ({ error, retry }) =>
  error &&
  html`<p class="sentence danger" role="alert"><b aria-hidden="true">!!</b>
  <span>${error.message}${retry && html` <button class="plain" onClick=${retry}>Try again</button>`}</span></p>`;

/** Pairs of name and value; pairs whose value is undefined are left out. pairs: [[name, value], ...] */
export const Pairs = ({ pairs }) =>
  html`<dl class="pairs">${pairs
    .filter(([, value]) => value !== undefined)
    .map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;

/** A panel with a heading. actions: at the right of the heading. */
export const Panel = ({ title, actions, children, class: name = "" }) => html`<section class=${`panel ${name}`}>
  ${title && html`<header><h2>${title}</h2>${actions && html`<div class="actions">${actions}</div>`}</header>`}${children}</section>`;

/**
 * Links to the parts of a page. tabs: [[key, title, count], ...]. The page gives href(key).
 */
export const Tabs = ({ tabs, current, href, label = "Parts of this page" }) =>
  html`<nav class="tabs" aria-label=${label}>${tabs.map(
    ([key, title, n]) =>
      html`<a key=${key} href=${href(key)} aria-current=${key === current ? "page" : undefined}>${title}${n === undefined ? "" : html` <small>${n}</small>`}</a>`,
  )}</nav>`;

/** A text that may be copied. */
export const Code = ({ children }) => html`<code class="block">${children}</code>`;
