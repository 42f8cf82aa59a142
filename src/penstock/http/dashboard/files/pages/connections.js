/** Connections and channels: why is this publisher blocked, who leaks channels, who reconnects all the time? */
import { at, del, delAll, get } from "../parts/api.js";
import { ask, shell } from "../parts/dialog.js";
import { ago, bytes, duration, grouped, millis, rate, text } from "../parts/format.js";
import { usePolled } from "../parts/live.js";
import { go, href } from "../parts/router.js";
import { Table } from "../parts/table.js";
import { html, useState } from "../parts/ui.js";
import { Chip, Num, Pairs, Panel, Problem, Sentence, Tabs, Time } from "../parts/words.js";

const LIST =
  "name,user,vhost,state,protocol,ssl,channels,peer_host,peer_port,connected_at,user_provided_name,client_properties.connection_name,client_properties.product,client_properties.version,recv_oct_details.rate,send_oct_details.rate,penstock";

const State = ({ state, why, since }) =>
  state === "running" || state === "idle"
    ? state
    : html`<${Chip} level="warning" title=${why}>${state}${why ? `: ${why}` : ""}${since ? `, ${ago(since)}` : ""}<//>`;

const columns = [
  {
    key: "name",
    title: "name",
    render: (c) =>
      c.user_provided_name || c.client_properties?.connection_name
        ? html`${c.user_provided_name ?? c.client_properties.connection_name} <small>${c.peer_host}:${c.peer_port}</small>`
        : c.name,
  },
  { key: "user", title: "user" },
  { key: "vhost", title: "vhost", narrow: false },
  {
    key: "state",
    title: "state",
    render: (c) => html`<${State} state=${c.state} why=${c.penstock?.blocked_by} since=${c.penstock?.blocked_since} />`,
  },
  { key: "channels", title: "channels", number: true, render: (c) => html`<${Num} value=${c.channels} />` },
  {
    key: "recv_oct_details.rate",
    title: "in",
    number: true,
    help: "bytes that the client sends, each second",
    render: (c) => `${bytes(c.recv_oct_details?.rate ?? 0)}/s`,
  },
  {
    key: "send_oct_details.rate",
    title: "out",
    number: true,
    help: "bytes that the client gets, each second",
    render: (c) => `${bytes(c.send_oct_details?.rate ?? 0)}/s`,
  },
  { key: "ssl", title: "TLS", narrow: false, render: (c) => (c.ssl ? "yes" : "no") },
  {
    key: "client_properties.product",
    title: "client",
    narrow: false,
    sort: false,
    render: (c) => `${c.client_properties?.product ?? "–"} ${c.client_properties?.version ?? ""}`,
  },
  {
    key: "connected_at",
    title: "open for",
    narrow: false,
    number: true,
    render: (c) => duration((Date.now() - c.connected_at) / 1000),
  },
];

const channelColumns = [
  { key: "name", title: "channel", render: (c) => c.name },
  { key: "user", title: "user", narrow: false },
  { key: "vhost", title: "vhost", narrow: false },
  { key: "state", title: "state", render: (c) => html`<${State} state=${c.state} why=${c.why} since=${c.since} />` },
  {
    key: "mode",
    title: "mode",
    sort: false,
    narrow: false,
    render: (c) =>
      html`${c.confirm && html`<${Chip} title="publisher confirms">confirm<//>`}${c.transactional && html`<${Chip}>tx<//>`}`,
  },
  {
    key: "consumer_count",
    title: "consumers",
    number: true,
    render: (c) => html`<${Num} value=${c.consumer_count} />`,
  },
  {
    key: "prefetch_count",
    title: "prefetch",
    number: true,
    render: (c) =>
      c.prefetch_count ? html`<${Num} value=${c.prefetch_count} />` : html`<span title="no limit">∞</span>`,
  },
  {
    key: "messages_unacknowledged",
    title: "unacked",
    number: true,
    render: (c) => html`<${Num} value=${c.messages_unacknowledged} />`,
  },
  {
    key: "messages_unconfirmed",
    title: "unconfirmed",
    number: true,
    narrow: false,
    render: (c) => html`<${Num} value=${c.messages_unconfirmed} />`,
  },
  {
    key: "message_stats.publish_details.rate",
    title: "publishes",
    number: true,
    render: (c) => rate(c.message_stats?.publish_details?.rate ?? 0),
  },
  {
    key: "message_stats.deliver_get_details.rate",
    title: "gets",
    number: true,
    render: (c) => rate(c.message_stats?.deliver_get_details?.rate ?? 0),
  },
  {
    key: "message_stats.ack_details.rate",
    title: "acks",
    number: true,
    narrow: false,
    render: (c) => rate(c.message_stats?.ack_details?.rate ?? 0),
  },
];
const channelKey = (c) => c.name;
const channelHref = (c) => href(["connections", c.connection_details.name, c.name]);

const reasonField = {
  name: "reason",
  label: "Reason",
  value: "closed by an operator",
  help: "the client gets it with 320 CONNECTION_FORCED",
};

function close(connections) {
  const one = connections.length === 1 ? connections[0] : null;
  const channels = connections.reduce((sum, c) => sum + (c.channels ?? 0), 0);
  return ask({
    title: one ? `Close ${one.name}?` : `Close ${connections.length} connections?`,
    danger: true,
    action: one ? "Close" : `Close ${connections.length}`,
    body: html`<p>${grouped(channels)} ${channels === 1 ? "channel ends" : "channels end"}; what is unacknowledged there goes back to its queue, and exclusive queues are deleted. Most clients connect again.</p>`,
    fields: [reasonField],
    command: ({ reason }) =>
      connections.map((c) => `penstock close_connection ${shell(c.name)} ${shell(reason)}`).join("\n"),
    run: ({ reason }) =>
      delAll(
        connections.map((c) => at("connections", c.name)),
        {},
        { "X-Reason": reason },
      ),
    done: one ? "It was closed." : "They were closed.",
  });
}

const closeChannel = (channel) =>
  ask({
    title: `Close ${channel.name}?`,
    danger: true,
    action: "Close",
    body: html`<p>Its ${grouped(channel.messages_unacknowledged)} unacknowledged messages go back to their queues, and its consumers end. The connection and its other channels stay.</p>`,
    fields: [{ ...reasonField, help: "the client gets it with 406 PRECONDITION_FAILED" }],
    command: ({ reason }) =>
      `penstock close_connection --channel ${channel.number} ${shell(channel.connection_details.name)} ${shell(reason)}`,
    run: ({ reason }) =>
      del(
        at("penstock", "connections", channel.connection_details.name, "channels", String(channel.number)),
        {},
        { "X-Reason": reason },
      ),
    done: "It was closed.",
  });

const closeAll = (user) =>
  ask({
    title: "Close all connections of a user",
    danger: true,
    action: "Close them",
    body: html`<p>What is unacknowledged there goes back to its queues. The user can connect again: delete the user or the permissions first if that is not wanted.</p>`,
    fields: [{ name: "user", label: "User", value: user ?? "", required: true }, reasonField],
    command: (v) => `penstock close_all_connections --user ${shell(v.user || "USER")} ${shell(v.reason)}`,
    run: (v) => del(at("connections", "username", v.user), {}, { "X-Reason": v.reason }),
    done: "They were closed.",
  });

export default function Connections({ names, params, vhost }) {
  if (names.length >= 3) return html`<${Channel} connection=${names[1]} name=${names[2]} />`;
  if (names.length === 2) return html`<${Connection} name=${names[1]} />`;
  return html`<${List} tab=${params.tab ?? "connections"} vhost=${vhost} />`;
}

function List({ tab, vhost }) {
  const [version, setVersion] = useState(0);
  const after = async (asked) => {
    const isDone = await asked;
    if (isDone) setVersion(version + 1);
    return isDone;
  };
  const of = (kind) => (vhost ? at("vhosts", vhost, kind) : kind);
  return html`<h1>Connections</h1>
    <${Tabs} current=${tab} href=${(key) => href(["connections"], { tab: key === "connections" ? "" : key })} tabs=${[
      ["connections", "Connections"],
      ["channels", "Channels"],
      ["closed", "Closed lately"],
    ]} />
    ${
      tab === "connections" &&
      html`<${Table} caption="Connections" path=${of("connections")} params=${{ columns: LIST }} columns=${columns} href=${(c) => href(["connections", c.name])} version=${version}
      tools=${html`<button class="danger" onClick=${() => after(closeAll())}>Close all of a user …</button>`}
      actions=${[{ title: "Close …", danger: true, run: (rows) => after(close(rows)) }]}
      empty=${html`<p>No client is connected. The broker listens for AMQP; <a href=${href(["overview"])}>the overview</a> has its state.</p>`} />`
    }
    ${
      tab === "channels" &&
      html`<${Table} key="channels" caption="Channels" path=${of("channels")} columns=${channelColumns} rowKey=${channelKey} href=${channelHref}
      empty=${html`<p>No client has a channel.</p>`} />`
    }
    ${tab === "closed" && html`<${Closed} vhost=${vhost} />`}`;
}

function Closed({ vhost }) {
  const { data, error } = usePolled(() => get("penstock/connections/closed"), [], 5);
  const rows =
    data && data.filter((c) => !vhost || c.vhost === vhost).map((c) => ({ ...c, id: `${c.name}\n${c.closed_at}` }));
  return html`<${Problem} error=${error} /><${Table} key="closed" caption="Connections that ended, the last 100 of each vhost" rows=${rows ?? null} rowKey=${(c) => c.id} columns=${[
    { key: "name", title: "name" },
    { key: "user", title: "user" },
    { key: "vhost", title: "vhost", narrow: false },
    { key: "closed_at", title: "ended", render: (c) => html`<${Time} value=${c.closed_at / 1000} />` },
    {
      key: "connected_at",
      title: "was open for",
      number: true,
      narrow: false,
      render: (c) => duration((c.closed_at - c.connected_at) / 1000),
    },
    { key: "closed_by", title: "by" },
    { key: "code", title: "code", number: true },
    { key: "text", title: "why" },
  ]}
    empty=${html`<p>No connection has ended since the vhost began.</p>`} />`;
}

function Connection({ name }) {
  const { data: c, error, refresh } = usePolled(() => get(at("connections", name)), [name], 3);
  const why = usePolled(
    () => (c ? get(at("penstock", "why", c.vhost, "connections", name)) : null),
    [name, c?.state],
    10,
  ).data;
  if (!c) return html`<h1>${name}</h1><${Problem} error=${error} />`;
  const properties = Object.entries(c.client_properties ?? {});
  const gone = async () => {
    if (await close([c])) go(["connections"]);
  };
  return html`<h1>${c.user_provided_name ? `${c.user_provided_name}: ` : ""}${name}</h1><${Problem} error=${error} retry=${refresh} />
    ${c.penstock?.blocked_by && html`<${Sentence} level="warning" text=${`It waits: ${c.penstock.blocked_by}. ${why?.text ?? ""}`} since=${c.penstock.blocked_since} />`}
    <${Panel} title="Connection" actions=${html`<button class="danger" onClick=${gone}>Close …</button>`}>
      <${Pairs} pairs=${[
        ["user", c.user],
        ["vhost", c.vhost],
        ["state", c.state],
        ["from", `${c.peer_host}:${c.peer_port}`],
        ["to", `${c.host}:${c.port}`],
        ["open for", html`<${Time} value=${c.connected_at / 1000} />`],
        ["protocol", `${c.protocol}${c.ssl ? `, ${c.ssl_protocol}` : ", no TLS"}`],
        ["login by", c.auth_mechanism],
        ["certificate", c.peer_cert_subject || undefined],
        ["cipher", c.ssl_cipher || undefined],
        ["in", `${bytes(c.recv_oct_details?.rate ?? 0)}/s, ${bytes(c.recv_oct)} in all`],
        ["out", `${bytes(c.send_oct_details?.rate ?? 0)}/s, ${bytes(c.send_oct)} in all`],
        ["heartbeat", c.timeout ? `${c.timeout} s` : "none"],
        ["largest frame", bytes(c.frame_max)],
        ["channels", `${grouped(c.channels)} of ${grouped(c.channel_max)}`],
      ]} /><//>
    <${Panel} title="Channels"><${Table} caption=${`Channels of ${name}`} path=${at("connections", name, "channels")} columns=${channelColumns.filter((one) => one.key !== "user" && one.key !== "vhost")} rowKey=${channelKey} href=${channelHref} filter=${false}
      empty=${html`<p class="muted">It has no channel.</p>`} /><//>
    <${Panel} title="What the client says about itself"><${Pairs} pairs=${properties.map(([key, value]) => [key, text(value)])} /><//>`;
}

function Channel({ connection, name }) {
  const { data: c, error, refresh } = usePolled(() => get(at("channels", name)), [name], 3);
  if (!c) return html`<h1>${name}</h1><${Problem} error=${error} />`;
  const stats = c.message_stats ?? {};
  const all = (key) => [`${rate(stats[`${key}_details`]?.rate ?? 0)}, ${grouped(stats[key] ?? 0)} in all`];
  return html`<h1>${name}</h1><${Problem} error=${error} retry=${refresh} /><p><a href=${href(["connections", connection])}>Its connection</a></p>
    ${c.why && html`<${Sentence} level="warning" text=${`It waits: ${c.why}.`} since=${c.since} />`}
    <${Panel} title="Channel" actions=${html`<button class="danger" onClick=${async () => {
      if (await closeChannel(c)) go(["connections", connection]);
    }}>Close …</button>`}><${Pairs} pairs=${[
      ["user", c.user],
      ["vhost", c.vhost],
      ["state", c.state],
      ["prefetch", c.prefetch_count || "no limit"],
      ["prefetch of the channel", c.global_prefetch_count || "no limit"],
      ["confirms", c.confirm ? "yes" : "no"],
      ["transactions", c.transactional ? "yes" : "no"],
      ["unacknowledged", grouped(c.messages_unacknowledged)],
      ["unconfirmed", grouped(c.messages_unconfirmed)],
      ["uncommitted messages", c.transactional ? grouped(c.messages_uncommitted) : undefined],
      ["uncommitted acks", c.transactional ? grouped(c.acks_uncommitted) : undefined],
      ["published", all("publish")],
      ["confirmed", c.confirm ? all("confirm") : undefined],
      ["unroutable", all("drop_unroutable")],
      ["returned", all("return_unroutable")],
      ["delivered", all("deliver_get")],
      ["acknowledged", all("ack")],
      ["delivered again", all("redeliver")],
    ]} /><//>
    <${Panel} title="Consumers"><${Table} caption=${`Consumers of ${name}`} rows=${c.consumer_details ?? []} rowKey=${(one) => one.consumer_tag} filter=${false} columns=${[
      { key: "consumer_tag", title: "tag" },
      {
        key: "queue.name",
        title: "queue",
        render: (one) => html`<a href=${href(["queues", one.queue.vhost, one.queue.name])}>${one.queue.name}</a>`,
      },
      { key: "prefetch_count", title: "prefetch", number: true, render: (one) => one.prefetch_count || "∞" },
      { key: "penstock.unacked", title: "unacked", number: true },
      {
        key: "penstock.delivered",
        title: "delivered",
        number: true,
        render: (one) => html`<${Num} value=${one.penstock?.delivered} />`,
      },
      {
        key: "penstock.ack_s",
        title: "time to ack",
        number: true,
        help: "the mean",
        render: (one) => millis((one.penstock?.ack_s ?? 0) * 1000),
      },
      { key: "active", title: "active", render: (one) => (one.active ? "yes" : "no") },
    ]}
      empty=${html`<p class="muted">It consumes nothing.</p>`} /><//>`;
}
