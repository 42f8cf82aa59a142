/** Users, permissions, policies, limits and definitions: who may do what, and what will this policy do? */
import { at, del, delAll, get, may, put, user as signedIn } from "../parts/api.js";
import { ask, ofVhost, shell } from "../parts/dialog.js";
import { Form } from "../parts/form.js";
import { grouped } from "../parts/format.js";
import { objectOf, typed } from "../parts/json.js";
import { usePolled } from "../parts/live.js";
import { href } from "../parts/router.js";
import { Table } from "../parts/table.js";
import { html, useEffect, useState } from "../parts/ui.js";
import { Chip, Empty, Panel, Problem, Tabs } from "../parts/words.js";
import Definitions from "./definitions.js";
import { editLimits, LIMITS, limitOf } from "./limits.js";
import Parameters from "./parameters.js";

const TAGS = ["administrator", "monitoring", "policymaker", "management"];

export default function Admin({ names, vhost }) {
  const isAdministrator = may("administrator");
  const tabs = [
    ...(isAdministrator
      ? [
          ["users", "Users", Users],
          ["permissions", "Permissions", Permissions],
          ["topic", "Topic permissions", TopicPermissions],
        ]
      : []),
    ["policies", "Policies", Policies],
    ["operator-policies", "Operator policies", Policies],
    ["parameters", "Parameters", Parameters],
    ...(isAdministrator
      ? [
          ["limits", "Limits", Limits],
          ["definitions", "Definitions", Definitions],
        ]
      : []),
  ];
  if (!may("policymaker")) return html`<h1>Admin</h1><p>For users with the tag policymaker or administrator.</p>`;
  const [key, title, View] = tabs.find(([one]) => one === names[1]) ?? tabs[0];
  return html`<h1>${title}</h1><${Tabs} current=${key} href=${(one) => href(["admin", one])} tabs=${tabs} />
    <${View} key=${key} kind=${key} vhost=${vhost} />`;
}

/** What a list has after each change: version and a function that counts it up when something was done. */
function useVersion() {
  const [version, setVersion] = useState(0);
  return [
    version,
    async (asked) => {
      const isDone = await asked;
      if (isDone) setVersion((n) => n + 1);
      return isDone;
    },
  ];
}

// ---- users

const userColumns = [
  { key: "name", title: "name", render: (u) => u.name },
  {
    key: "tags",
    title: "tags",
    sort: false,
    render: (u) =>
      u.tags.length
        ? u.tags.map((tag) => html`<${Chip} key=${tag} level=${tag === "administrator" ? "warning" : ""}>${tag}<//>`)
        : html`<span class="muted">none: AMQP only</span>`,
  },
  {
    key: "password",
    title: "password",
    sort: false,
    render: (u) =>
      u.password_hash || u.penstock?.password_hash
        ? "yes"
        : html`<${Chip} level="warning" title="cannot log in with a password">none<//>`,
  },
  {
    key: "limits",
    title: "limits",
    sort: false,
    narrow: false,
    render: (u) =>
      Object.entries(u.limits)
        .map(([key, value]) => `${key} ${value}`)
        .join(", ") || "–",
  },
];

function editUser(user) {
  const now = new Set(user?.tags ?? []);
  const others = [...now].filter((tag) => !TAGS.includes(tag));
  const tagsOf = (v) => [...TAGS.filter((tag) => v[tag]), ...others];
  return ask({
    title: user ? `Change ${user.name}` : "Add a user",
    action: user ? "Change" : "Add",
    body: user
      ? html`<p>Open connections stay open.</p>`
      : html`<p>A user may use no vhost until there are permissions for one.</p>`,
    fields: [
      ...(user ? [] : [{ name: "name", label: "Name", required: true }]),
      {
        name: "password",
        label: user ? "New password" : "Password",
        type: "password",
        required: !user,
        autocomplete: "new-password",
        help: user ? "empty: stays as it is" : "",
      },
      ...TAGS.map((tag) => ({
        name: tag,
        label: {
          administrator: "administrator: everything",
          monitoring: "monitoring: sees all vhosts and the node",
          policymaker: "policymaker: sets policies",
          management: "management: this page, for own vhosts",
        }[tag],
        type: "checkbox",
        value: now.has(tag),
      })),
    ],
    command: (v) =>
      user
        ? `penstock set_user_tags ${shell(user.name)} ${tagsOf(v).map(shell).join(" ")}${v.password ? `\npenstock change_password ${shell(user.name)} --stdin` : ""}`
        : `penstock add_user ${shell(v.name || "NAME")} --stdin${tagsOf(v)
            .map((tag) => ` --tag ${shell(tag)}`)
            .join("")}`,
    run: async (v) => {
      if (!user) return put(at("users", v.name), { tags: tagsOf(v), password: v.password });
      await put(`${at("penstock", "users", user.name)}/tags`, { tags: tagsOf(v) });
      if (v.password) await put(`${at("penstock", "users", user.name)}/password`, { password: v.password });
    },
    done: user ? "The user was changed." : "The user was added.",
  });
}

const removeUsers = (users) =>
  ask({
    title: users.length === 1 ? `Delete the user ${users[0].name}?` : `Delete ${users.length} users?`,
    danger: true,
    action: "Delete",
    body: html`<p>Their permissions are deleted too, and their connections are closed. ${users.some((u) => u.name === signedIn.value?.name) && html`<b>You are one of them.</b>`}</p>`,
    command: users.map((u) => `penstock delete_user ${shell(u.name)}`).join("\n"),
    run: () => delAll(users.map((u) => at("users", u.name))),
    done: "Deleted.",
  });

function Users() {
  const [version, after] = useVersion();
  return html`<${Table} caption="Users" path="users" columns=${userColumns} version=${version} every=${10} href=${(u) => href(["admin", "permissions"], { filter: u.name })}
    tools=${html`<button class="primary" onClick=${() => after(editUser())}>Add a user …</button>`}
    actions=${[
      { title: "Change …", run: (rows) => after(editUser(rows[0])) },
      { title: "Delete …", danger: true, run: (rows) => after(removeUsers(rows)) },
    ]} />`;
}

// ---- permissions

const COLUMNS_MAX = 8;
const PARTS = ["configure", "write", "read"];
const NOTE = "a regular expression of names; .* for all, empty for none";

function editPermissions(user, vhost, now) {
  return ask({
    title: `What ${user} may do in ${vhost}`,
    action: "Set",
    fields: PARTS.map((part) => ({
      name: part,
      label: {
        configure: "Configure: declare and delete",
        write: "Write: publish, and bind queues",
        read: "Read: consume, get, purge, and bind from",
      }[part],
      value: now?.[part] ?? ".*",
      help: NOTE,
    })),
    command: (v) =>
      `penstock set_permissions ${shell(user)} ${PARTS.map((part) => shell(v[part])).join(" ")}${ofVhost(vhost)}`,
    run: (v) => put(at("permissions", vhost, user), Object.fromEntries(PARTS.map((part) => [part, v[part]]))),
    done: "The permissions were set.",
  });
}

const clearPermissions = (user, vhost) =>
  ask({
    title: `Take ${vhost} away from ${user}?`,
    danger: true,
    action: "Take away",
    body: html`<p>The user can no longer open connections to it, and open ones may do nothing.</p>`,
    command: `penstock clear_permissions ${shell(user)}${ofVhost(vhost)}`,
    run: () => del(at("permissions", vhost, user)),
    done: "The permissions were taken away.",
  });

/** A matrix: users down, vhosts across. */
function Permissions({ vhost }) {
  const [version, after] = useVersion();
  const known = usePolled(
    async () => {
      const [permissions, vhosts] = await Promise.all([get("permissions"), get("vhosts", { columns: "name" })]);
      const of = new Map(permissions.map((one) => [`${one.user}\n${one.vhost}`, one]));
      return { of, vhosts: vhosts.map((one) => one.name) };
    },
    [version],
    15,
  );
  const shown = vhost ? [vhost] : (known.data?.vhosts.slice(0, COLUMNS_MAX) ?? []);
  const cell = (user, name) => {
    const now = known.data?.of.get(`${user}\n${name}`);
    if (!now)
      return html`<button class="plain" onClick=${() => after(editPermissions(user, name))}>none, give …<span class="unseen"> ${user} permissions on ${name}</span></button>`;
    return html`<span>${PARTS.map((part) => html`<span key=${part} title=${`${part}: ${now[part] || "nothing"}`}><small>${part[0]}</small> <code>${now[part] || "–"}</code> </span>`)}</span>
      <button class="plain" onClick=${() => after(editPermissions(user, name, now))}>change …<span class="unseen"> what ${user} may do in ${name}</span></button>
      <button class="plain" onClick=${() => after(clearPermissions(user, name))}>take away …<span class="unseen"> ${name} from ${user}</span></button>`;
  };
  return html`<${Problem} error=${known.error} retry=${known.refresh} />
    ${!vhost && known.data?.vhosts.length > COLUMNS_MAX && html`<p class="muted">The first ${COLUMNS_MAX} of ${grouped(known.data.vhosts.length)} vhosts; choose one at the top for another.</p>`}
    <${Table} caption="Permissions of users on vhosts: c configure, w write, r read" path="users" params=${{ columns: "name,tags" }} version=${version} every=${15}
      columns=${[{ key: "name", title: "user", render: (u) => u.name }, ...shown.map((name) => ({ key: `on ${name}`, title: name, sort: false, render: (u) => cell(u.name, name) }))]} />
    <${Tester} vhost=${vhost} />`;
}

/** Asks the broker whether a user may do something. */
function Tester({ vhost }) {
  const [found, setFound] = useState(null);
  const test = async ({ user, where, ...asked }) =>
    setFound(await get(`${at("penstock", "permissions", where, user)}/test`, asked));
  return html`<${Panel} title="May a user do this?"><${Form} action="Test" onSubmit=${test} fields=${[
    { name: "user", label: "User", required: true },
    { name: "where", label: "vhost", value: vhost ?? "/", required: true },
    { name: "verb", label: "may", type: "select", options: PARTS },
    { name: "name", label: "the queue or exchange", help: "empty: the default exchange" },
    { name: "routing_key", label: "with the routing key", help: "of a topic exchange; empty: not looked at" },
  ]} />
    <div role="status">${found && html`<p><${Chip} level=${found.is_allowed ? "ok" : "danger"}>${found.is_allowed ? "yes" : "no"}<//> ${found.why}</p>`}</div><//>`;
}

// ---- topic permissions

function editTopic(vhost, now) {
  return ask({
    title: now ? `Routing keys of ${now.user} at ${now.exchange}` : "Set routing keys of a user",
    action: "Set",
    body: html`<p>They add to the permissions, which must allow the exchange too.</p>`,
    fields: [
      ...(now
        ? []
        : [
            { name: "user", label: "User", required: true },
            { name: "vhost", label: "vhost", value: vhost ?? "/", required: true },
            { name: "exchange", label: "Topic exchange", required: true, value: "amq.topic" },
          ]),
      {
        name: "write",
        label: "Write: publish with",
        value: now?.write ?? ".*",
        help: "a regular expression of routing keys; {username} and {vhost} stand for these names",
      },
      { name: "read", label: "Read: bind with", value: now?.read ?? ".*" },
    ],
    command: (v) => {
      const w = { ...now, ...v };
      return `penstock set_topic_permissions ${shell(w.user || "USER")} ${shell(w.exchange)} ${shell(w.write)} ${shell(w.read)}${ofVhost(w.vhost)}`;
    },
    run: (v) => {
      const w = { ...now, ...v };
      return put(at("topic-permissions", w.vhost, w.user), { exchange: w.exchange, write: w.write, read: w.read });
    },
    done: "They were set.",
  });
}

// The API clears all of a user in a vhost at once, as RabbitMQ's does.
const clearTopic = (row) =>
  ask({
    title: `Allow ${row.user} every routing key in ${row.vhost} again?`,
    danger: true,
    action: "Allow every key",
    body: html`<p>What was set for ${row.user} at all topic exchanges of ${row.vhost} is removed.</p>`,
    command: `penstock clear_topic_permissions ${shell(row.user)}${ofVhost(row.vhost)}`,
    run: () => del(at("topic-permissions", row.vhost, row.user)),
    done: "Every routing key is allowed.",
  });

function TopicPermissions({ vhost }) {
  const [version, after] = useVersion();
  return html`<${Table} caption="Topic permissions" path=${vhost ? `${at("vhosts", vhost)}/topic-permissions` : "topic-permissions"} version=${version} every=${15} rowKey=${(one) => `${one.user}\n${one.vhost}\n${one.exchange}`}
    columns=${[
      { key: "user", title: "user" },
      { key: "vhost", title: "vhost" },
      { key: "exchange", title: "exchange" },
      { key: "write", title: "may publish with", render: (one) => html`<code>${one.write}</code>` },
      { key: "read", title: "may bind with", render: (one) => html`<code>${one.read}</code>` },
    ]}
    tools=${html`<button class="primary" onClick=${() => after(editTopic(vhost))}>Set …</button>`}
    actions=${[
      { title: "Change …", run: ([row]) => after(editTopic(vhost, row)) },
      { title: "Allow every key …", danger: true, run: ([row]) => after(clearTopic(row)) },
    ]}
    empty=${html`<${Empty} title="No user's routing keys are limited."><button class="primary" onClick=${() => after(editTopic(vhost))}>Set …</button><//>`} />`;
}

// ---- policies

const APPLY_TO = ["all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges"];
const COMMANDS = {
  policies: ["set_policy", "clear_policy"],
  "operator-policies": ["set_operator_policy", "clear_operator_policy"],
};

/** Which queues match a pattern now, and which policy they have. */
function Matches({ vhost, pattern, applyTo }) {
  const [found, setFound] = useState(null);
  useEffect(() => {
    let isOld = false;
    const timer = setTimeout(() => {
      const ask = (list) =>
        get(at(list, vhost), {
          name: pattern,
          use_regex: true,
          page: 1,
          page_size: 10,
          columns: "name,policy,operator_policy",
          disable_stats: true,
        });
      ask(applyTo === "exchanges" ? "exchanges" : "queues").then(
        (page) => {
          if (!isOld) setFound(page);
        },
        (error) => {
          if (!isOld) setFound({ error });
        },
      );
    }, 250);
    return () => {
      isOld = true;
      clearTimeout(timer);
    };
  }, [vhost, pattern, applyTo]);
  if (!found) return null;
  if (found.error) return html`<p class="error">${found.error.message}</p>`;
  const what = applyTo === "exchanges" ? "exchanges" : "queues";
  return html`<p role="status">${grouped(found.filtered_count)} of ${grouped(found.total_count)} ${what} have such a name${found.items.length ? ": " : "."}${found.items.map(
    (one, i) =>
      html`${i ? ", " : ""}<code>${one.name}</code>${one.policy ? html` <small>(has ${one.policy})</small>` : ""}`,
  )}${found.filtered_count > found.items.length ? " …" : ""}</p>`;
}

function editPolicy(kind, vhost, now) {
  const given = (v) => objectOf("Definition", v.definition, '{"max-length": 1000}');
  return ask({
    title: now ? `Change the policy ${now.name}` : kind === "policies" ? "Set a policy" : "Set an operator policy",
    action: "Set",
    body:
      kind === "policies"
        ? html`<p>Of several policies that match, the one with the highest priority counts. It applies to what there is, at once.</p>`
        : html`<p>Limits that policies and arguments cannot exceed. It applies to what there is, at once.</p>`,
    fields: [
      ...(now
        ? []
        : [
            { name: "vhost", label: "vhost", value: vhost ?? "/", required: true },
            { name: "name", label: "Name", required: true },
          ]),
      {
        name: "pattern",
        label: "Pattern",
        required: true,
        value: now?.pattern ?? "^",
        help: "a regular expression of names",
      },
      {
        name: "apply_to",
        label: "For",
        type: "select",
        value: now?.["apply-to"] ?? "all",
        options: APPLY_TO.map((one) => [one, one.replace("_", " ")]),
      },
      {
        name: "definition",
        label: "Definition",
        type: "textarea",
        rows: 4,
        required: true,
        value: typed(now?.definition),
        placeholder: '{"max-length": 1000}',
        help: "JSON: keys and values",
      },
      { name: "priority", label: "Priority", type: "number", min: -2147483648, value: now?.priority ?? 0 },
    ],
    preview: (v) => html`<${Matches} vhost=${now?.vhost ?? v.vhost} pattern=${v.pattern} applyTo=${v.apply_to} />`,
    command: (v) =>
      `penstock ${COMMANDS[kind][0]} ${shell(now?.name ?? (v.name || "NAME"))} ${shell(v.pattern)} ${shell(v.definition.replace(/\s+/g, " "))} --apply-to ${v.apply_to} --priority ${v.priority || 0}${ofVhost(now?.vhost ?? v.vhost)}`,
    run: (v) =>
      put(at(kind, now?.vhost ?? v.vhost, now?.name ?? v.name), {
        pattern: v.pattern,
        definition: given(v),
        priority: v.priority || 0,
        "apply-to": v.apply_to,
      }),
    done: "The policy was set.",
  });
}

const removePolicies = (kind, rows) =>
  ask({
    title: rows.length === 1 ? `Delete the policy ${rows[0].name}?` : `Delete ${rows.length} policies?`,
    danger: true,
    action: "Delete",
    body: html`<p>What it set no longer counts, at once; the next policy that matches does.</p>`,
    preview: () =>
      rows.length === 1
        ? html`<${Matches} vhost=${rows[0].vhost} pattern=${rows[0].pattern} applyTo=${rows[0]["apply-to"]} />`
        : null,
    command: rows.map((one) => `penstock ${COMMANDS[kind][1]} ${shell(one.name)}${ofVhost(one.vhost)}`).join("\n"),
    run: () => delAll(rows.map((one) => at(kind, one.vhost, one.name))),
    done: "Deleted.",
  });

function Policies({ kind, vhost }) {
  const [version, after] = useVersion();
  const mayChange = kind === "policies" || may("administrator");
  const set =
    mayChange && html`<button class="primary" onClick=${() => after(editPolicy(kind, vhost))}>Set a policy …</button>`;
  return html`<${Table} caption=${kind === "policies" ? "Policies" : "Operator policies"} path=${vhost ? at(kind, vhost) : kind} version=${version} every=${15} rowKey=${(one) => `${one.vhost}\n${one.name}`}
    columns=${[
      { key: "name", title: "name" },
      { key: "vhost", title: "vhost" },
      { key: "pattern", title: "pattern", render: (one) => html`<code>${one.pattern}</code>` },
      { key: "apply-to", title: "for" },
      {
        key: "definition",
        title: "definition",
        sort: false,
        render: (one) => html`<code>${JSON.stringify(one.definition)}</code>`,
      },
      { key: "priority", title: "priority", number: true },
    ]}
    tools=${set} actions=${
      mayChange
        ? [
            { title: "Change …", run: ([row]) => after(editPolicy(kind, vhost, row)) },
            { title: "Delete …", danger: true, run: (rows) => after(removePolicies(kind, rows)) },
          ]
        : []
    }
    empty=${html`<${Empty} title="There is none yet."><p>A policy sets limits and other arguments of all queues and exchanges whose names match.</p>${set}<//>`} />`;
}

// ---- limits

function Limits() {
  const [version, after] = useVersion();
  return html`${["vhost", "user"].map((kind) => html`<${LimitsOf} key=${kind} kind=${kind} version=${version} after=${after} />`)}`;
}

function LimitsOf({ kind, version, after }) {
  const { data, error } = usePolled(
    async () => new Map((await get(`${kind}-limits`)).map((one) => [one[kind], one.value])),
    [version],
    15,
  );
  const of = (row) => data?.get(row.name) ?? {};
  return html`<${Panel} title=${kind === "vhost" ? "Of vhosts" : "Of users"}><${Problem} error=${error} />
    <${Table} caption=${`Limits of ${kind}s`} path=${`${kind}s`} params=${{ columns: "name" }} prefix=${kind === "user" ? "u." : ""} version=${version} every=${15}
      columns=${[
        { key: "name", title: kind, render: (row) => row.name },
        ...LIMITS[kind].map(([key, title]) => ({
          key,
          title,
          number: true,
          sort: false,
          render: (row) => limitOf(of(row)[key]),
        })),
        {
          key: "change",
          title: "change",
          sort: false,
          render: (row) =>
            html`<button class="plain" onClick=${() => after(editLimits(kind, row.name, of(row)))}>change …<span class="unseen"> the limits of ${row.name}</span></button>`,
        },
      ]} /><//>`;
}
