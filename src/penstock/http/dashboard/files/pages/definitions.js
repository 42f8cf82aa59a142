/** Definitions: export, and import with a look at what would change first. A part of the page Admin. */
import { at, post } from "../parts/api.js";
import { ask, ofVhost, shell } from "../parts/dialog.js";
import { Form } from "../parts/form.js";
import { grouped } from "../parts/format.js";
import { html, useState } from "../parts/ui.js";
import { Panel } from "../parts/words.js";

const SECTIONS = [
  "users",
  "vhosts",
  "permissions",
  "policies",
  "operator_policies",
  "parameters",
  "exchanges",
  "queues",
  "bindings",
];
const NOTES = [
  ["differs", "There with other properties, and left as they are"],
  ["left_out", "Left out, because Penstock has not"],
  ["not_run", "Stored only: there are no shovels and no federation"],
];

const pathOf = (kind, vhost) => (vhost ? at(...kind, vhost) : at(...kind));

export default function Definitions({ vhost }) {
  const name = `penstock-definitions${vhost ? "-of-a-vhost" : ""}.json`;
  return html`<${Panel} title="Export"><p>${vhost ? html`Policies, queues, exchanges and bindings of the vhost ${vhost}; it can be imported into another vhost.` : "Users with hashes of their passwords, vhosts, permissions, policies, queues, exchanges and bindings. Messages are not in it."}${" "}
      Choose at the top whether it is of all vhosts or of one.</p>
      <p><a class="button" href=${`api/${pathOf(["definitions"], vhost)}?download=${name}`} download=${name}>Download ${vhost ? `the definitions of ${vhost}` : "all definitions"}</a></p>
      <details class="command"><summary>The same as a command</summary><code class="block">penstock export_definitions ${name}${vhost ? ofVhost(vhost) || " --vhost /" : ""}</code></details><//>
    <${Import} vhost=${vhost} />`;
}

function Import({ vhost }) {
  const [looked, setLooked] = useState(null);
  const look = async ({ file, leave_out }) => {
    setLooked(null);
    if (!file) throw new Error("Choose a file first.");
    let given;
    try {
      given = JSON.parse(await file.text());
    } catch (error) {
      throw new Error(`${file.name} is no JSON (${error.message})`);
    }
    const send = (dry_run) => post(pathOf(["penstock", "definitions"], vhost), given, { leave_out, dry_run });
    setLooked({ name: file.name, leave_out, send, found: await send(true) });
  };
  const apply = async () => {
    const total = SECTIONS.reduce((sum, one) => sum + (looked.found[one] ?? 0), 0);
    const isDone = await ask({
      title: `Import ${looked.name}?`,
      action: `Import ${grouped(total)}`,
      body: html`<p>${grouped(total)} entries are added or changed${vhost ? ` in ${vhost}` : ""}: all, or nothing. Nothing is deleted.</p>`,
      command: `penstock import_definitions${looked.leave_out ? " --leave-out" : ""}${vhost ? ofVhost(vhost) || " --vhost /" : ""} ${shell(looked.name)}`,
      run: () => looked.send(false),
      done: "The definitions were imported.",
    });
    if (isDone) setLooked(null);
  };
  return html`<${Panel} title="Import"><p>RabbitMQ's or Penstock's definitions${vhost ? `, into the vhost ${vhost}` : ""}. Nothing changes before you have seen what would.</p>
    <${Form} action="Show what would change" onSubmit=${look} fields=${[
      { name: "file", label: "File", type: "file", accept: ".json,application/json" },
      { name: "leave_out", label: "leave out what Penstock has not", type: "checkbox" },
    ]} />
    <div role="status">${
      looked &&
      html`<h3>${looked.name}</h3><table><caption class="unseen">What would be new or changed</caption><thead><tr><th scope="col">kind</th><th scope="col" class="number">new or changed</th></tr></thead>
        <tbody>${SECTIONS.filter((one) => looked.found[one] !== undefined).map((one) => html`<tr key=${one}><td>${one.replace("_", " ")}</td><td class="number">${grouped(looked.found[one])}</td></tr>`)}</tbody></table>
      ${NOTES.filter(([key]) => looked.found[key]?.length).map(([key, title]) => html`<h3>${title}: ${grouped(looked.found[key].length)}</h3><ul class="scroll">${looked.found[key].map((line) => html`<li key=${line}>${line}</li>`)}</ul>`)}
      <p><button class="primary" onClick=${apply}>Import …</button></p>`
    }</div><//>`;
}
