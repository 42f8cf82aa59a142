/** Vhosts: a process each. What restarted, why, how much does it use? */
import { at, del, get, may, post, put } from "../parts/api.js";
import { ask, ofVhost, shell, toast } from "../parts/dialog.js";
import { bytes, count, grouped, rate } from "../parts/format.js";
import { usePolled } from "../parts/live.js";
import { go, href } from "../parts/router.js";
import { Table } from "../parts/table.js";
import { html, useState } from "../parts/ui.js";
import { Bytes, Chip, Empty, Num, Pairs, Panel, Problem, Sentence, Time } from "../parts/words.js";
import { editLimits, LIMITS, limitOf } from "./limits.js";

const State = ({ vhost: { penstock: p } }) =>
  html`<${Chip} level=${p.state === "running" ? (p.blocked_reason ? "danger" : "ok") : p.state === "stopped" ? "" : "danger"} title=${p.why}>${p.state}${p.blocked_reason ? `, publishers wait: ${p.blocked_reason}` : ""}<//>`;

const columns = [
  { key: "name", title: "name" },
  {
    key: "penstock.state",
    title: "state",
    render: (v) => html`<${State} vhost=${v} />${v.penstock.why && html` <small>${v.penstock.why}</small>`}`,
  },
  {
    key: "penstock.restarts",
    title: "restarts",
    number: true,
    render: (v) => (v.penstock.restarts ? html`<${Chip} level="warning">${v.penstock.restarts} !<//>` : "0"),
  },
  { key: "messages_ready", title: "ready", number: true, render: (v) => html`<${Num} value=${v.messages_ready} />` },
  {
    key: "messages_unacknowledged",
    title: "unacked",
    number: true,
    narrow: false,
    render: (v) => html`<${Num} value=${v.messages_unacknowledged} />`,
  },
  {
    key: "message_stats.publish_details.rate",
    title: "in",
    number: true,
    render: (v) => rate(v.message_stats?.publish_details?.rate),
  },
  {
    key: "message_stats.deliver_get_details.rate",
    title: "out",
    number: true,
    render: (v) => rate(v.message_stats?.deliver_get_details?.rate),
  },
  {
    key: "penstock.connections",
    title: "connections",
    number: true,
    render: (v) => html`<${Num} value=${v.penstock.connections} />`,
  },
  {
    key: "penstock.counted_bytes",
    title: "counted",
    number: true,
    narrow: false,
    help: "bytes of memory that the vhost counts",
    render: (v) => html`<${Bytes} value=${v.penstock.counted_bytes} />`,
  },
  {
    key: "penstock.rss_bytes",
    title: "RSS",
    number: true,
    narrow: false,
    help: "what its process has of the RAM",
    render: (v) => html`<${Bytes} value=${v.penstock.rss_bytes} />`,
  },
  { key: "penstock.pid", title: "pid", number: true, narrow: false },
];

const TYPES = [["", "as the server says"], "classic", "quorum", "stream"];

/** Asks for a new vhost; or what is said about one. */
function edit(vhost) {
  const typeNow = vhost?.default_queue_type === "undefined" ? "" : (vhost?.default_queue_type ?? "");
  return ask({
    title: vhost ? `Change ${vhost.name}` : "Add a vhost",
    action: vhost ? "Change" : "Add",
    body: vhost
      ? undefined
      : html`<p>It has its own queues, exchanges and permissions, its own process and directory. You get all permissions on it.</p>`,
    fields: [
      ...(vhost ? [] : [{ name: "name", label: "Name", required: true }]),
      { name: "description", label: "Description", value: vhost?.description ?? "" },
      { name: "tags", label: "Tags", value: vhost?.tags?.join(",") ?? "", help: "separated by commas" },
      {
        name: "type",
        label: "Type of queues that are declared without one",
        type: "select",
        value: typeNow,
        options: TYPES,
      },
      ...(vhost
        ? [
            {
              name: "tracing",
              label: "tracing: copy each message to amq.rabbitmq.trace",
              type: "checkbox",
              value: vhost.tracing,
            },
          ]
        : []),
    ],
    command: (v) =>
      `penstock ${vhost ? "update_vhost_metadata" : "add_vhost"} ${shell(vhost?.name ?? v.name ?? "")} --description ${shell(v.description)} --tags ${shell(v.tags)}${v.type ? ` --default-queue-type ${v.type}` : ""}${vhost && v.tracing !== vhost.tracing ? `\npenstock ${v.tracing ? "trace_on" : "trace_off"}${ofVhost(vhost.name)}` : ""}`,
    run: (v) =>
      put(at("vhosts", vhost?.name ?? v.name), {
        description: v.description,
        tags: v.tags,
        ...(v.type ? { default_queue_type: v.type } : {}),
        ...(vhost && v.tracing !== vhost.tracing ? { tracing: v.tracing } : {}),
      }),
    done: vhost ? "It was changed." : "It was added.",
  });
}

const remove = (vhost) =>
  ask({
    title: `Delete the vhost ${vhost.name}?`,
    danger: true,
    action: "Delete",
    typed: vhost.name,
    body: html`<p>All its queues and streams, ${count(vhost.messages ?? 0)} messages, its exchanges, policies, permissions and its directory are deleted, and ${grouped(vhost.penstock.connections)} connections are closed. Nothing of it can be had back.</p>`,
    command: `penstock delete_vhost ${shell(vhost.name)}`,
    run: () => del(at("vhosts", vhost.name)),
    done: `${vhost.name} was deleted.`,
  });

const checkpoint = (name) =>
  ask({
    title: `Make a checkpoint of ${name}?`,
    action: "Make it",
    body: html`<p>The vhost serves meanwhile. After it, a start has less of the log to read, and files that nothing needs any more are deleted.</p>`,
    command: `penstock checkpoint${ofVhost(name)}`,
    run: async () => {
      const { job } = await post("penstock/operations/checkpoint", {}, { vhost: name });
      let done = { is_done: false };
      while (!done.is_done) done = await post("penstock/operations/job", { job, wait_ms: 20_000 }, { vhost: name });
      toast(`Checkpoint ${grouped(done.result.number)} is on disk: ${bytes(done.result.bytes)}.`);
    },
  });

const restart = (vhost) =>
  ask({
    title: `Restart ${vhost.name}?`,
    danger: vhost.penstock.state === "running",
    action: vhost.penstock.state === "running" ? "Restart" : "Start",
    body:
      vhost.penstock.state === "running"
        ? html`<p>${grouped(vhost.penstock.connections)} connections are closed; what is unacknowledged is delivered again. Nothing that was confirmed is lost. Other vhosts go on.</p>`
        : html`<p>It is ${vhost.penstock.state}${vhost.penstock.why ? `: ${vhost.penstock.why}` : ""}. Its failures are forgotten, and it is started.</p>`,
    command: `penstock restart_vhost ${shell(vhost.name)}`,
    run: async () => {
      const [{ name }] = await get("nodes", { columns: "name" });
      await post(at("vhosts", vhost.name, "start", name));
    },
    done: `${vhost.name} runs.`,
  });

const stop = (vhost) =>
  ask({
    title: `Stop ${vhost.name}?`,
    danger: true,
    action: "Stop",
    body: html`<p>${grouped(vhost.penstock.connections)} connections are closed, and nobody can use it until it is started, also after a restart of the broker. Nothing that was confirmed is lost.</p>`,
    command: `penstock stop_vhost ${shell(vhost.name)}`,
    run: () => post("penstock/operations/stop_vhost", { name: vhost.name }),
    done: `${vhost.name} is stopped.`,
  });

export default function Vhosts({ names }) {
  if (names.length >= 2) return html`<${Vhost} name=${names[1]} />`;
  return html`<${List} />`;
}

function List() {
  const [version, setVersion] = useState(0);
  const add = async () => {
    if (await edit()) setVersion(version + 1);
  };
  return html`<h1>Vhosts</h1>
    <${Table} caption="Vhosts" path="vhosts" columns=${columns} version=${version} href=${may("administrator") ? (v) => href(["vhosts", v.name]) : undefined}
      tools=${may("administrator") && html`<button class="primary" onClick=${add}>Add a vhost …</button>`} />`;
}

function Vhost({ name }) {
  const isAdmin = may("administrator");
  const {
    data: v,
    error,
    refresh,
  } = usePolled(
    async () => (isAdmin ? get(at("vhosts", name)) : (await get("vhosts")).find((one) => one.name === name)),
    [name],
    3,
  );
  const limits = usePolled(() => get(at("vhost-limits", name)), [name], 30);
  const processes = usePolled(() => (may("monitoring") ? get("penstock/processes") : null), [], 5).data;
  const permissions = usePolled(() => (isAdmin ? get(`${at("vhosts", name)}/permissions`) : null), [name], 30).data;
  const why = usePolled(
    () => (v?.penstock.state === "running" && may("monitoring") ? get(at("penstock", "why", name)) : null),
    [name, v?.penstock.state],
    10,
  ).data;
  if (!v)
    return html`<h1>${name}</h1><${Problem} error=${error} />${v === undefined && html`<${Empty} title="You see no vhost of this name." />`}`;
  const p = v.penstock;
  const own = processes?.find((one) => one.process === "vhost" && one.vhost === name);
  const set = limits.data?.[0]?.value ?? {};
  const then = async (asked, after = refresh) => {
    if (await asked) after();
  };
  return html`<h1>${name}</h1><${Problem} error=${error} retry=${refresh} />
    ${why?.map((one) => html`<${Sentence} key=${one.text} level=${p.blocked_reason && one.about.startsWith("vhost ") ? "danger" : "warning"} text=${`${one.about}: ${one.text}`} do=${one.do} since=${one.since} />`)}
    <${Panel} title="Process" actions=${
      isAdmin &&
      html`<button onClick=${() => then(edit(v))}>Change …</button><button onClick=${() => then(checkpoint(name))} disabled=${p.state !== "running"}>Checkpoint …</button><button onClick=${() => then(restart(v))}>${p.state === "running" ? "Restart" : "Start"} …</button>
        ${p.state === "running" && html`<button class="danger" onClick=${() => then(stop(v))}>Stop …</button>`}
        <button class="danger" onClick=${async () => {
          if (await remove(v)) go(["vhosts"], { vhost: "" });
        }}>Delete …</button>`
    }>
      <p><${State} vhost=${v} /> ${p.why} ${v.description && html`<span class="muted">${v.description}</span>`} ${v.tags.map((tag) => html`<${Chip} key=${tag}>${tag}<//>`)}${v.tracing && html`<${Chip} level="warning" title="each message is copied to amq.rabbitmq.trace">tracing<//>`}</p>
      <${Pairs} pairs=${[
        ["since", html`<${Time} value=${p.since} />`],
        ["pid", p.pid ?? "–"],
        ["restarts", p.restarts],
        ["connections", grouped(p.connections)],
        ["ready", html`<${Num} value=${v.messages_ready} />`],
        ["unacknowledged", html`<${Num} value=${v.messages_unacknowledged} />`],
        ["in", rate(v.message_stats?.publish_details?.rate)],
        ["out", rate(v.message_stats?.deliver_get_details?.rate)],
        ["acknowledged", rate(v.message_stats?.ack_details?.rate)],
        ["memory that it counts", bytes(p.counted_bytes)],
        ["its share of the memory", bytes(p.memory_bytes)],
        ["RSS", bytes(p.rss_bytes)],
        ["CPU in all", own?.pid ? `${own.cpu_s} s` : undefined],
        ["open files", own?.pid ? grouped(own.open_files) : undefined],
        ["from clients", `${bytes(v.recv_oct_details?.rate ?? 0)}/s`],
        ["to clients", `${bytes(v.send_oct_details?.rate ?? 0)}/s`],
        [
          "type of queues without one",
          v.default_queue_type === "undefined" ? "as the server says" : v.default_queue_type,
        ],
      ]} />
      <details class="command"><summary>Backup</summary><p>It writes files, so it is for the command line on the broker's machine. The vhost serves meanwhile; the directory must be new or empty, and is a data directory of its own, verified at the end:</p><code class="block">${`penstock backup /path/of/a/new/directory${ofVhost(name)}`}</code></details><//>
    <div class="grid"><${Panel} title="Limits" actions=${isAdmin && html`<button onClick=${() => then(editLimits("vhost", name, set), limits.refresh)}>Change …</button>`}>
        <${Pairs} pairs=${LIMITS.vhost.map(([key, title]) => [title, limitOf(set[key])])} /><//>
      ${
        isAdmin &&
        html`<${Panel} title="Who may use it" actions=${html`<a href=${href(["admin", "permissions"], { vhost: name })}>permissions</a>`}>
        ${permissions?.length === 0 && html`<p class="muted">Nobody, until a user gets permissions.</p>`}<${Pairs} pairs=${(permissions ?? []).map((one) => [one.user, html`configure <code>${one.configure || "nothing"}</code>, write <code>${one.write || "nothing"}</code>, read <code>${one.read || "nothing"}</code>`])} /><//>`
      }</div>`;
}
