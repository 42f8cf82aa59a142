/** Leases and batches: is a query dead? Why does its batch not go on? */
import { at, del } from "../parts/api.js";
import { ask, shell } from "../parts/dialog.js";
import { count, duration } from "../parts/format.js";
import { href } from "../parts/router.js";
import { Table } from "../parts/table.js";
import { html } from "../parts/ui.js";
import { listOf, useOfVhosts } from "../parts/vhosts.js";
import { Bytes, Chip, Empty, Num, Panel, Problem, Sentence, Time } from "../parts/words.js";

/** The target of a batch as a text. */
export const targetOf = ({ target }) =>
  target?.queue !== undefined
    ? target.queue
    : target?.exchanges?.length
      ? `exchanges ${target.exchanges.join(", ")}`
      : "by each row";

const age = (ms) => (ms ? Math.max(0, (Date.now() - ms) / 1000) : null);

export default function Leases({ vhost }) {
  const leases = useOfVhosts(listOf("leases"), vhost, "leases");
  const batches = useOfVhosts(listOf("batches"), vhost, "batches");
  const held =
    leases.data?.rows.map((row) => ({ ...row, leased: row.head - row.first, age_s: age(row.since_ms) })) ?? null;
  const old = held?.filter((row) => row.is_old) ?? [];
  const waiting = batches.data?.rows.filter((row) => row.waits_for) ?? [];
  const after = async (asked) => {
    if (await asked) {
      leases.refresh();
      batches.refresh();
    }
  };
  return html`<h1>Leases and batches</h1>
    <${Problem} error=${leases.error} retry=${leases.refresh} /><${Problem} error=${batches.error} retry=${batches.refresh} />
    ${old.map((row) => html`<${Sentence} key=${`${row.vhost}\n${row.name}\n${row.reader}`} level="warning" text=${`${row.reader} has leased ${count(row.leased)} messages of ${row.name} for ${duration(row.age_s)} and commits nothing: is its query dead? Release the lease, and they return to the queue.`} href=${href(["queues", row.vhost, row.name])} />`)}
    ${waiting.map((row) => html`<${Sentence} key=${`${row.vhost}\n${row.query}`} level="warning" text=${`Batch ${row.batch} of ${row.query} waits: ${row.waits_for}.`} />`)}
    ${held && batches.data && !old.length && !waiting.length && html`<${Sentence} text="No lease is old, and no batch waits." />`}
    <${Panel} title="Leases"><${Table} caption="Leases" prefix="l" rows=${held} down=${leases.data?.down} isCut=${leases.data?.isCut} rowKey=${(l) => `${l.vhost}\n${l.name}\n${l.reader}`} initial=${{ sort: "age_s", desc: true }} columns=${[
      { key: "name", title: "queue", render: (l) => html`<a href=${href(["queues", l.vhost, l.name])}>${l.name}</a>` },
      { key: "vhost", title: "vhost", narrow: false },
      { key: "reader", title: "reader" },
      { key: "leased", title: "leased", number: true, render: (l) => html`<${Num} value=${l.leased} />` },
      { key: "bytes", title: "bytes", number: true, narrow: false, render: (l) => html`<${Bytes} value=${l.bytes} />` },
      {
        key: "first",
        title: "committed",
        number: true,
        narrow: false,
        help: "all below this number is acknowledged",
        render: (l) => html`<${Num} value=${l.first} />`,
      },
      {
        key: "ready",
        title: "ready",
        number: true,
        help: "messages of the queue that nobody has",
        render: (l) => html`<${Num} value=${l.ready} />`,
      },
      {
        key: "age_s",
        title: "oldest",
        number: true,
        render: (l) => html`${duration(l.age_s)}${l.is_old && html` <${Chip} level="warning">old<//>`}`,
      },
      {
        key: "actions",
        title: "actions",
        sort: false,
        render: (l) => html`<button class="danger" onClick=${() => after(release(l))}>Release …</button>`,
      },
    ]} empty=${html`<${Empty} title="Nobody has leased messages."><p>Spark leases the messages of a classic queue while it reads them.</p><//>`} /><//>
    <${Panel} title="Batches"><${Table} caption="Batches" prefix="b" rows=${batches.data?.rows ?? null} down=${batches.data?.down} isCut=${batches.data?.isCut} rowKey=${(b) => `${b.vhost}\n${b.query}`} columns=${[
      { key: "query", title: "query" },
      { key: "vhost", title: "vhost", narrow: false },
      { key: "owner", title: "owner", narrow: false },
      { key: "target", title: "target", sort: false, render: targetOf },
      { key: "batch", title: "batch", number: true },
      { key: "rows", title: "rows", number: true, render: (b) => html`<${Num} value=${b.rows} />` },
      {
        key: "page",
        title: "pages moved",
        number: true,
        sort: false,
        narrow: false,
        render: (b) => (b.is_done ? "all" : `${count(b.page)} of ${count(b.pages)}`),
      },
      {
        key: "is_done",
        title: "state",
        render: (b) =>
          b.waits_for
            ? html`<${Chip} level="warning" title=${b.waits_for}>waits<//>`
            : b.is_done
              ? "done"
              : html`<${Chip} level="info">moves<//>`,
      },
      { key: "time_us", title: "committed", number: true, render: (b) => html`<${Time} value=${b.time_us / 1e6} />` },
      {
        key: "actions",
        title: "actions",
        sort: false,
        render: (b) => html`<button class="danger" onClick=${() => after(forget(b))}>Forget …</button>`,
      },
    ]} empty=${html`<${Empty} title="No query has written exactly once."><p>A sink of Spark stages its rows, and commits each batch as a whole.</p><//>`} /><//>`;
}

const release = ({ vhost, name, reader, leased }) =>
  ask({
    title: `Release the lease of ${reader}?`,
    danger: true,
    action: "Release",
    body: html`<p>${count(leased)} messages return to <code>${name}</code>, and the reader is forgotten. If its query still runs, it sees them again, and what it has written of them is written twice.</p>`,
    command: `penstock release_lease ${shell(name)} ${shell(reader)} --vhost ${shell(vhost)}`,
    run: () => del(at("leases", vhost, name, reader)),
    done: `${count(leased)} messages are back in ${name}.`,
  });

const forget = ({ vhost, query, batch, is_done }) =>
  ask({
    title: `Forget the query ${query}?`,
    danger: true,
    action: "Forget",
    body: html`<p>The broker forgets that batch ${batch} was committed${is_done ? "" : ", which is not completely in its target"}. A query with this id that still runs could commit it once more: rows would be there twice.</p>`,
    typed: query,
    fields: is_done
      ? []
      : [{ name: "force", label: "although its last batch is not completely in its target", type: "checkbox" }],
    command: (v) => `penstock release_query ${v.force ? "--force " : ""}${shell(query)} --vhost ${shell(vhost)}`,
    run: (v) => del(at("staging", vhost, query), { force: String(Boolean(v.force)) }),
    done: `${query} is forgotten.`,
  });
