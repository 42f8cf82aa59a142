/** Parameters: values that are stored for programs that read them, of the whole broker and of vhosts. */
import { at, delAll, get, put } from "../parts/api.js";
import { ask, ofVhost, shell } from "../parts/dialog.js";
import { usePolled } from "../parts/live.js";
import { Table } from "../parts/table.js";
import { html, useState } from "../parts/ui.js";
import { Panel, Problem } from "../parts/words.js";

// Of a vhost; they are stored only.
const COMPONENTS = ["shovel", "federation-upstream", "federation-upstream-set"];

const value = {
  key: "value",
  title: "value",
  sort: false,
  render: (p) => html`<code>${JSON.stringify(p.value)}</code>`,
};

function valueOf(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`Value: expected JSON, such as 5, "a" or {"a": 1} (${error.message})`);
  }
}

/** Asks for a parameter and stores it. now: the one that is changed. isGlobal: of the whole broker. */
function edit(isGlobal, vhost, now) {
  const where = (v) => ({
    component: now?.component ?? v.component,
    vhost: now?.vhost ?? v.vhost,
    name: now?.name ?? v.name,
  });
  return ask({
    title: now ? `Change ${now.name}` : isGlobal ? "Set a parameter of the broker" : "Set a parameter of a vhost",
    action: "Set",
    body: html`<p>It is stored, and programs may read it. ${isGlobal ? html`Penstock itself shows <code>cluster_name</code> only.` : "There are no shovels and no federation here."}</p>`,
    fields: [
      ...(now || isGlobal
        ? []
        : [
            { name: "component", label: "Component", type: "select", options: COMPONENTS.map((one) => [one, one]) },
            { name: "vhost", label: "vhost", value: vhost ?? "/", required: true },
          ]),
      ...(now ? [] : [{ name: "name", label: "Name", required: true }]),
      {
        name: "value",
        label: "Value",
        type: "textarea",
        rows: 4,
        required: true,
        value: now ? JSON.stringify(now.value, null, 1) : "",
        help: "JSON",
      },
    ],
    command: (v) => {
      const { component, vhost: of, name } = where(v);
      const words = `${shell(name || "NAME")} ${shell(v.value.replace(/\s+/g, " ") || "JSON")}`;
      return isGlobal
        ? `penstock set_global_parameter ${words}`
        : `penstock set_parameter ${component ?? COMPONENTS[0]} ${words}${ofVhost(of)}`;
    },
    run: (v) => {
      const { component, vhost: of, name } = where(v);
      const body = { value: valueOf(v.value) };
      return isGlobal
        ? put(at("global-parameters", name), body)
        : put(at("parameters", component ?? COMPONENTS[0], of, name), body);
    },
    done: "The parameter was set.",
  });
}

const remove = (isGlobal, rows) =>
  ask({
    title: rows.length === 1 ? `Delete the parameter ${rows[0].name}?` : `Delete ${rows.length} parameters?`,
    danger: true,
    action: "Delete",
    body: html`<p>Programs that read it find it no more.</p>`,
    command: rows
      .map((p) =>
        isGlobal
          ? `penstock clear_global_parameter ${shell(p.name)}`
          : `penstock clear_parameter ${p.component} ${shell(p.name)}${ofVhost(p.vhost)}`,
      )
      .join("\n"),
    run: () =>
      delAll(
        rows.map((p) => (isGlobal ? at("global-parameters", p.name) : at("parameters", p.component, p.vhost, p.name))),
      ),
    done: "Deleted.",
  });

export default function Parameters({ vhost }) {
  return html`<${List} title="Of the whole broker" isGlobal vhost=${vhost} path="global-parameters" prefix="g" columns=${[{ key: "name", title: "name" }, value]} />
    <${List} title="Of vhosts" isGlobal=${false} vhost=${vhost} path="parameters" prefix="v" columns=${[
      { key: "name", title: "name" },
      { key: "component", title: "component" },
      { key: "vhost", title: "vhost" },
      value,
    ]} />`;
}

function List({ title, isGlobal, vhost, path, prefix, columns }) {
  const [version, setVersion] = useState(0);
  const after = async (asked) => {
    if (await asked) setVersion((n) => n + 1);
  };
  const { data, error, refresh } = usePolled(() => get(path), [path, version], 10);
  // Policies and limits are parameters, too: they have pages of their own.
  const rows = data?.filter((p) => isGlobal || (COMPONENTS.includes(p.component) && (!vhost || p.vhost === vhost)));
  return html`<${Panel} title=${title} actions=${html`<button class="primary" onClick=${() => after(edit(isGlobal, vhost))}>Set a parameter …</button>`}><${Problem} error=${error} retry=${refresh} /><${Table} caption=${`Parameters: ${title}`} rows=${rows ?? null} prefix=${prefix} columns=${columns}
    rowKey=${(p) => [p.name, p.component, p.vhost].filter(Boolean).join("\n")} empty=${html`<p class="muted">None.</p>`}
    actions=${[
      { title: "Change …", run: (rows) => after(edit(isGlobal, vhost, rows[0])) },
      { title: "Delete …", danger: true, run: (rows) => after(remove(isGlobal, rows)) },
    ]} /><//>`;
}
