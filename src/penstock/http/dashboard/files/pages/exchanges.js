/** Exchanges and bindings: why did my message arrive nowhere? */
import { at, delAll, get, post, put } from "../parts/api.js";
import { ask, ofVhost, shell, toast } from "../parts/dialog.js";
import { Form } from "../parts/form.js";
import { grouped, rate, text } from "../parts/format.js";
import { objectOf } from "../parts/json.js";
import { usePolled } from "../parts/live.js";
import { go, href } from "../parts/router.js";
import { Table } from "../parts/table.js";
import { html, useState } from "../parts/ui.js";
import { Chip, Empty, Num, Pairs, Panel, Problem } from "../parts/words.js";

const COLUMNS =
  "name,vhost,type,durable,auto_delete,internal,arguments,policy,message_stats.publish_in_details.rate,message_stats.publish_out_details.rate,penstock.unroutable";
/** The name of the default exchange in addresses. */
const DEFAULT = "amq.default";
const titleOf = (name) => name || "(default)";
const isOwn = (name) => name !== "" && name !== DEFAULT && !name.startsWith("amq.");
const to = (vhost, name) => href(["exchanges", vhost, name || DEFAULT]);

const Unroutable = ({ value }) =>
  value
    ? html`<${Chip} level="warning" title="messages that no queue got, since the broker began"><${Num} value=${value} /> !<//>`
    : "0";

const features = (
  x,
) => html`${x.durable ? "" : html`<${Chip} title="gone after a restart">transient<//>`}${x.auto_delete && html`<${Chip} title="deleted after its last use">auto-delete<//>`}
  ${x.internal && html`<${Chip} title="only exchanges can publish to it">internal<//>`}${x.arguments?.["alternate-exchange"] && html`<${Chip} title="gets what no queue gets">→ ${x.arguments["alternate-exchange"]}<//>`}`;

const columns = [
  { key: "name", title: "name", render: (x) => titleOf(x.name) },
  { key: "vhost", title: "vhost", narrow: false },
  { key: "type", title: "type" },
  { key: "features", title: "features", sort: false, narrow: false, render: features },
  {
    key: "message_stats.publish_in_details.rate",
    title: "in",
    number: true,
    help: "messages that came, each second",
    render: (x) => rate(x.message_stats?.publish_in_details?.rate ?? 0),
  },
  {
    key: "message_stats.publish_out_details.rate",
    title: "out",
    number: true,
    help: "messages that queues got, each second",
    render: (x) => rate(x.message_stats?.publish_out_details?.rate ?? 0),
  },
  {
    key: "penstock.unroutable",
    title: "unroutable",
    number: true,
    help: "messages that no queue got, in all",
    render: (x) => html`<${Unroutable} value=${x.penstock?.unroutable} />`,
  },
  { key: "policy", title: "policy", narrow: false, render: (x) => x.policy ?? "–" },
];

function remove(exchanges) {
  const refused = exchanges.filter((x) => !isOwn(x.name));
  if (refused.length) {
    toast(`${titleOf(refused[0].name)} is predeclared and cannot be deleted.`, "danger");
    return false;
  }
  const one = exchanges.length === 1 ? exchanges[0].name : null;
  return ask({
    title: one ? `Delete the exchange ${one}?` : `Delete ${exchanges.length} exchanges?`,
    danger: true,
    action: "Delete",
    body: html`<p>Its bindings are deleted too. Publishing to it is an error of the publisher's channel afterwards. Queues and their messages stay.</p>
      ${!one && html`<p class="muted">${exchanges.map((x) => x.name).join(", ")}</p>`}`,
    fields: [{ name: "unused", label: "only if nothing is bound to it", type: "checkbox" }],
    command: ({ unused }) =>
      exchanges
        .map((x) => `penstock delete_exchange ${shell(x.name)}${unused ? " --if-unused" : ""}${ofVhost(x.vhost)}`)
        .join("\n"),
    run: ({ unused }) =>
      delAll(
        exchanges.map((x) => at("exchanges", x.vhost, x.name)),
        unused ? { "if-unused": true } : {},
      ),
    done: one ? `${one} was deleted.` : `${exchanges.length} exchanges were deleted.`,
  });
}

const argumentWords = (given) =>
  Object.entries(given)
    .map(([name, value]) => ` -a ${shell(`${name}=${text(value)}`)}`)
    .join("");
const tried = (make) => {
  try {
    return make();
  } catch {
    return "";
  }
};

function declare(vhost, types) {
  const given = (v) => objectOf("Arguments", v.arguments, '{"alternate-exchange": "lost"}');
  return ask({
    title: "Declare an exchange",
    action: "Declare",
    fields: [
      { name: "vhost", label: "vhost", value: vhost ?? "/", required: true },
      { name: "name", label: "Name", required: true },
      { name: "type", label: "Type", type: "select", options: types },
      { name: "durable", label: "durable: it is there after a restart", type: "checkbox", value: true },
      { name: "auto_delete", label: "auto-delete: it is deleted after its last binding", type: "checkbox" },
      { name: "internal", label: "internal: only exchanges can publish to it", type: "checkbox" },
      {
        name: "arguments",
        label: "Arguments",
        type: "textarea",
        rows: 3,
        placeholder: '{"alternate-exchange": "lost"}',
        help: "JSON; empty for none",
      },
    ],
    command: (v) =>
      `penstock declare_exchange ${shell(v.name || "NAME")} --type ${v.type}${v.durable ? "" : " --transient"}${v.auto_delete ? " --auto-delete" : ""}${v.internal ? " --internal" : ""}${tried(() => argumentWords(given(v)))}${ofVhost(v.vhost)}`,
    run: (v) =>
      put(at("exchanges", v.vhost, v.name), {
        type: v.type,
        durable: v.durable,
        auto_delete: v.auto_delete,
        internal: v.internal,
        arguments: given(v),
      }),
    done: "It was declared.",
  });
}

export default function Exchanges({ names, vhost }) {
  if (names.length >= 3) return html`<${Exchange} vhost=${names[1]} name=${names[2]} />`;
  return html`<${List} vhost=${vhost} />`;
}

function List({ vhost }) {
  const [version, setVersion] = useState(0);
  const after = async (asked) => {
    const isDone = await asked;
    if (isDone) setVersion(version + 1);
    return isDone;
  };
  const types = usePolled(() => get("overview", { columns: "exchange_types.name" }), [], 0).data?.exchange_types?.map(
    (one) => one.name,
  ) ?? ["direct", "fanout", "topic", "headers"];
  return html`<h1>Exchanges</h1>
    <${Table} caption="Exchanges" path=${vhost ? at("exchanges", vhost) : "exchanges"} params=${{ columns: COLUMNS }} columns=${columns} version=${version}
      rowKey=${(x) => `${x.vhost}\n${x.name}`} href=${(x) => to(x.vhost, x.name)}
      tools=${html`<button class="primary" onClick=${() => after(declare(vhost, types))}>Declare an exchange …</button>`}
      actions=${[{ title: "Delete …", danger: true, run: (rows) => after(remove(rows)) }]} />`;
}

function Exchange({ vhost, name }) {
  const [version, setVersion] = useState(0);
  const path = at("exchanges", vhost, name);
  const { data: x, error, refresh } = usePolled(() => get(path), [path], 3);
  const isDefault = name === DEFAULT;
  const changed = async (asked) => {
    if (await asked) setVersion(version + 1);
  };
  const gone = async () => {
    if (await remove([{ vhost, name }])) go(["exchanges"]);
  };
  const stats = x?.message_stats;
  return html`<h1>${vhost} › ${isDefault ? titleOf("") : name}</h1><${Problem} error=${error} retry=${refresh} />
    ${
      x &&
      html`<${Panel} title="Exchange" actions=${isOwn(name) && html`<button class="danger" onClick=${gone}>Delete …</button>`}>
      <p>${x.type} ${features(x)}</p>
      <${Pairs} pairs=${[
        ["in", rate(stats?.publish_in_details?.rate ?? 0)],
        ["out", rate(stats?.publish_out_details?.rate ?? 0)],
        ["came in all", grouped(stats?.publish_in ?? 0)],
        ["queues got in all", grouped(stats?.publish_out ?? 0)],
        ["unroutable in all", html`<${Unroutable} value=${x.penstock?.unroutable} />`],
        ["policy", x.policy ?? undefined],
        ...Object.entries(x.arguments).map(([key, value]) => [key, html`<code>${text(value)}</code>`]),
      ]} /><//>`
    }
    <div class="grid"><${WhereTo} vhost=${vhost} name=${name} /><${Publish} vhost=${vhost} name=${name} after=${refresh} /></div>
    ${
      isDefault
        ? html`<p class="muted">Every queue is bound to the default exchange by its name; these bindings cannot be changed.</p>`
        : html`<${Bindings} vhost=${vhost} name=${name} version=${version} changed=${changed} type=${x?.type} />`
    }`;
}

/** Asks the broker's own router. */
function WhereTo({ vhost, name }) {
  const [found, setFound] = useState(null);
  const look = async ({ routing_key, headers }) =>
    setFound(
      await post(at("penstock", "exchanges", vhost, name, "route"), {
        routing_key,
        properties: { headers: objectOf("Headers", headers) },
      }),
    );
  return html`<${Panel} title="Where would this go?"><p class="muted">Nothing is published.</p>
    <${Form} action="Look" onSubmit=${look} fields=${[
      { name: "routing_key", label: "Routing key" },
      {
        name: "headers",
        label: "Headers",
        type: "textarea",
        rows: 2,
        placeholder: '{"region": "eu"}',
        help: "JSON; empty for none",
      },
    ]} />
    <div role="status">${
      found &&
      (found.queues.length
        ? html`<p>To ${found.queues.length === 1 ? "one queue" : `${found.queues.length} queues`}:</p><ul>${found.queues.map((queue) => html`<li key=${queue}><a href=${href(["queues", vhost, queue])}>${queue}</a></li>`)}</ul>`
        : html`<p><${Chip} level="warning">nowhere<//> No binding takes it: it would be dropped, or returned if it is mandatory.</p>`)
    }</div><//>`;
}

function Publish({ vhost, name, after }) {
  const [said, setSaid] = useState(null);
  const send = async (v) => {
    setSaid(null);
    const properties = {
      delivery_mode: v.persistent ? 2 : 1,
      headers: objectOf("Headers", v.headers),
      ...(v.content_type ? { content_type: v.content_type } : {}),
    };
    const { routed } = await post(at("exchanges", vhost, name, "publish"), {
      routing_key: v.routing_key,
      payload: v.payload,
      payload_encoding: "string",
      properties,
    });
    setSaid(routed);
    after();
  };
  return html`<${Panel} title="Publish"><${Form} action="Publish" onSubmit=${send} fields=${[
    { name: "routing_key", label: "Routing key" },
    { name: "payload", label: "Body", type: "textarea", rows: 3 },
    { name: "headers", label: "Headers", type: "textarea", rows: 2, help: "JSON; empty for none" },
    { name: "content_type", label: "Content type", placeholder: "text/plain" },
    { name: "persistent", label: "persistent: kept after a restart", type: "checkbox", value: true },
  ]}>
      ${(v) => html`<details class="command"><summary>The same as a command</summary><code class="block">${publishCommand(vhost, name, v)}</code></details>`}<//>
    <div role="status">${said !== null && (said ? html`<p><${Chip} level="ok">published<//> A queue got it.</p>` : html`<p><${Chip} level="warning">unroutable<//> No queue got it.</p>`)}</div><//>`;
}

function publishCommand(vhost, name, v) {
  const headers = tried(() =>
    Object.entries(objectOf("Headers", v.headers))
      .map(([key, value]) => ` -H ${shell(`${key}=${text(value)}`)}`)
      .join(""),
  );
  return `penstock publish${name === DEFAULT ? "" : ` -e ${shell(name)}`}${v.content_type ? ` -P ${shell(`content_type=${v.content_type}`)}` : ""}${headers}${v.persistent ? "" : " --transient"}${ofVhost(vhost)} ${shell(v.routing_key)} ${shell(v.payload)}`;
}

const GRAPH_EDGES_MAX = 60;
const bindingKey = (b) => `${b.source}\n${b.destination_type}\n${b.destination}\n${b.properties_key}`;
const linkOf = (b) =>
  b.destination_type === "queue" ? href(["queues", b.vhost, b.destination]) : to(b.vhost, b.destination);
const keyColumns = [
  { key: "routing_key", title: "routing key", render: (b) => html`<code>${b.routing_key}</code>` },
  {
    key: "arguments",
    title: "arguments",
    sort: false,
    narrow: false,
    render: (b) => (Object.keys(b.arguments).length ? html`<code>${JSON.stringify(b.arguments)}</code>` : "–"),
  },
];

function Bindings({ vhost, name, version, changed, type }) {
  const path = at("exchanges", vhost, name, "bindings");
  const outgoing = [
    { key: "destination", title: "to", render: (b) => b.destination },
    { key: "destination_type", title: "kind" },
    ...keyColumns,
  ];
  const incoming = [{ key: "source", title: "from" }, ...keyColumns];
  const actions = [
    {
      title: "Unbind …",
      danger: true,
      run: async (rows) => {
        const asked = unbind(rows);
        changed(asked);
        return asked;
      },
    },
  ];
  return html`<${Panel} title="Bindings" actions=${html`<button class="primary" onClick=${() => changed(bind(vhost, name, type))}>Bind …</button>`}>
    <${Graph} path=${`${path}/source`} version=${version} name=${name} />
    <h3>Messages go from here to</h3>
    <${Table} caption=${`Bindings from ${name}`} path=${`${path}/source`} columns=${outgoing} rowKey=${bindingKey} href=${linkOf} version=${version} every=${10} actions=${actions}
      empty=${html`<${Empty} title="Nothing is bound to this exchange: what is published to it is dropped."><button class="primary" onClick=${() => changed(bind(vhost, name, type))}>Bind …</button><//>`} />
    <h3>Messages come here from</h3>
    <${Table} caption=${`Bindings to ${name}`} path=${`${path}/destination`} columns=${incoming} rowKey=${bindingKey} href=${(b) => to(b.vhost, b.source)} version=${version} every=${10} prefix="in." actions=${actions}
      empty=${html`<p class="muted">No other exchange: only publishers.</p>`} /><//>`;
}

const ROW_PX = 28;

/** Where messages go from here, as a drawing; left out if it would be too large. The table says the same. */
function Graph({ path, version, name }) {
  const { data } = usePolled(
    () => get(path, { page: 1, page_size: GRAPH_EDGES_MAX, columns: "destination,destination_type,routing_key" }),
    [path, version],
    10,
  );
  if (!data || data.total_count > GRAPH_EDGES_MAX || data.total_count === 0) return null;
  const ends = [...new Map(data.items.map((b) => [`${b.destination_type} ${b.destination}`, b])).values()];
  const keysOf = (end) =>
    data.items
      .filter((b) => b.destination === end.destination && b.destination_type === end.destination_type)
      .map((b) => b.routing_key);
  const height = Math.max(2, ends.length) * ROW_PX;
  const short = (words, n) => (words.length > n ? `${words.slice(0, n - 1)}…` : words);
  return html`<svg class="graph" viewBox=${`0 0 720 ${height}`} role="img" aria-label=${`${name} sends to ${ends.length} ${ends.length === 1 ? "destination" : "destinations"}`}>
    <text x="4" y=${height / 2 + 4}>${short(name, 24)}</text>
    ${ends.map((end, i) => {
      const y = i * ROW_PX + ROW_PX / 2;
      return html`<g key=${`${end.destination_type} ${end.destination}`}><path d=${`M 190 ${height / 2} C 260 ${height / 2} 230 ${y} 300 ${y} L 500 ${y}`} />
        <text x="304" y=${y - 4} class="edge">${short(keysOf(end).join(", ") || "(no key)", 30)}</text>
        <text x="508" y=${y + 4}>${end.destination_type === "exchange" ? "⇢ " : ""}${short(end.destination, 28)}</text></g>`;
    })}</svg>`;
}

function bind(vhost, source, type) {
  const given = (v) => objectOf("Arguments", v.arguments, '{"x-match": "all"}');
  return ask({
    title: `Bind to ${source}`,
    action: "Bind",
    fields: [
      {
        name: "kind",
        label: "Messages go to",
        type: "select",
        options: [
          ["queue", "a queue or stream"],
          ["exchange", "an exchange"],
        ],
      },
      { name: "destination", label: "its name", required: true },
      {
        name: "routing_key",
        label: "Routing key",
        help:
          {
            topic: "a pattern: * is one word, # is any number of words",
            headers: "not used by headers exchanges",
            fanout: "not used by fanout exchanges",
          }[type] ?? "",
      },
      { name: "arguments", label: "Arguments", type: "textarea", rows: 2, help: "JSON; empty for none" },
    ],
    command: (v) =>
      `penstock declare_binding ${shell(source)} ${shell(v.destination || "DESTINATION")}${v.routing_key ? ` ${shell(v.routing_key)}` : ""}${v.kind === "exchange" ? " --to exchange" : ""}${tried(() => argumentWords(given(v)))}${ofVhost(vhost)}`,
    run: (v) =>
      post(at("bindings", vhost, "e", source, v.kind[0], v.destination), {
        routing_key: v.routing_key,
        arguments: given(v),
      }),
    done: "It was bound.",
  });
}

/** Asks before it removes these bindings. Resolves to whether it did. */
export function unbind(bindings) {
  return ask({
    title:
      bindings.length === 1
        ? `Unbind ${bindings[0].destination} from ${bindings[0].source}?`
        : `Remove ${bindings.length} bindings?`,
    danger: true,
    action: "Unbind",
    body: html`<p>Messages that only came by ${bindings.length === 1 ? "this binding" : "these bindings"} are dropped from then on, unless the exchange has an alternate one.</p>
      <ul>${bindings.slice(0, 20).map((b) => html`<li key=${bindingKey(b)}>${b.source} → ${b.destination} <code>${b.routing_key}</code></li>`)}</ul>`,
    command: bindings.every((b) => b.destination_type === "queue")
      ? bindings
          .map(
            (b) =>
              `penstock unbind_queue ${shell(b.destination)} ${shell(b.source)} ${shell(b.routing_key)}${argumentWords(b.arguments)}${ofVhost(b.vhost)}`,
          )
          .join("\n")
      : undefined,
    run: () =>
      delAll(
        bindings.map((b) =>
          at("bindings", b.vhost, "e", b.source, b.destination_type[0], b.destination, b.properties_key),
        ),
      ),
    done: "The binding is gone.",
  });
}
