/** Alarms and events: what do I do now? */
import { get, may } from "../parts/api.js";
import { bytes, clock, count } from "../parts/format.js";
import { usePolled } from "../parts/live.js";
import { silence, useProblems } from "../parts/problems.js";
import { href } from "../parts/router.js";
import { Table } from "../parts/table.js";
import { html } from "../parts/ui.js";
import { Chip, Empty, Panel, Problem, Time } from "../parts/words.js";

/** The key of an alert. */
const keyOf = (a) => [a.vhost, a.queue, a.kind, a.first_time].join("\n");

const columns = [
  {
    key: "is_on",
    title: "state",
    render: (a) =>
      a.is_on
        ? html`<${Chip} level=${a.kind === "flowed" ? "" : "danger"}>now<//>`
        : a.is_on === false
          ? html`<${Chip}>past<//>`
          : "–",
  },
  { key: "time", title: "time", render: (a) => html`<${Time} value=${a.time} />` },
  { key: "first_time", title: "since", narrow: false, render: (a) => html`<${Time} value=${a.first_time} />` },
  { key: "kind", title: "rule", render: (a) => html`<span class="word">${a.kind}</span>` },
  { key: "vhost", title: "vhost", narrow: false },
  {
    key: "queue",
    title: "queue",
    render: (a) => (a.queue ? html`<a href=${href(["queues", a.vhost, a.queue])}>${a.queue}</a>` : "–"),
  },
  { key: "text", title: "what happened", sort: false },
  {
    key: "value",
    title: "value",
    number: true,
    narrow: false,
    render: (a) => (typeof a.value === "number" ? count(a.value) : (a.value ?? "–")),
  },
  {
    key: "threshold",
    title: "limit",
    number: true,
    narrow: false,
    render: (a) => (typeof a.threshold === "number" ? count(a.threshold) : (a.threshold ?? "–")),
  },
  { key: "count", title: "times", number: true },
];

export default function Alarms({ vhost }) {
  return html`<h1>Alarms and events</h1><${Now} />${may("monitoring") ? html`<${Details} vhost=${vhost} />` : html`<${Empty} title="You see what concerns your vhosts."><p>Alerts need the tag <code>monitoring</code>.</p><//>`}`;
}

/** What is wrong, and what to do. */
function Now() {
  const { all } = useProblems();
  return html`<${Panel} title="What to do"><ul class="plain problems">${(all ?? []).map(
    (
      one,
    ) => html`<li key=${one.text} class=${one.until ? "muted" : ""}><${Chip} level=${one.until ? "" : one.level}>${one.until ? "silenced" : one.level === "danger" ? "alarm" : "warning"}<//>
      <span>${one.text}${one.do && html`<br /><b>${one.do}</b>`}${one.since && html` <small>since <${Time} value=${one.since} /></small>`}${one.href !== "#/alarms" && html` <a href=${one.href}>show</a>`}</span>
      ${
        one.until
          ? html`<button onClick=${() => silence(one, false)} title=${`silenced until ${clock(one.until / 1000)}`}>Not any more</button>`
          : html`<button onClick=${() => silence(one)} title="Not in the badge, and not on top of pages, of this browser">Silence for an hour</button>`
      }</li>`,
  )}</ul>${all?.length === 0 && html`<p class="muted">Nothing is wrong that the broker can see.</p>`}<//>`;
}

function Details({ vhost }) {
  const blocked = usePolled(() => get("penstock/alarms"), [], 5);
  const alerts = usePolled(() => get("penstock/alerts"), [], 5);
  const rows = alerts.data?.filter((a) => !vhost || a.vhost === vhost) ?? null;
  const now = (blocked.data ?? []).filter((a) => !vhost || a.vhost === vhost);
  return html`<${Problem} error=${blocked.error ?? alerts.error} />
    ${
      now.length > 0 &&
      html`<${Panel} title="Publishers wait"><ul class="plain">${now.map(
        (
          a,
        ) => html`<li key=${a.vhost}><${Chip} level="danger">${a.reason}<//> <b>${a.vhost}</b> since <${Time} value=${a.since_ms / 1000} />.
      ${a.largest.length > 0 && " The largest queues: "}${a.largest.map((q, i) => html`${i > 0 && ", "}<a key=${q.name} href=${href(["queues", a.vhost, q.name])}>${q.name}</a> (${bytes(q.message_bytes)}, ${bytes(q.memory)} of RAM)`)}</li>`,
      )}</ul><//>`
    }
    <${Panel} title="Alerts"><${Table} caption="Alerts" rows=${rows} columns=${columns} rowKey=${keyOf} initial=${{ sort: "time", desc: true }}
      empty=${html`<p class="muted">None since the vhosts started. Arguments of a queue, such as <code>x-alert-count-up</code>, say when there is one.</p>`} /><//>`;
}
