/** One message: properties, headers as a tree, its deaths, the body as text. Nothing of it is ever read as HTML. */
import { toast } from "./dialog.js";
import { bytes, clock, count } from "./format.js";
import { html, useState } from "./ui.js";
import { Pairs } from "./words.js";

/** A value of JSON, which opens where it is deep. */
export function Tree({ value, name }) {
  const label = name === undefined ? "" : html`<span class="muted">${name}: </span>`;
  if (value === null || typeof value !== "object")
    return html`<div>${label}<code>${typeof value === "string" ? value : JSON.stringify(value)}</code></div>`;
  const members = Object.entries(value);
  if (members.length === 0) return html`<div>${label}<code>${Array.isArray(value) ? "[]" : "{}"}</code></div>`;
  return html`<details open=${members.length <= 12}><summary>${label}${Array.isArray(value) ? `[${members.length}]` : `{${members.length}}`}</summary>
    <div class="inner">${members.slice(0, 500).map(([key, inner]) => html`<${Tree} key=${key} name=${key} value=${inner} />`)}${members.length > 500 && html`<p class="muted">and ${count(members.length - 500)} more</p>`}</div></details>`;
}

/** The bytes of a payload as the API has it. */
export function bytesOf(message) {
  if (message.payload_encoding !== "base64") return new TextEncoder().encode(message.payload);
  return Uint8Array.from(atob(message.payload), (c) => c.charCodeAt(0));
}

function hex(data) {
  const lines = [];
  for (let i = 0; i < Math.min(data.length, 4096); i += 16) {
    const part = [...data.slice(i, i + 16)];
    lines.push(
      `${i.toString(16).padStart(6, "0")}  ${part
        .map((b) => b.toString(16).padStart(2, "0"))
        .join(" ")
        .padEnd(47)}  ${part.map((b) => (b >= 32 && b < 127 ? String.fromCharCode(b) : ".")).join("")}`,
    );
  }
  return lines.join("\n");
}

/** Lets the user keep bytes as a file. */
export function download(name, data, type = "application/octet-stream") {
  const address = URL.createObjectURL(new Blob([data], { type }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/** The deaths of a message, the last first, as rows. */
export const Deaths = ({ deaths }) =>
  html`<ol class="deaths">${deaths.map((d, i) => html`<li key=${i}><b>${d.reason}</b> in <code>${d.queue}</code> ${clock(d.time)}, ${count(d.count)} times, from ${d.exchange ? html`<code>${d.exchange}</code>` : "the default exchange"} with <code>${(d["routing-keys"] ?? []).join(", ")}</code></li>`)}</ol>`;

/** @param {{message: Object, whole?: () => Promise<Object>}} props whole: gets it with all of its body */
export function Message({ message, whole }) {
  const data = bytesOf(message);
  let json;
  try {
    json = message.payload_encoding === "string" ? JSON.parse(message.payload) : undefined;
  } catch {
    json = undefined;
  }
  const isJson = json !== null && typeof json === "object";
  const [view, setView] = useState(null);
  const current = view ?? (isJson ? "json" : message.payload_encoding === "string" ? "text" : "hex");
  const { headers, ...properties } = message.properties ?? {};
  const views = [...(isJson ? ["json"] : []), ...(message.payload_encoding === "string" ? ["text"] : []), "hex"];
  return html`<${Pairs} pairs=${[
    ["exchange", message.exchange || "(default)"],
    ["routing key", message.routing_key],
    ["redelivered", message.redelivered ? "yes" : "no"],
    ["bytes", bytes(message.payload_bytes)],
    ...Object.entries(properties).map(([k, v]) => [k.replaceAll("_", " "), String(v)]),
  ]} />
    ${headers?.["x-death"] && html`<h3>Deaths</h3><${Deaths} deaths=${headers["x-death"]} />`}
    ${headers && Object.keys(headers).length > 0 && html`<h3>Headers</h3><${Tree} value=${headers} />`}
    <h3>Body <span class="switch" role="group" aria-label="Body as">${views.map((one) => html`<button type="button" key=${one} aria-pressed=${one === current} onClick=${() => setView(one)}>${one}</button>`)}</span>
      ${" "}<button type="button" class="plain" onClick=${async () => {
        try {
          download("message", bytesOf(whole ? await whole() : message));
        } catch (error) {
          toast(error.message, "danger");
        }
      }}>download</button></h3>
    ${data.length < message.payload_bytes && html`<p class="muted">the first ${bytes(data.length)} of ${bytes(message.payload_bytes)}</p>`}
    ${current === "json" ? html`<${Tree} value=${json} />` : html`<pre>${current === "text" ? message.payload : hex(data)}</pre>`}`;
}
