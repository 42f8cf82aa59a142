/** Alarms and events: what do I do now? */
import { at, get, may } from "../parts/api.js";
import { bytes, count } from "../parts/format.js";
import { useEvent, usePolled } from "../parts/live.js";
import { href } from "../parts/router.js";
import { Table } from "../parts/table.js";
import { html } from "../parts/ui.js";
import { useOfVhosts } from "../parts/vhosts.js";
import { Chip, Empty, Panel, Problem, Sentence, Time } from "../parts/words.js";

const QUEUE = /^queue '(.*)'$/s;

/** Where a finding's cause is. */
const placeOf = ({ about, vhost }) => {
  const found = QUEUE.exec(about);
  return found ? href(["queues", vhost, found[1]]) : undefined;
};

/** The key of an alert. */
const keyOf = (a) => [a.vhost, a.queue, a.kind, a.first_time].join("\n");

const columns = [
  {
    key: "is_on",
    title: "state",
    render: (a) =>
      a.is_on ? html`<${Chip} level="danger">now<//>` : a.is_on === false ? html`<${Chip}>past<//>` : "–",
  },
  { key: "time", title: "time", render: (a) => html`<${Time} value=${a.time} />` },
  { key: "first_time", title: "since", narrow: false, render: (a) => html`<${Time} value=${a.first_time} />` },
  { key: "kind", title: "rule" },
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
  const { data: event } = useEvent("overview");
  return html`<h1>Alarms and events</h1>
    ${event?.sentence && html`<${Sentence} ...${event.sentence} href=${event.sentence.href === "#/alarms" ? undefined : event.sentence.href} />`}
    ${may("monitoring") ? html`<${Details} vhost=${vhost} />` : html`<${Empty} title="You see what concerns your vhosts."><p>Alarms and alerts need the tag <code>monitoring</code>.</p><//>`}`;
}

function Details({ vhost }) {
  const blocked = usePolled(() => get("penstock/alarms"), [], 5);
  const wrong = useOfVhosts((name) => get(at("penstock", "why", name)), vhost, "why", 10);
  const alerts = usePolled(() => get("penstock/alerts"), [], 5);
  const rows = alerts.data?.filter((a) => !vhost || a.vhost === vhost) ?? null;
  const now = (blocked.data ?? []).filter((a) => !vhost || a.vhost === vhost);
  return html`<${Problem} error=${blocked.error ?? wrong.error ?? alerts.error} />
    ${
      now.length > 0 &&
      html`<${Panel} title="Publishers wait"><ul class="plain">${now.map(
        (
          a,
        ) => html`<li key=${a.vhost}><${Chip} level="danger">${a.reason}<//> <b>${a.vhost}</b> since <${Time} value=${a.since_ms / 1000} />.
      The largest queues: ${a.largest.map((q, i) => html`${i > 0 && ", "}<a key=${q.name} href=${href(["queues", a.vhost, q.name])}>${q.name}</a> (${bytes(q.message_bytes)}, ${bytes(q.memory)} of RAM)`)}</li>`,
      )}</ul><//>`
    }
    <${Panel} title="What to do"><ul class="plain">${(wrong.data?.rows ?? []).map(
      (
        one,
        i,
      ) => html`<li key=${i}><b>${one.vhost}: ${one.about}</b>: ${one.text}${one.since && html` <small>since <${Time} value=${one.since} /></small>`}${one.do && html` → ${one.do}`}
      ${placeOf(one) && html` <a href=${placeOf(one)}>show</a>`}</li>`,
    )}</ul>${wrong.data?.rows.length === 0 && html`<p class="muted">Nothing is wrong that the broker can see.</p>`}<//>
    <${Panel} title="Alerts"><${Table} caption="Alerts" rows=${rows} columns=${columns} rowKey=${keyOf} initial=${{ sort: "time", desc: true }}
      empty=${html`<p class="muted">None since the vhosts started. Arguments of a queue, such as <code>x-alert-count-up</code>, say when there is one.</p>`} /><//>`;
}
