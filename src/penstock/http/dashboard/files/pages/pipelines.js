/** Pipelines: does it keep up? They are programs of their own; this is what the broker knows of them. */
import { count, duration } from "../parts/format.js";
import { href } from "../parts/router.js";
import { Table } from "../parts/table.js";
import { html } from "../parts/ui.js";
import { listOf, useOfVhosts } from "../parts/vhosts.js";
import { Chip, Code, Empty, Num, Panel, Problem, Sentence, Time } from "../parts/words.js";
import { targetOf } from "./leases.js";
import { readersOf } from "./streams.js";

/** One row for each reader of a stream, each lease, and each query that writes. */
export function flowsOf(streams, leases, batches) {
  return [
    ...streams.flatMap((stream) =>
      readersOf(stream).map((r) => ({
        name: r.reader,
        does: "reads",
        what: stream.name,
        page: "streams",
        lag: r.records,
        lag_s: r.lag_s,
        time_s: r.time_s,
      })),
    ),
    ...leases.map((l) => ({
      name: l.reader,
      does: "reads",
      what: l.name,
      page: "queues",
      lag: l.ready + l.head - l.first,
      time_s: l.since_ms ? l.since_ms / 1000 : null,
      wrong: l.is_old ? "its lease is old" : "",
    })),
    ...batches.map((b) => ({
      name: b.query,
      does: "writes",
      what: targetOf(b),
      page: b.target?.queue !== undefined ? "queues" : "",
      batch: b.batch,
      rows: b.rows,
      time_s: b.time_us / 1e6,
      wrong: b.waits_for,
    })),
  ];
}

const columns = [
  { key: "name", title: "reader or query" },
  { key: "vhost", title: "vhost", narrow: false },
  { key: "does", title: "does" },
  {
    key: "what",
    title: "what",
    render: (f) => (f.page ? html`<a href=${href([f.page, f.vhost, f.what])}>${f.what}</a>` : f.what),
  },
  {
    key: "lag",
    title: "lag",
    number: true,
    help: "records or messages that it has not read",
    render: (f) => (f.lag === undefined ? "–" : html`<${Num} value=${f.lag} />`),
  },
  { key: "lag_s", title: "lag, time", number: true, render: (f) => (f.lag_s === undefined ? "–" : duration(f.lag_s)) },
  {
    key: "batch",
    title: "last batch",
    number: true,
    render: (f) => (f.batch === undefined ? "–" : `${f.batch} (${count(f.rows)} rows)`),
  },
  { key: "time_s", title: "last seen", number: true, render: (f) => html`<${Time} value=${f.time_s} />` },
  {
    key: "wrong",
    title: "state",
    sort: false,
    render: (f) => (f.wrong ? html`<${Chip} level="warning" title=${f.wrong}>waits<//>` : "goes on"),
  },
];

const all = (kinds) => async (vhost) => {
  const lists = await Promise.all(kinds.map((kind) => listOf(kind)(vhost)));
  return { rows: flowsOf(...lists.map(({ rows }) => rows)), isCut: lists.some(({ isCut }) => isCut) };
};
const ask = all(["streams", "leases", "batches"]);

export default function Pipelines({ vhost }) {
  const { data, error, refresh } = useOfVhosts(ask, vhost, "flows");
  const rows = data?.rows ?? null;
  const stuck = rows?.filter((f) => f.wrong) ?? [];
  return html`<h1>Pipelines</h1><${Problem} error=${error} retry=${refresh} />
    ${stuck.map((f) => html`<${Sentence} key=${`${f.vhost}\n${f.name}\n${f.what}`} level="warning" text=${`${f.name} (${f.what}): ${f.wrong}.`} href=${href(["leases"])} />`)}
    ${rows && rows.length > 0 && !stuck.length && html`<${Sentence} text="What reads and writes here goes on, as far as the broker sees." />`}
    <${Panel}><${Table} caption="What reads and writes" rows=${rows} down=${data?.down} isCut=${data?.isCut} columns=${columns} rowKey=${(f) => `${f.vhost}\n${f.name}\n${f.does}\n${f.what}`} initial=${{ sort: "lag", desc: true }}
      empty=${html`<${Empty} title="No pipeline has read or written yet."><p>A pipeline is a program of its own, and runs on Spark.</p><${Code}>penstock pipeline run flights.toml<//><//>`} /><//>
    <p class="muted">Rates of a pipeline, its failures and the last error are where it runs: <code>penstock pipeline list</code> and <code>penstock pipeline status FILE</code>. Rows that failed are in the queue that its file names.</p>`;
}
