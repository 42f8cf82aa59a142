/** One queue: which consumer is slow, why does it not drain, what is in it, what would it cost in RAM? */
import { at, del, get, may, post } from "../parts/api.js";
import { Chart } from "../parts/chart.js";
import { ask, ofVhost, shell, toast } from "../parts/dialog.js";
import { bytes, clock, count, duration, rate, text } from "../parts/format.js";
import { objectOf } from "../parts/json.js";
import { queueTopic, stream, usePolled } from "../parts/live.js";
import { go, href, setParams } from "../parts/router.js";
import { useSamples } from "../parts/samples.js";
import { Table } from "../parts/table.js";
import { html } from "../parts/ui.js";
import { Chip, Empty, Num, Pairs, Panel, Problem, Sentence, Tabs } from "../parts/words.js";
import { DeadLetters, Messages } from "./messages.js";
import { Ram, River, scaleSwitch } from "./overview.js";
import { pause, purge, remove } from "./queues.js";

const SLOW_S = 300;

const rowOf = ({ penstock, ...sample }) => ({
  ...sample,
  counted_bytes: sample.ram_bytes,
  budget_bytes: penstock?.target_bytes,
});

export default function Queue({ names, params }) {
  const [, vhost, name] = names;
  const path = at("queues", vhost, name);
  const { data: queue, error, refresh, at: when } = usePolled(() => get(path), [path], 3);
  const why = usePolled(
    () => (may("monitoring") ? get(at("penstock", "why", vhost, "queues", name)) : Promise.resolve([])),
    [path],
    5,
  );
  const isStream = queue?.type === "stream";
  const { rows } = useSamples(
    queueTopic(vhost, name),
    [at("penstock", "history", vhost, name)],
    rowOf,
    ([row]) => rowOf(row),
    "10m",
  );
  const isStale = stream.use() === "stale" || Boolean(error);
  const title = html`<h1><a href=${href(["queues"])}>Queues</a> › ${vhost} › ${name}</h1>`;
  if (error?.status === 404)
    return html`${title}<${Empty} title=${`There is no queue ${name}.`}><p><a href=${href(["queues"])}>All queues</a></p><//>`;
  if (!queue) return html`${title}<${Problem} error=${error} retry=${refresh} />${!error && html`<p>Loading …</p>`}`;
  const after = async (asked) => {
    if (await asked) refresh();
  };
  const tab = params.tab ?? (isStream ? "bindings" : "consumers");
  const tabs = [
    ["consumers", "Consumers", queue.consumers],
    ["publishers", "Publishers"],
    ...(isStream
      ? []
      : [
          ["messages", "Messages"],
          ["dead", "Dead letters"],
        ]),
    ["bindings", "Bindings"],
    ["limits", "Limits and policy"],
    ["history", "History"],
  ];
  const now = rows.at(-1) ?? {};
  const stats = queue.message_stats ?? {};
  const speed = (key, event) => now[event] ?? stats[`${key}_details`]?.rate ?? 0;
  return html`${title}
    <div class="tools head"><div>${chipsOf(queue)}</div><div class="actions">
      <button onClick=${() => publish(vhost, name)}>Publish …</button>
      ${
        !isStream &&
        html`<button onClick=${() => setParams({ tab: "messages" })}>Peek</button>
      ${may("administrator") && html`<button onClick=${() => after(move(queue))}>Move …</button>`}
      <button onClick=${() => after(pause([queue], queue.state !== "paused"))}>${queue.state === "paused" ? "Resume" : "Pause"} …</button>
      <button class="danger" onClick=${() => after(purge([queue]))}>Purge …</button>`
      }
      <button class="danger" onClick=${async () => {
        if (await remove([queue])) go(["queues"]);
      }}>Delete …</button></div></div>
    ${error && html`<${Sentence} level="warning" text=${`No news since ${clock(when / 1000)}: ${error.message}`} />`}
    ${(why.data ?? []).map((row, i) => html`<${Sentence} key=${i} level="warning" text=${row.text} do=${row.do} since=${row.since} />`)}
    ${why.data?.length === 0 && html`<${Sentence} level="ok" text=${wellOf(queue, speed)} />`}
    <div class=${isStale ? "stale" : ""}>
    ${
      !isStream &&
      html`<${Pipe} queue=${queue} put=${speed("publish", "published")} get=${speed("deliver_get", "delivered")} />
    <div class="grid">
      <${Panel} title="Messages by state" actions=${scaleSwitch(params)}><${River} rows=${rows} scale=${params.scale ?? "share"} /><//>
      <${Panel} title="Memory"><${Ram} rows=${rows} /><//>
    </div>`
    }
    <${Figures} queue=${queue} speed=${speed} refused=${now.refused} /></div>
    <${Tabs} tabs=${tabs} current=${tab} href=${(key) => href(names, { ...params, tab: key })} />
    ${
      tab === "consumers"
        ? html`<${Consumers} queue=${queue} after=${after} />`
        : tab === "publishers"
          ? html`<${Publishers} queue=${queue} />`
          : tab === "history"
            ? html`<${History} rows=${rows} />`
            : tab === "messages"
              ? html`<${Messages} queue=${queue} params=${params} />`
              : tab === "dead"
                ? html`<${DeadLetters} queue=${queue} onDone=${refresh} />`
                : tab === "bindings"
                  ? html`<${Bindings} queue=${queue} />`
                  : html`<${Limits} queue=${queue} />`
    }`;
}

function wellOf(queue, speed) {
  const ready = queue.messages_ready;
  if (queue.type === "stream") return "A stream keeps its records; readers have offsets.";
  if (!ready) return "All messages are consumed.";
  const drained = speed("deliver_get", "delivered") - speed("publish", "published");
  return drained > 0 ? `At this rate it is empty in ${duration(ready / drained)}.` : "Nothing is wrong.";
}

function chipsOf(queue) {
  const a = queue.arguments ?? {};
  return [
    [queue.type],
    [queue.state, { running: "ok", paused: "warning" }[queue.state] ?? "danger", queue.penstock?.why],
    queue.durable ? ["durable"] : ["not durable", "warning", "gone after a restart"],
    queue.exclusive && ["exclusive"],
    queue.auto_delete && ["auto-delete"],
    a["x-max-priority"] && [`priorities to ${a["x-max-priority"]}`],
    a["x-single-active-consumer"] && ["single active consumer"],
    queue.policy && [`policy ${queue.policy}`],
    queue.operator_policy && [`operator policy ${queue.operator_policy}`],
    a["x-dead-letter-exchange"] !== undefined && [
      `dead letters → ${a["x-dead-letter-exchange"] || a["x-dead-letter-routing-key"] || "default exchange"}`,
    ],
    queue.penstock?.leased > 0 && [`${count(queue.penstock.leased)} leased`, "info", "a reader such as Spark has them"],
    queue.penstock?.set_aside > 0 && [`${count(queue.penstock.set_aside)} damaged, set aside`, "danger"],
  ]
    .filter(Boolean)
    .map(([name, level, title]) => html`<${Chip} key=${name} level=${level} title=${title}>${name}<//>`);
}

const width = (n) => (n > 0 ? Math.min(14, 2 + Math.log10(1 + n) * 2) : 1);

/** put -> q1 -> q2 -> delta -> q3 -> q4 -> get: widths by the logarithm of the counts. */
function Pipe({ queue, put, get: out }) {
  const b = queue.backing_queue_status ?? {};
  const parts = [
    ["q1", b.q1],
    ["q2", b.q2],
    ["delta", queue.penstock?.delta, "on disk"],
    ["q3", b.q3],
    ["q4", b.q4],
  ];
  const words = `put ${rate(put)}, ${parts.map(([name, n]) => `${name} ${count(n)}`).join(", ")}, get ${rate(out)}`;
  return html`<div class="pipe" role="img" aria-label=${words}><span class="end">put <b>${rate(put)}</b></span><${Flow} moves=${put > 0} n=${put} />
    ${parts.map(([name, n, hint]) => html`<span key=${name} class=${`part ${n > 0 ? "full" : ""} ${name}`} title=${hint}>${name} <b>${count(n ?? 0)}</b></span><${Flow} key=${`${name}-flow`} moves=${out > 0} n=${n} />`)}
    <span class="end">get <b>${rate(out)}</b></span><span class="end">unacked <b>${count(queue.messages_unacknowledged)}</b></span></div>`;
}

const Flow = ({ moves, n }) =>
  html`<svg class="arrow" viewBox="0 0 24 16" aria-hidden="true"><path class=${moves ? "flow" : ""} d="M0 8h24" stroke-width=${width(n)} stroke-dasharray="8 4" /></svg>`;

function Figures({ queue, speed, refused }) {
  const p = queue.penstock ?? {};
  return html`<${Panel}><${Pairs} pairs=${[
    ["ready", html`<${Num} value=${queue.messages_ready} />`],
    ["unacked", html`<${Num} value=${queue.messages_unacknowledged} />`],
    ["published", rate(speed("publish", "published"))],
    ["delivered", rate(speed("deliver_get", "delivered"))],
    ["acked", rate(speed("ack", "acked"))],
    ["refused", p.refused ? html`${rate(refused)} <small>${count(p.refused)} in all</small>` : undefined],
    ["oldest ready", duration(p.oldest_ready_s)],
    ["oldest unacked", duration(p.oldest_unacked_s)],
    ["bytes of messages", bytes(queue.message_bytes)],
    ["on disk", bytes(p.disk_bytes)],
    ["in RAM", bytes(p.ram_bytes)],
    ["delayed", p.delayed ? count(p.delayed) : undefined],
    ["dead: rejected", p.rejected ? count(p.rejected) : undefined],
    ["dead: expired", p.expired ? count(p.expired) : undefined],
    ["dead: too many", p.maxlen ? count(p.maxlen) : undefined],
    ["dead: delivery limit", p.delivery_limit ? count(p.delivery_limit) : undefined],
    ["dead letters dropped", p.dead_letters_dropped ? count(p.dead_letters_dropped) : undefined],
  ]} /><//>`;
}

/** A connection: by the name that its client gave, or by its addresses. of: channel_details */
const Connection = ({ vhost, of }) =>
  html`<a href=${href(["connections", vhost, of.connection_name])}>${of.user_provided_name ? html`${of.user_provided_name} <small>${of.peer_host}:${of.peer_port}</small>` : of.connection_name}</a>`;

function Consumers({ queue, after }) {
  const { vhost, name } = queue;
  const unacked = usePolled(
    () => (queue.type === "stream" ? Promise.resolve([]) : get(`${at("penstock", "queues", vhost, name)}/unacked`)),
    [vhost, name],
    3,
  );
  const oldest = new Map((unacked.data ?? []).map((row) => [`${row.channel_details.name}\n${row.consumer_tag}`, row]));
  const rows = (queue.consumer_details ?? []).map((c) => ({
    ...c,
    held: oldest.get(`${c.channel_details.name}\n${c.consumer_tag}`),
  }));
  const means = rows
    .map((c) => c.penstock?.ack_s)
    .filter((s) => typeof s === "number")
    .sort((a, b) => a - b);
  const median = means[Math.floor((means.length - 1) / 2)];
  const isSlow = (c) => c.held?.oldest_s > SLOW_S || c.penstock?.ack_s > Math.max(10 * median, 1);
  const known = new Set(rows.map((c) => `${c.channel_details.name}\n${c.consumer_tag}`));
  const others = (unacked.data ?? []).filter((row) => !known.has(`${row.channel_details.name}\n${row.consumer_tag}`));
  if (!rows.length && !others.length)
    return html`<${Empty} title="Nobody consumes this queue."><p>A consumer connects to the broker and asks for <code>${name}</code>. Over AMQP, with <code>basic.consume</code>; here, look at its <a href=${href(["queues", vhost, name], { tab: "messages" })}>messages</a>.</p><//>`;
  return html`<div class="table"><div class="wide"><table><thead><tr><th scope="col">tag</th><th scope="col">connection</th><th scope="col">user</th><th scope="col" class="number">prefetch</th><th scope="col" class="number">unacked</th>
      <th scope="col" class="number">delivered</th><th scope="col" class="number">mean time to ack</th><th scope="col" class="number">oldest unacked</th><td></td></tr></thead><tbody>
    ${rows.map(
      (
        c,
      ) => html`<tr key=${`${c.channel_details.name} ${c.consumer_tag}`}><th scope="row">${c.consumer_tag}${!c.active && html` <${Chip}>waits<//>`}${c.exclusive && html` <${Chip}>exclusive<//>`}${isSlow(c) && html` <${Chip} level="warning">slow<//>`}</th>
      <td><${Connection} vhost=${vhost} of=${c.channel_details} /></td><td>${c.channel_details.user}</td><td class="number">${c.prefetch_count || "no limit"}</td>
      <td class="number">${count(c.penstock?.unacked)}</td><td class="number">${count(c.penstock?.delivered)}</td><td class="number">${c.ack_required ? duration(c.penstock?.ack_s) : "no acks"}</td>
      <td class="number">${duration(c.held?.oldest_s)}</td><td><button class="danger" onClick=${() => after(close(c.channel_details, c.penstock?.unacked))}>Close …</button></td></tr>`,
    )}
    ${others.map(
      (
        row,
      ) => html`<tr key=${row.channel_details.name}><th scope="row" class="muted">${row.consumer_tag ? `${row.consumer_tag} (cancelled)` : "basic.get"}</th><td><${Connection} vhost=${vhost} of=${row.channel_details} /></td><td>${row.channel_details.user}</td><td></td>
      <td class="number">${count(row.messages_unacknowledged)}</td><td></td><td class="number">${duration(row.ack_s)}</td><td class="number">${duration(row.oldest_s)}</td>
      <td><button class="danger" onClick=${() => after(close(row.channel_details, row.messages_unacknowledged))}>Close …</button></td></tr>`,
    )}
    </tbody></table></div></div>`;
}

/** Who has published to it lately, and which exchanges lead to it. */
function Publishers({ queue }) {
  const { vhost, name } = queue;
  const columns = [
    {
      key: "channel_details.connection_name",
      title: "connection",
      render: (p) => html`<${Connection} vhost=${vhost} of=${p.channel_details} />`,
    },
    { key: "channel_details.number", title: "channel", number: true, narrow: false },
    { key: "channel_details.user", title: "user" },
    {
      key: "exchange.name",
      title: "exchange",
      render: (p) =>
        p.exchange.name
          ? html`<a href=${href(["exchanges", vhost, p.exchange.name])}>${p.exchange.name}</a>`
          : "(default)",
    },
    {
      key: "routing_key_count",
      title: "routing keys",
      render: (p) =>
        html`<code>${p.routing_keys.join(", ")}</code>${p.routing_key_count > p.routing_keys.length && ` and ${count(p.routing_key_count - p.routing_keys.length)} more`}`,
    },
    {
      key: "message_stats.publish_details.rate",
      title: "channel publishes",
      number: true,
      help: "to all queues",
      render: (p) => rate(p.message_stats?.publish_details?.rate),
    },
  ];
  const published = queue.message_stats?.publish;
  return html`<${Table} caption="Publishers" path=${`${at("penstock", "queues", vhost, name)}/publishers`} columns=${columns} filter=${false} prefix="p"
    rowKey=${(p) => `${p.channel_details.name}\n${p.exchange.name}`} empty=${html`<${Empty} title="No connection that is open has published to this queue lately."><p>${published ? `Since the vhost started it got ${count(published)} messages. ` : ""}Its <a href=${href(["queues", vhost, name], { tab: "bindings" })}>bindings</a> say through which exchanges messages come.</p><//>`} />
    <p class="muted">By the routes that channels remember; what a headers exchange routes is not among them. How messages come here: see <a href=${href(["queues", vhost, name], { tab: "bindings" })}>bindings</a>.</p>`;
}

/** The last ten minutes, from when somebody has looked at the queue. rows: of useSamples. */
function History({ rows }) {
  const times = rows.map((row) => row.time);
  const lines = (all) =>
    all.map(([key, label, colour, dash]) => ({ label, colour, dash, values: rows.map((row) => row[key] ?? null) }));
  const now = rows.at(-1) ?? {};
  return html`<div class="grid"><${Panel} title="Messages per second"><${Chart} times=${times} format=${rate} describe=${`Rates: published ${rate(now.published)}, delivered ${rate(now.delivered)}, acked ${rate(now.acked)}, refused ${rate(now.refused)}`}
      series=${lines([
        ["published", "published", "link"],
        ["delivered", "delivered", "ok", [6, 4]],
        ["acked", "acked", "warning", [2, 3]],
        ["refused", "refused", "danger", [8, 3, 2, 3]],
      ])} /><//>
    <${Panel} title="Ready and unacknowledged"><${Chart} times=${times} describe=${`${count(now.ready)} ready, ${count(now.unacked)} unacknowledged`}
      series=${lines([
        ["ready", "ready", "link"],
        ["unacked", "unacked", "warning", [6, 4]],
      ])} /><//>
    <${Panel} title="Consumers"><${Chart} times=${times} describe=${`${count(now.consumers)} consumers`} series=${lines([["consumers", "consumers", "link"]])} /><//></div>
    <p class="muted">Of the last ten minutes, each second, while somebody looks at this queue; 100 queues are remembered.</p>`;
}

/** Asks before it closes a channel that has messages of a queue, or its connection. channel: its channel_details. */
const close = ({ connection_name: connection, number }, unacked) =>
  ask({
    title: `Close channel ${number} of ${connection}?`,
    danger: true,
    action: "Close",
    body: html`<p>Its consumers end.${unacked ? ` ${count(unacked)} unacknowledged messages of this queue return to it.` : ""} A client may connect again.</p>`,
    fields: [
      { name: "all", label: "the whole connection, with its other channels", type: "checkbox" },
      { name: "reason", label: "Reason, which the client gets", value: "Closed via the dashboard" },
    ],
    command: (v) =>
      `penstock close_connection ${v.all ? "" : `--channel ${number} `}${shell(connection)} ${shell(v.reason)}`,
    run: (v) =>
      del(
        v.all ? at("connections", connection) : at("penstock", "connections", connection, "channels", String(number)),
        {},
        { "X-Reason": v.reason },
      ),
    done: "It was closed.",
  });

function Bindings({ queue }) {
  const { vhost, name } = queue;
  const { data, error, refresh } = usePolled(() => get(`${at("queues", vhost, name)}/bindings`), [vhost, name], 5);
  const bind = () =>
    ask({
      title: `Bind ${name}`,
      action: "Bind",
      fields: [
        { name: "exchange", label: "From exchange", required: true },
        { name: "key", label: "Routing key" },
        {
          name: "arguments",
          label: "Arguments",
          type: "textarea",
          rows: 2,
          placeholder: "{}",
          help: "JSON; empty for none",
        },
      ],
      command: (v) =>
        `penstock bind_queue ${shell(name)} ${shell(v.exchange || "EXCHANGE")}${v.key ? ` ${shell(v.key)}` : ""}${ofVhost(vhost)}`,
      run: (v) =>
        post(at("bindings", vhost, "e", v.exchange, "q", name), {
          routing_key: v.key,
          arguments: objectOf("Arguments", v.arguments),
        }),
      done: "It was bound.",
    }).then((isDone) => isDone && refresh());
  const unbind = (b) =>
    ask({
      title: `Unbind ${name} from ${b.source}?`,
      danger: true,
      action: "Unbind",
      body: html`<p>Messages that <code>${b.source}</code> gets with <code>${b.routing_key || "(empty key)"}</code> do not come to <code>${name}</code> any more.</p>`,
      command: `penstock unbind_queue ${shell(name)} ${shell(b.source)}${b.routing_key ? ` ${shell(b.routing_key)}` : ""}${Object.entries(
        b.arguments ?? {},
      )
        .map(([k, v]) => ` -a ${shell(`${k}=${text(v)}`)}`)
        .join("")}${ofVhost(vhost)}`,
      run: () => del(at("bindings", vhost, "e", b.source, "q", name, b.properties_key)),
      done: "It was unbound.",
    }).then((isDone) => isDone && refresh());
  return html`<${Problem} error=${error} /><div class="table"><div class="tools"><button class="primary" onClick=${bind}>Bind …</button></div><div class="wide"><table><thead><tr><th scope="col">exchange</th><th scope="col">routing key</th><th scope="col">arguments</th><td></td></tr></thead>
    <tbody>${(data ?? []).map(
      (
        b,
      ) => html`<tr key=${`${b.source}\n${b.properties_key}`}><th scope="row">${b.source ? html`<a href=${href(["exchanges", vhost, b.source])}>${b.source}</a>` : "(default exchange)"}</th><td><code>${b.routing_key}</code></td><td>${Object.keys(b.arguments ?? {}).length ? html`<code>${JSON.stringify(b.arguments)}</code>` : "–"}</td>
      <td>${b.source && html`<button class="danger" onClick=${() => unbind(b)}>Unbind …</button>`}</td></tr>`,
    )}</tbody></table></div></div>`;
}

/** A bar of how much of a limit is used. */
function Bar({ value, limit }) {
  const part = limit > 0 ? Math.min(1, value / limit) : 0;
  return html`<svg class=${`bar ${part >= 1 ? "danger" : part > 0.8 ? "warning" : ""}`} viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label=${`${Math.round(part * 100)} %`}><rect class="track" width="100" height="8" /><rect class="fill" width=${part * 100} height="8" /></svg>`;
}

function Limits({ queue }) {
  const given = queue.arguments ?? {};
  const policy = queue.effective_policy_definition ?? {};
  const values = {
    ...Object.fromEntries(
      Object.entries(policy).map(([k, v]) => [
        k,
        [v, `policy ${[queue.policy, queue.operator_policy].filter(Boolean).join(" and ")}`],
      ]),
    ),
  };
  for (const [k, v] of Object.entries(given)) {
    const key = k.replace(/^x-/, "");
    const both = values[key];
    // Of two limits the smaller one counts; any other argument overrides the policy.
    if (!both || !(typeof v === "number" && typeof both[0] === "number" && both[0] < v)) values[key] = [v, "argument"];
  }
  const limit = (key) => values[key]?.[0];
  const does =
    { "reject-publish": "publishes are refused", "reject-publish-dlx": "publishes become dead letters" }[
      limit("overflow")
    ] ?? "the oldest messages are dropped";
  const bars = [
    ["messages", queue.messages_ready, limit("max-length"), count],
    ["bytes", queue.message_bytes_ready, limit("max-length-bytes"), bytes],
  ].filter(([, , most]) => typeof most === "number");
  return html`${bars.length > 0 && html`<${Panel} title="Limits">${bars.map(([title, value, most, format]) => html`<div key=${title}><p>${format(value)} of ${format(most)} ${title}; when it is full, ${does}.</p><${Bar} value=${value} limit=${most} /></div>`)}<//>`}
    <${Panel} title="What applies"><div class="wide"><table><thead><tr><th scope="col">key</th><th scope="col">value</th><th scope="col">from</th></tr></thead><tbody>
    ${Object.entries(values).map(([key, [value, from]]) => html`<tr key=${key}><th scope="row">${key}</th><td><code>${text(value)}</code></td><td>${from}</td></tr>`)}
    ${Object.keys(values).length === 0 && html`<tr><td colspan="3">The queue has no arguments, and no policy applies.</td></tr>`}</tbody></table></div><//>
    <${Panel} title="Memory"><${Pairs} pairs=${[
      ["in RAM", bytes(queue.penstock?.ram_bytes)],
      ["share now", bytes(queue.penstock?.target_bytes)],
      ["at least", bytes(queue.penstock?.min_bytes)],
      ["at most", bytes(queue.penstock?.max_bytes)],
      ["paged by", queue.penstock?.paged_by || "–"],
    ]} /><//>`;
}

function headerWords(given) {
  try {
    return Object.entries(objectOf("Headers", given))
      .map(([header, value]) => ` -H ${shell(`${header}=${text(value)}`)}`)
      .join("");
  } catch {
    return " …";
  }
}

/** Asks for a message and publishes it to the queue. */
export const publish = (vhost, name) =>
  ask({
    title: `Publish to ${name}`,
    action: "Publish",
    fields: [
      { name: "body", label: "Body", type: "textarea", rows: 6 },
      { name: "content_type", label: "Content type", placeholder: "application/json" },
      {
        name: "headers",
        label: "Headers",
        type: "textarea",
        rows: 2,
        placeholder: '{"kind": "order"}',
        help: "JSON; empty for none",
      },
      { name: "persistent", label: "persistent", type: "checkbox", value: true },
    ],
    command: (v) =>
      `penstock publish ${shell(name)} ${shell(v.body)}${v.content_type ? ` -P ${shell(`content_type=${v.content_type}`)}` : ""}${v.persistent ? "" : " --transient"}${headerWords(v.headers)}${ofVhost(vhost)}`,
    run: async (v) => {
      const headers = objectOf("Headers", v.headers);
      const answer = await post(`${at("exchanges", vhost, "amq.default")}/publish`, {
        routing_key: name,
        payload: v.body,
        payload_encoding: "string",
        properties: {
          delivery_mode: v.persistent ? 2 : 1,
          ...(v.content_type && { content_type: v.content_type }),
          headers,
        },
      });
      if (!answer.routed) throw new Error("No queue got it.");
    },
    done: "It was published, and is as safe as a confirm says.",
  });

/** The words of --match: of {key, body, headers, older, tags}. */
export const matchWords = (match) =>
  [
    match.key && `key=${match.key}`,
    match.body && `body=${match.body}`,
    match.older && `older=${match.older}s`,
    ...Object.entries(match.headers ?? {}).map(([name, value]) => `header=${name}${value === null ? "" : `:${value}`}`),
    ...(match.tags ?? []).map((tag) => `tag=${tag}`),
  ].filter(Boolean);

/** The same as options of a command. */
export const matchOptions = (match) =>
  matchWords(match)
    .map((one) => ` --match ${shell(one)}`)
    .join("");

/** How many at most, as an option of a command; none if that is not said. */
export const countOption = (n) => (n ? ` --count ${n}` : "");

/** Asks where messages go, and moves them. match: only those with this {key, body, headers, tags}, as the API has it. */
export function move(queue, match = {}) {
  const path = `${at("penstock", "queues", queue.vhost, queue.name)}/move`;
  const matches = matchWords(match);
  const chosen = match.tags ? `The ${count(match.tags.length)} selected messages` : "Ready messages";
  return ask({
    title: `Move messages of ${queue.name}`,
    action: "Move",
    danger: true,
    body: html`<p>${chosen}${matches.length && !match.tags ? html` with <code>${matches.join(", ")}</code>` : ""}, the oldest first, go to the end of another queue. Each is moved as a whole: a crash neither loses nor doubles it.</p>`,
    fields: [
      { name: "to", label: "To queue", required: true },
      {
        name: "count",
        label: "How many at most",
        type: "number",
        min: 1,
        value: match.tags?.length ?? (queue.messages_ready || 1),
      },
    ],
    command: (v) =>
      `penstock move ${shell(queue.name)} ${shell(v.to || "QUEUE")}${matchOptions(match)}${countOption(v.count)}${ofVhost(queue.vhost)}`,
    run: async (v) => {
      const answer = await post(path, { ...match, to: v.to, count: v.count || undefined });
      toast(movedText(answer), answer.stays ? "danger" : "ok");
    },
  });
}

/** What an answer of move says, in words. */
export const movedText = (answer) =>
  `${count(answer.moved)} moved (${
    Object.entries(answer.by_queue ?? {})
      .map(([q, n]) => `${q} ${count(n)}`)
      .join(", ") || "none"
  })${answer.stays ? `, ${count(answer.stays)} stay: ${answer.why}` : ""}`;
