/** Queues and streams: which has no consumer, grows, is idle? */
import { at, del, get, post, put, user } from "../parts/api.js";
import { MiniBand } from "../parts/chart.js";
import { ask, ofVhost, shell } from "../parts/dialog.js";
import { bytes, count, dateOf, duration, rate, secondsOf, text } from "../parts/format.js";
import { objectOf } from "../parts/json.js";
import { usePolled } from "../parts/live.js";
import { download } from "../parts/message.js";
import { href, setParams } from "../parts/router.js";
import { Table } from "../parts/table.js";
import { html, useState } from "../parts/ui.js";
import { Bytes, Chip, Empty, Num } from "../parts/words.js";

/** What the list has of each queue: no more is asked for. */
const COLUMNS = globalThis.penstockQueueColumns; // of first.js

/** Counts by state, as MiniBand and the charts want them. */
export const bandOf = (queue) => ({
  alpha: queue.penstock?.alphas,
  beta: queue.penstock?.betas,
  gamma: queue.penstock?.gammas,
  delta: queue.penstock?.delta,
});

const idle = (queue) => {
  const since = dateOf(queue.idle_since);
  return since ? duration((Date.now() - since) / 1000) : "–";
};

const columns = [
  { key: "name", title: "name", render: (q) => q.name || "(empty)" },
  { key: "vhost", title: "vhost", narrow: false },
  { key: "type", title: "type", narrow: false },
  {
    key: "state",
    title: "state",
    narrow: false,
    render: (q) =>
      html`${q.state !== "running" ? html`<${Chip} level="warning" title=${q.penstock?.why}>${q.state}<//>` : q.state}`,
  },
  { key: "messages_ready", title: "ready", number: true, render: (q) => html`<${Num} value=${q.messages_ready} />` },
  {
    key: "messages_unacknowledged",
    title: "unacked",
    number: true,
    narrow: false,
    render: (q) => html`<${Num} value=${q.messages_unacknowledged} />`,
  },
  {
    key: "message_stats.publish_details.rate",
    title: "in",
    number: true,
    help: "messages that came, each second",
    render: (q) => rate(q.message_stats?.publish_details?.rate ?? 0),
  },
  {
    key: "message_stats.deliver_get_details.rate",
    title: "out",
    number: true,
    help: "messages that were delivered, each second",
    render: (q) => rate(q.message_stats?.deliver_get_details?.rate ?? 0),
  },
  {
    key: "message_stats.ack_details.rate",
    title: "acked",
    number: true,
    narrow: false,
    render: (q) => rate(q.message_stats?.ack_details?.rate ?? 0),
  },
  {
    key: "consumers",
    title: "consumers",
    number: true,
    render: (q) =>
      q.state === "paused"
        ? html`<${Chip} level="warning" title="Its delivery is paused">${count(q.consumers)}, paused<//>`
        : q.consumers || !q.messages_ready || q.type === "stream"
          ? count(q.consumers)
          : html`<${Chip} level="warning" title="Messages are ready, and nobody consumes them">0 !<//>`,
  },
  { key: "idle_since", title: "idle", number: true, narrow: false, render: idle },
  {
    key: "message_bytes",
    title: "bytes",
    number: true,
    narrow: false,
    render: (q) => html`<${Bytes} value=${q.message_bytes} />`,
  },
  {
    key: "penstock.delta",
    title: "α β γ δ",
    help: "messages in RAM (alpha), with their body on disk (beta), with their place on disk too (gamma), wholly on disk (delta)",
    render: (q) => (q.type === "stream" ? html`<small>pages</small>` : html`<${MiniBand} counts=${bandOf(q)} />`),
  },
  { key: "policy", title: "policy", narrow: false, render: (q) => q.policy ?? "–" },
];

/** What the user has seen of a queue: the server refuses to destroy another one, or more. */
const asSeen = (queue, key, isAny) => ({
  if_messages_at_most: isAny ? undefined : queue[key],
  if_generation: queue.penstock?.generation,
});

/** The fields of a question about queues. refused: why the server has refused it: it was asked before. */
const anyway = (refused) =>
  refused ? [{ name: "any", label: "also messages that come until it is done", type: "checkbox" }] : [];

/**
 * Destroys what is in the queues, one after the other. If one is not as it was seen, returns the question about those that are
 * left, with what they have now. key: the member that counts what is lost. destroy(queue, seen): asks the server.
 */
async function destroyed(queues, key, isAny, destroy, question) {
  for (const [n, queue] of queues.entries())
    try {
      await destroy(queue, asSeen(queue, key, isAny));
    } catch (error) {
      if (error.status === 404) continue; // it is gone already
      if (error.status !== 400) throw error;
      const now = await Promise.all(queues.slice(n).map((q) => get(at("queues", q.vhost, q.name))));
      const more = now[0][key] - queue[key];
      const why = more > 0 ? `${queue.name} has ${count(more)} more messages than you saw.` : error.message;
      return { again: question(now, why) };
    }
}

/** Asks before it removes the ready messages of these queues. Resolves to whether it did. */
export const purge = (queues) => ask(purging(queues));

function purging(queues, refused) {
  const ready = queues.reduce((sum, q) => sum + (q.messages_ready ?? 0), 0);
  const unacked = queues.reduce((sum, q) => sum + (q.messages_unacknowledged ?? 0), 0);
  const size = queues.reduce((sum, q) => sum + (q.message_bytes ?? 0), 0);
  const one = queues.length === 1 ? queues[0].name : null;
  return {
    title: one ? `Purge ${one}?` : `Purge ${queues.length} queues?`,
    danger: true,
    body: html`<${Refused} why=${refused} /><p>${count(ready)} ready messages are deleted (${bytes(size)} with those that are unacknowledged). ${count(unacked)} unacknowledged stay. They cannot be had back.</p>
      ${!one && html`<${Names} queues=${queues} />`}`,
    action: (v) => (v.older ? "Purge what is old" : v.any ? "Purge all" : `Purge ${count(v.first || ready)}`),
    fields: one
      ? [
          {
            name: "first",
            label: "Only so many from the head",
            type: "number",
            min: 1,
            help: "empty: all that are ready, if there are no more by then",
          },
          {
            name: "older",
            label: "Only those that came so long ago",
            placeholder: "7d",
            help: "such as 90m, 12h or 7d",
          },
          ...anyway(refused),
        ]
      : anyway(refused),
    typed: ready > 10_000 && !refused ? (one ?? "purge") : undefined,
    command: (v) =>
      queues
        .map((q) => {
          const count = v.first ? ` --count ${v.first}` : "";
          const older = v.older ? ` --match ${shell(`older=${v.older}`)}` : "";
          const words = count || older ? `delete_messages${count}${older}` : "purge_queue";
          return `penstock ${words} ${shell(q.name)}${ofVhost(q.vhost)}`;
        })
        .join("\n"),
    run: async (v) => {
      if (!v.first && !v.older)
        return destroyed(
          queues,
          "messages_ready",
          v.any,
          (q, seen) => del(`${at("queues", q.vhost, q.name)}/contents`, seen),
          purging,
        );
      const older = v.older ? secondsOf(v.older) : undefined;
      for (const q of queues)
        await post(`${at("penstock", "queues", q.vhost, q.name)}/delete`, { count: v.first || undefined, older });
    },
    done: one ? `${one} was purged.` : `${queues.length} queues were purged.`,
  };
}

/** Asks before consumers of these queues get nothing any more; or lets all be delivered that is there. */
export function pause(queues, isPaused = true) {
  const consumers = queues.reduce((sum, q) => sum + (q.consumers ?? 0), 0);
  const verb = isPaused ? "Pause" : "Resume";
  const what = queues.length === 1 ? queues[0].name : `${queues.length} queues`;
  return ask({
    title: `${verb} delivery of ${what}?`,
    danger: isPaused,
    body: html`<p>${
      isPaused
        ? `${count(consumers)} consumers get nothing any more, until it is resumed, also after a restart. Messages come and wait.`
        : `${count(consumers)} consumers get what is ready.`
    }</p>${queues.length > 1 && html`<${Names} queues=${queues} />`}`,
    action: verb,
    command: queues.map((q) => `penstock ${verb.toLowerCase()}_queue ${shell(q.name)}${ofVhost(q.vhost)}`).join("\n"),
    run: async () => {
      for (const q of queues) await put(`${at("penstock", "queues", q.vhost, q.name)}/${verb.toLowerCase()}`);
    },
    done: `${what}: ${isPaused ? "paused" : "resumed"}.`,
  });
}

/** Asks before it deletes these queues with their messages. Resolves to whether it did. */
export const remove = (queues) => ask(removing(queues));

function removing(queues, refused) {
  const messages = queues.reduce((sum, q) => sum + (q.messages ?? 0), 0);
  const consumers = queues.reduce((sum, q) => sum + (q.consumers ?? 0), 0);
  const one = queues.length === 1 ? queues[0].name : null;
  return {
    title: one ? `Delete ${one}?` : `Delete ${queues.length} queues?`,
    danger: true,
    body: html`<${Refused} why=${refused} /><p>${count(messages)} messages are deleted, with the bindings. ${consumers ? `${count(consumers)} consumers are cancelled.` : "Nobody consumes now."} They cannot be had back.</p>
      ${!one && html`<${Names} queues=${queues} />`}`,
    fields: anyway(refused),
    action: one ? "Delete" : `Delete ${queues.length}`,
    typed: messages > 10_000 && !refused ? (one ?? "delete") : undefined,
    command: queues.map((q) => `penstock delete_queue ${shell(q.name)}${ofVhost(q.vhost)}`).join("\n"),
    run: (v) => destroyed(queues, "messages", v.any, (q, seen) => del(at("queues", q.vhost, q.name), seen), removing),
    done: one ? `${one} was deleted.` : `${queues.length} queues were deleted.`,
  };
}

/** Why something was not done, and is asked again. */
const Refused = ({ why }) => why && html`<p class="error" role="alert">It was not done. ${why}</p>`;

const Names = ({ queues }) =>
  html`<p class="muted">${queues
    .slice(0, 20)
    .map((q) => q.name)
    .join(", ")}${queues.length > 20 ? ` and ${queues.length - 20} more` : ""}</p>`;

/** Asks for a new queue or stream. */
export function declare(vhost) {
  return ask({
    title: "Declare a queue",
    action: "Declare",
    fields: [
      { name: "vhost", label: "vhost", value: vhost ?? "/", required: true },
      { name: "name", label: "Name", required: true },
      {
        name: "type",
        label: "Type",
        type: "select",
        options: [
          ["classic", "classic: messages are consumed once"],
          ["stream", "stream: records stay, readers have offsets"],
        ],
      },
      { name: "durable", label: "durable: it is there after a restart", type: "checkbox", value: true },
      {
        name: "arguments",
        label: "Arguments",
        type: "textarea",
        rows: 3,
        placeholder: '{"x-max-length": 10000}',
        help: "JSON; empty for none",
      },
    ],
    command: declaring,
    run: async (v) => put(at("queues", v.vhost, v.name), { durable: v.durable, arguments: argumentsOf(v) }),
    done: "It was declared.",
  });
}

function argumentsOf({ type, arguments: given }) {
  return {
    ...objectOf("Arguments", given, '{"x-max-length": 10000}'),
    ...(type === "stream" ? { "x-queue-type": "stream" } : {}),
  };
}

function declaring(v) {
  let words = "";
  try {
    words = Object.entries(argumentsOf(v))
      .filter(([name]) => name !== "x-queue-type")
      .map(([name, value]) => ` -a ${shell(`${name}=${text(value)}`)}`)
      .join("");
  } catch {
    words = " …";
  }
  return `penstock declare_queue ${shell(v.name || "NAME")} --type ${v.type}${v.durable ? "" : " --transient"}${words}${ofVhost(v.vhost)}`;
}

// Orders that answer a question: [title, what is sorted by, whether the largest come first].
const VIEWS = [
  ["all", "", false],
  ["largest", "messages_ready", true],
  ["growing", "messages_details.rate", true],
  ["on disk", "penstock.delta", true],
  ["unacked", "messages_unacknowledged", true],
  ["idle longest", "idle_since", false],
  ["dead letters made", "penstock.rejected", true],
];

function Views({ params }) {
  return html`<span class="switch" role="group" aria-label="Views">${VIEWS.map(
    ([
      title,
      sort,
      desc,
    ]) => html`<button key=${title} aria-pressed=${(params.sort ?? "") === sort && (params.desc === "1") === desc}
    onClick=${() => setParams({ sort, desc: desc ? "1" : "", page: "" })}>${title}</button>`,
  )}</span>`;
}

/** The rows as a file for a spreadsheet. */
function exportCsv(rows) {
  const cell = (value) =>
    `"${String(value ?? "")
      .replaceAll('"', '""')
      .replace(/^([=+@\t\r-])/, "'$1")}"`; // no formula
  const keys = [
    "name",
    "vhost",
    "type",
    "state",
    "messages_ready",
    "messages_unacknowledged",
    "consumers",
    "message_bytes",
    "policy",
  ];
  download(
    "queues.csv",
    [keys, ...rows.map((row) => keys.map((key) => row[key]))].map((line) => line.map(cell).join(",")).join("\r\n"),
    "text/csv",
  );
}

/** A first queue, in five lines, at the port where this broker listens: that of TLS if there is no other. */
function First({ vhost, children }) {
  const { data } = usePolled(() => get("overview", { columns: "listeners" }), [], 0);
  const portOf = (protocol) => data?.listeners.find((one) => one.protocol === protocol)?.port;
  const [scheme, port] =
    portOf("amqp") || !portOf("amqp/ssl") ? ["amqp", portOf("amqp") ?? 5672] : ["amqps", portOf("amqp/ssl")];
  const name = user.value?.name ?? "guest";
  const login = `${encodeURIComponent(name)}:${name === "guest" ? "guest" : "PASSWORD"}`;
  const path = vhost && vhost !== "/" ? encodeURIComponent(vhost) : "";
  return html`<${Empty} title="There are no queues yet."><p>With <code>pip install pika</code>, this makes one:</p><pre>${`import pika

with pika.BlockingConnection(
    pika.URLParameters("${scheme}://${login}@${location.hostname}:${port}/${path}")
) as connection:
    channel = connection.channel()
    channel.queue_declare("orders", durable=True)
    channel.basic_publish("", "orders", b"the first")`}</pre>${children}<//>`;
}

export default function Queues({ vhost, params }) {
  const [version, setVersion] = useState(0);
  const after = async (asked) => {
    const isDone = await asked;
    if (isDone) setVersion(version + 1);
    return isDone;
  };
  return html`<h1>Queues</h1>
    <${Table} caption="Queues and streams" path=${vhost ? at("queues", vhost) : "queues"} params=${{ columns: COLUMNS }} columns=${columns} version=${version}
      rowKey=${(q) => `${q.vhost}\n${q.name}`} href=${(q) => href(["queues", q.vhost, q.name])}
      tools=${html`<${Views} params=${params} /><button class="primary" onClick=${() => after(declare(vhost))}>Declare a queue …</button>`}
      actions=${[
        { title: "Purge …", danger: true, run: (rows) => after(purge(rows)) },
        { title: "Delete …", danger: true, run: (rows) => after(remove(rows)) },
        { title: "Pause …", run: (rows) => after(pause(rows.filter((q) => q.type !== "stream"))) },
        {
          title: "Resume …",
          run: (rows) =>
            after(
              pause(
                rows.filter((q) => q.type !== "stream"),
                false,
              ),
            ),
        },
        { title: "Export as CSV", run: exportCsv },
      ]}
      empty=${html`<${First} vhost=${vhost}><button class="primary" onClick=${() => after(declare(vhost))}>Declare a queue …</button><//>`} />`;
}
