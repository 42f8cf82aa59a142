/** Streams and readers: who lags, by how much, will retention overtake it? */
import { at, del, get, post, put } from "../parts/api.js";
import { ask, toast } from "../parts/dialog.js";
import { Form } from "../parts/form.js";
import { bytes, clock, count, duration, grouped, text } from "../parts/format.js";
import { usePolled } from "../parts/live.js";
import { Message } from "../parts/message.js";
import { href, setParams } from "../parts/router.js";
import { Table } from "../parts/table.js";
import { html } from "../parts/ui.js";
import { listOf, useOfVhosts } from "../parts/vhosts.js";
import { Bytes, Chip, Empty, Num, Pairs, Panel, Problem, Sentence, Time } from "../parts/words.js";

const UNITS = { Y: 31_536_000, M: 2_592_000, D: 86_400, h: 3600, m: 60, s: 1 };
const LATE = 0.8; // of the time that records are kept
const SHOWN = 50; // records
const SHOWN_BYTES = 64 << 10; // of a body
const WHOLE_BYTES = 8 << 20; // of a body that is downloaded

const sum = (values) => values.reduce((all, one) => all + one, 0);

/** How long a stream keeps records, in seconds; null if age does not matter. */
export function keptSeconds(args) {
  const found = /^(\d+)([YMDhms])$/.exec(args?.["x-max-age"] ?? "");
  return found ? Number(found[1]) * UNITS[found[2]] : null;
}

/** The readers of a stream: [{reader, records, lag_s, time_s, held}], the latest first. */
export function readersOf(stream) {
  return Object.entries(stream.readers)
    .map(([reader, at]) => ({
      reader,
      records: sum(Object.values(at.lag_records)),
      lag_s: Math.max(0, ...Object.values(at.lag_ms).map((ms) => (ms ?? 0) / 1000)),
      time_s: at.time_ms / 1000,
      offsets: at.offsets,
      held: Object.keys(at.kept_from).length > 0,
    }))
    .sort((a, b) => b.lag_s - a.lag_s);
}

/** A row of the list, with figures to sort by. */
export function rowOf(stream) {
  const readers = readersOf(stream);
  return {
    ...stream,
    parts: stream.partitions.length,
    records: sum(stream.partitions.map((p) => p.records)),
    bytes: sum(stream.partitions.map((p) => p.bytes)),
    last_s: Math.max(0, ...stream.partitions.map((p) => p.last_time_us / 1e6)),
    reader_count: readers.length,
    lag_records: Math.max(0, ...readers.map((r) => r.records)),
    lag_s: readers[0]?.lag_s ?? 0,
    readers_now: readers,
    kept_s: keptSeconds(stream.arguments),
  };
}

/** What is wrong with a row's readers, or null. */
const lateOf = (row) => row.readers_now.find((r) => row.kept_s && r.lag_s > LATE * row.kept_s);

const columns = [
  { key: "name", title: "name" },
  { key: "vhost", title: "vhost", narrow: false },
  { key: "records", title: "records", number: true, render: (s) => html`<${Num} value=${s.records} />` },
  { key: "bytes", title: "bytes", number: true, render: (s) => html`<${Bytes} value=${s.bytes} />` },
  { key: "parts", title: "partitions", number: true, narrow: false },
  {
    key: "last_s",
    title: "last record",
    number: true,
    narrow: false,
    render: (s) => (s.last_s ? html`<${Time} value=${s.last_s} />` : "–"),
  },
  { key: "reader_count", title: "readers", number: true },
  {
    key: "lag_records",
    title: "lag",
    number: true,
    help: "records that the slowest reader has not read",
    render: (s) => (s.reader_count ? html`<${Num} value=${s.lag_records} />` : "–"),
  },
  {
    key: "lag_s",
    title: "lag, time",
    number: true,
    help: "age of the oldest record that a reader has not read",
    render: (s) =>
      s.reader_count
        ? html`${duration(s.lag_s)}${lateOf(s) && html` <${Chip} level="danger" title="Retention may take records before they are read">late<//>`}`
        : "–",
  },
];

const retention = (args) =>
  ["x-max-age", "x-max-length-bytes", "x-max-length"]
    .filter((key) => args?.[key] !== undefined)
    .map((key) => `${key} ${key.endsWith("bytes") ? bytes(args[key]) : text(args[key])}`)
    .join(", ") || "no limit: all records are kept";

export default function Streams({ names, vhost, params }) {
  return names.length === 3
    ? html`<${Stream} vhost=${names[1]} name=${names[2]} params=${params} />`
    : html`<${List} vhost=${vhost} />`;
}

function List({ vhost }) {
  const { data, error, refresh } = useOfVhosts(listOf("streams"), vhost, "streams");
  const rows = data?.rows.map(rowOf) ?? null;
  const late = rows?.filter(lateOf) ?? [];
  return html`<h1>Streams</h1><${Problem} error=${error} retry=${refresh} />
    ${late.length > 0 && html`<${Sentence} level="danger" text=${`Reader ${lateOf(late[0]).reader} of ${late[0].name} is ${duration(late[0].lag_s)} late, and records are kept for ${duration(late[0].kept_s)}: it will lose some.`} href=${href(["streams", late[0].vhost, late[0].name])} />`}
    ${rows && rows.length > 0 && !late.length && html`<${Sentence} text="No reader is about to lose records." />`}
    <${Table} caption="Streams" rows=${rows} down=${data?.down} isCut=${data?.isCut} columns=${columns} rowKey=${(s) => `${s.vhost}\n${s.name}`} href=${(s) => href(["streams", s.vhost, s.name])} initial=${{ sort: "lag_s", desc: true }}
      empty=${html`<${Empty} title="There are no streams yet."><p>A stream keeps its records; readers have offsets. <a href=${href(["queues"])}>Declare a queue</a> with the type stream.</p><//>`} />`;
}

function Stream({ vhost, name, params }) {
  const path = at("streams", vhost, name);
  const { data, error, refresh } = usePolled(() => get(path), [path], 3);
  const title = html`<h1><a href=${href(["streams"])}>Streams</a> › ${vhost} › ${name}</h1>`;
  if (!data) return html`${title}<${Problem} error=${error} retry=${refresh} />${!error && html`<p>Loading …</p>`}`;
  const row = rowOf(data);
  const late = lateOf(row);
  const after = async (asked) => {
    if (await asked) refresh();
  };
  return html`${title}
    <div class="tools head"><div></div><div class="actions"><a href=${href(["queues", vhost, name])}>As a queue: bindings, consumers, policy</a>
      <button class="danger" onClick=${() => after(trim(vhost, name, data))}>Trim …</button></div></div>
    <${Problem} error=${error} retry=${refresh} />
    ${
      late
        ? html`<${Sentence} level="danger" text=${`Reader ${late.reader} is ${duration(late.lag_s)} late, and records are kept for ${duration(row.kept_s)}: it will lose some. Let it go faster, or keep records longer.`} />`
        : html`<${Sentence} text=${row.reader_count ? `The slowest reader is ${count(row.lag_records)} records behind (${duration(row.lag_s)}).` : "No reader has a position here. Consumers over AMQP keep theirs."} />`
    }
    <${Panel}><${Pairs} pairs=${[
      ["records", html`<${Num} value=${row.records} />`],
      ["bytes", html`<${Bytes} value=${row.bytes} />`],
      ["partitions", count(row.parts)],
      ["last record", row.last_s ? html`<${Time} value=${row.last_s} />` : "–"],
      ["retention", retention(data.arguments)],
    ]} /><//>
    <${Records} vhost=${vhost} name=${name} stream=${data} params=${params} />
    <${Panel} title="Readers"><${Table} caption="Readers" prefix="r" filter=${row.readers_now.length > 10} rows=${row.readers_now} rowKey=${(r) => r.reader} columns=${[
      {
        key: "reader",
        title: "reader",
        render: (r) =>
          html`${r.reader}${r.held && html` <${Chip} level="info" title="Retention waits for what it has not read, while it reports">holds<//>`}`,
      },
      {
        key: "offsets",
        title: "offset",
        sort: false,
        narrow: false,
        render: (r) =>
          row.parts === 1
            ? count(r.offsets[0])
            : Object.entries(r.offsets)
                .map(([part, offset]) => `${part}: ${count(offset)}`)
                .join(", "),
      },
      { key: "records", title: "lag", number: true, render: (r) => html`<${Num} value=${r.records} />` },
      { key: "lag_s", title: "lag, time", number: true, render: (r) => duration(r.lag_s) },
      { key: "time_s", title: "reported", number: true, render: (r) => html`<${Time} value=${r.time_s} />` },
      {
        key: "actions",
        title: "actions",
        sort: false,
        render: (r) =>
          html`<button onClick=${() => after(move(vhost, data, r))}>Set …</button> <button class="danger" onClick=${() => after(forget(vhost, name, r))}>Forget …</button>`,
      },
    ]} empty=${html`<p class="muted">None. Spark and programs that use named readers are shown here.</p>`} /><//>
    <${Panel} title="Partitions"><${Table} caption="Partitions" prefix="p" filter=${false} rows=${data.partitions} rowKey=${(p) => String(p.partition)} columns=${[
      { key: "partition", title: "partition", number: true },
      {
        key: "first",
        title: "first",
        number: true,
        help: "the first offset that is kept",
        render: (p) => html`<${Num} value=${p.first} />`,
      },
      {
        key: "head",
        title: "head",
        number: true,
        help: "the offset of the next record",
        render: (p) => html`<${Num} value=${p.head} />`,
      },
      { key: "records", title: "records", number: true, render: (p) => html`<${Num} value=${p.records} />` },
      { key: "bytes", title: "bytes", number: true, render: (p) => html`<${Bytes} value=${p.bytes} />` },
      {
        key: "last_time_us",
        title: "last record",
        number: true,
        render: (p) => (p.last_time_us ? html`<${Time} value=${p.last_time_us / 1e6} />` : "–"),
      },
    ]} /><//>`;
}

/** Records from an offset on, 50 at a time. Where they begin is in the address. */
function Records({ vhost, name, stream, params }) {
  const partition = params.partition ?? "0";
  const part = stream.partitions.find((p) => String(p.partition) === partition) ?? stream.partitions[0];
  const from = params.from === undefined ? Math.max(part.first, part.head - SHOWN) : Number(params.from);
  const { data, error, refresh } = usePolled(
    () => get(`${at("streams", vhost, name)}/records`, { partition: part.partition, from, count: SHOWN }),
    [vhost, name, part.partition, from],
    0,
  );
  const chosen = data?.records.find((r) => String(r.offset) === params.record);
  const show = (at_) => setParams({ from: String(Math.max(0, at_)), record: "" });
  const whole = async () => {
    const asked = { partition: part.partition, from: chosen.offset, count: 1, truncate: WHOLE_BYTES };
    const found = (await get(`${at("streams", vhost, name)}/records`, asked)).records.find(
      (r) => r.offset === chosen.offset,
    );
    if (!found) throw new Error("Retention has deleted it.");
    return found;
  };
  const last = data?.records.at(-1)?.offset;
  return html`<${Panel} title="Records" actions=${html`<button disabled=${!data || from <= data.first} onClick=${() => show(from - SHOWN)}>Earlier</button>
      <button disabled=${last === undefined || last + 1 >= data.head} onClick=${() => show(last + 1)}>Later</button>
      <button onClick=${() => {
        setParams({ from: "", record: "" });
        refresh();
      }}>The newest</button>`}>
    <div class="inline"><${Form} key=${`${partition} ${params.from}`} action="Show" fields=${[
      ...(stream.partitions.length > 1
        ? [
            {
              name: "partition",
              label: "Partition",
              type: "select",
              value: partition,
              options: stream.partitions.map((p) => [String(p.partition), String(p.partition)]),
            },
          ]
        : []),
      { name: "offset", label: "From offset", type: "number", min: 0, value: params.from ?? "" },
      { name: "time", label: "or from time", placeholder: "2026-11-27T18:00:00Z" },
    ]}
      onSubmit=${async (v) => {
        const of = v.partition ?? partition;
        const begin = v.time ? await offsetAt(vhost, name, of, v.time) : v.offset;
        setParams({ partition: of, from: begin === "" ? "" : String(begin), record: "" });
      }} /></div>
    <${Problem} error=${error} />
    ${data?.records.length === 0 && html`<p class="muted">${data.head === data.first ? "The stream is empty." : "There is no record from there on."}</p>`}
    ${
      data?.records.length > 0 &&
      html`<div class="split"><div class="table"><div class="wide"><table><thead><tr><th scope="col" class="number">offset</th><th scope="col">time</th><th scope="col">routing key</th><th scope="col" class="number">bytes</th><th scope="col">body</th></tr></thead>
      <tbody>${(data?.records ?? []).map(
        (r) =>
          html`<tr key=${r.offset} class=${r === chosen ? "selected" : ""} onClick=${() => setParams({ record: String(r.offset) })}><td class="number"><button class="plain" onClick=${() => setParams({ record: String(r.offset) })}>${grouped(r.offset)}</button></td>
          <td title=${new Date(r.time_us / 1000).toISOString()}>${clock(r.time_us / 1e6)}</td><td>${r.routing_key || "(empty)"}</td><td class="number">${bytes(r.payload_bytes)}</td><td><code>${r.payload_encoding === "string" ? r.payload.slice(0, 80) : "binary"}</code></td></tr>`,
      )}</tbody></table></div>
      <div class="foot">offsets ${grouped(data.first)} to ${grouped(data.head - 1)} are kept</div></div>
    ${chosen && html`<${Panel} title="Record" actions=${html`<button onClick=${() => setParams({ record: "" })}>Close</button>`}><${Message} key=${chosen.offset} message=${chosen} whole=${chosen.payload_bytes > SHOWN_BYTES ? whole : undefined} /><//>`}</div>`
    }<//>`;
}

/** Deletes what no limit keeps, at once. */
const trim = (vhost, name, stream) =>
  ask({
    title: `Trim ${name}?`,
    danger: true,
    action: "Trim",
    body: html`<p>Whole pages that are beyond the limits of the stream (${retention(stream.arguments)}, and its policy) are deleted now, and not only when the next page is begun. Readers that have not read them lose them, unless they hold.</p>`,
    run: async () => {
      const { pages } = await post("penstock/operations/retain_stream", { queue: name }, { vhost });
      toast(pages ? `${count(pages)} pages were deleted.` : "There was no page beyond the limits.");
    },
  });

/** Asks where a reader is to go on. */
const move = (vhost, stream, { reader }) =>
  ask({
    title: `Set ${reader}`,
    danger: true,
    action: "Set",
    body: html`<p>The reader goes on from there: what it skips it does not read, what lies ahead of it is read again. A program that keeps its own position, as Spark does in its checkpoint, does not look at this one.</p>`,
    fields: [
      {
        name: "where",
        label: "Go on",
        type: "select",
        options: [
          ["first", "from the first record"],
          ["head", "behind the last record"],
          ["offset", "from an offset"],
          ["time", "from a time"],
        ],
      },
      { name: "offset", label: "Offset", type: "number", help: "of each partition" },
      { name: "time", label: "Time", placeholder: "2026-11-27T18:00:00Z" },
    ],
    run: async ({ where, offset, time }) => {
      const offsets = {};
      for (const { partition, first, head } of stream.partitions) {
        offsets[partition] =
          where === "first"
            ? first
            : where === "head"
              ? head
              : where === "offset"
                ? Number(offset)
                : await offsetAt(vhost, stream.name, partition, time);
      }
      await put(at("streams", vhost, stream.name, "readers", reader), { offsets, wait: true });
    },
    done: `${reader} goes on from there.`,
  });

async function offsetAt(vhost, name, partition, time) {
  return (await get(`${at("streams", vhost, name)}/offset`, { time_us: time, partition: String(partition) })).offset;
}

const forget = (vhost, name, { reader, records }) =>
  ask({
    title: `Forget ${reader}?`,
    danger: true,
    action: "Forget",
    body: html`<p>Its position is deleted${records ? html`, with ${count(records)} records that it has not read` : ""}. The records stay. If the program runs, it may make the reader again.</p>`,
    run: () => del(at("streams", vhost, name, "readers", reader)),
    done: `${reader} is forgotten.`,
  });
