/** What is in a queue, and why its dead letters died. Nothing is taken. */
import { at, get, may, post } from "../parts/api.js";
import { ask, ofVhost, shell, toast } from "../parts/dialog.js";
import { ago, bytes, clock, count, duration, grouped as digits, secondsOf } from "../parts/format.js";
import { Form } from "../parts/form.js";
import { Message } from "../parts/message.js";
import { setParams } from "../parts/router.js";
import { html, useEffect, useState } from "../parts/ui.js";
import { Empty, Panel, Problem } from "../parts/words.js";
import { countOption, matchOptions, move, movedText } from "./queue.js";

const PAGE = 50;
const BODY_BYTES = 64 << 10;
const SCANNED_MAX = 5000; // messages that are looked at for the groups of dead letters
const HEADER = /^([^:=]+)[:=](.*)$/;

const BEGINS = [
  ["", "the head"],
  ["last", "the last 50"],
  ["position", "the position below"],
  ["time", "what came at the time below"],
];

/** Where a look begins, as the API has it. params.at: a position from 1, or a time as the browser reads it. */
function beginOf({ begin, at: given }) {
  if (begin === "last") return { last: PAGE };
  if (begin === "position") {
    if (!/^[1-9]\d*$/.test(given ?? ""))
      throw new Error(`position: given ${given || "nothing"}, expected a number from 1`);
    return { from: Number(given) - 1 };
  }
  if (begin !== "time") return {};
  const since = Date.parse(given);
  if (!(since > 0)) throw new Error(`time: given ${given || "nothing"}, expected one such as 2026-01-31 14:30`);
  return { since: Math.floor(since / 1000) };
}

/** The messages of a queue, 50 at a time, filtered by the broker. params: filters and the beginning are in the address. */
export function Messages({ queue, params }) {
  const path = `${at("penstock", "queues", queue.vhost, queue.name)}/messages`;
  const isMover = may("administrator");
  const [state, set] = useState({ rows: null, after: null, scanned: 0, isEnd: false, error: null, isBusy: false });
  const [fetched, setFetched] = useState(null);
  const wanted = params.message === undefined ? null : Number(params.message);
  const chosen =
    wanted === null
      ? null
      : (state.rows?.find((row) => row.tag === wanted) ?? (fetched?.tag === wanted ? fetched : null));
  const choose = (message) => setParams({ message: message?.tag });
  const one = async (more) =>
    (await get(path, { count: 1, ...(wanted > 0 && { after: wanted - 1 }), ...more })).messages.find(
      (row) => row.tag === wanted,
    ) ?? { tag: wanted, isGone: true };
  const header = HEADER.exec(params.header ?? "");
  const filter = {
    key: params.key,
    header: header ? `${header[1].trim()}:${header[2].trim()}` : params.header,
    body: params.text,
    older: params.older,
  };
  const [picked, pick] = useState(new Set()); // tags
  const match = {
    key: params.key || undefined,
    body: params.text || undefined,
    headers: params.header
      ? { [header ? header[1].trim() : params.header]: header ? header[2].trim() : null }
      : undefined,
    older: undefined,
  };
  try {
    match.older = params.older ? secondsOf(params.older) : undefined;
  } catch {
    // The list says it.
  }
  const isFiltered = !picked.size && Object.values(filter).some(Boolean);
  const load = async (before) => {
    set((old) => ({ ...old, isBusy: true, error: null }));
    if (!before) pick(new Set());
    try {
      const begin = before ? { after: before.after } : beginOf(params);
      const older = params.older ? secondsOf(params.older) : undefined;
      const answer = await get(path, { ...filter, older, ...begin, count: PAGE, truncate: BODY_BYTES });
      set({
        first: Object.values(filter).some(Boolean) ? null : (before ?? answer).first,
        rows: [...(before?.rows ?? []), ...answer.messages],
        after: answer.after,
        scanned: (before?.scanned ?? 0) + answer.scanned,
        isEnd: answer.is_end,
        error: null,
        isBusy: false,
      });
    } catch (error) {
      set((old) => ({ ...old, error, isBusy: false }));
    }
  };
  useEffect(() => {
    load(null);
  }, [path, JSON.stringify([filter, params.begin, params.at])]);
  useEffect(() => {
    if (wanted !== null && state.rows && !chosen)
      one({ truncate: BODY_BYTES }).then(setFetched, (error) => set((old) => ({ ...old, error })));
  }, [wanted, state.rows]);
  const whole = async () => {
    const found = await one({ encoding: "base64" });
    if (found.isGone) throw new Error("It is not in the queue any more.");
    return found;
  };
  return html`<${Panel}><div class="inline"><${Form} key=${JSON.stringify([filter, params.begin, params.at])} action="Find" fields=${[
    { name: "key", label: "Routing key has", value: params.key },
    { name: "header", label: "Header (name or name:value)", value: params.header },
    { name: "text", label: "Body has", value: params.text },
    { name: "older", label: "Older than", value: params.older, placeholder: "7d" },
    { name: "begin", label: "Begin with", type: "select", options: BEGINS, value: params.begin ?? "" },
    { name: "at", label: "Position or time", value: params.at, placeholder: "2026-01-31 14:30" },
  ]}
      onSubmit=${(v) => {
        setParams({ ...v, message: "" });
        if (Object.entries(v).every(([k, value]) => value === (params[k] ?? ""))) load(null);
      }} /></div><//>
    <${Problem} error=${state.error} />
    <div class="split"><div class="table"><div class="wide"><table><thead><tr><td class="tick"></td><th scope="col" class="number wide-only">position</th><th scope="col" class="number">age</th><th scope="col">routing key</th><th scope="col" class="number wide-only">priority</th><th scope="col" class="number">bytes</th><th scope="col">body</th><th scope="col" class="number wide-only">attempts</th><th scope="col" class="wide-only">redelivered</th><th scope="col" class="wide-only">state</th></tr></thead>
      <tbody>${(state.rows ?? []).map(
        (
          m,
          i,
        ) => html`<tr key=${m.tag} class=${chosen?.tag === m.tag ? "selected" : ""} onClick=${() => choose(m)}><td class="tick" onClick=${(e) => e.stopPropagation()}><input type="checkbox" aria-label=${`Select message ${i + 1}`} title=${`tag ${m.tag}`} checked=${picked.has(m.tag)} onChange=${(
          e,
        ) => {
          const next = new Set(picked);
          if (e.currentTarget.checked) next.add(m.tag);
          else next.delete(m.tag);
          pick(next);
        }} /></td><td class="number wide-only">${state.first === null ? "–" : digits(state.first + i + 1)}</td>
        <td class="number" title=${clock(m.time)}>${m.time ? duration(Math.max(0, Math.round(Date.now() / 1000 - m.time))) : "–"}</td>
        <td><button class="plain" onClick=${() => choose(m)}>${m.routing_key || "(empty)"}</button></td><td class="number wide-only">${m.properties.priority ?? "–"}</td><td class="number">${bytes(m.payload_bytes)}</td><td><code>${m.payload_encoding === "string" ? m.payload.slice(0, 80) : "binary"}</code></td><td class="number wide-only">${count(m.attempts)}</td><td class="wide-only">${m.redelivered ? "yes" : ""}</td><td class="wide-only word">${m.state}</td></tr>`,
      )}
        ${state.rows?.length === 0 && html`<tr><td colspan="10">${queue.messages_ready ? "No message is like this." : "No message is ready."}</td></tr>`}</tbody></table></div>
      <div class="foot"><span>${count(state.scanned)} of ${count(queue.messages_ready)} looked at</span>
        ${!state.isEnd && state.rows && html`<button disabled=${state.isBusy} onClick=${() => load(state)}>Go on</button>`}
        <button disabled=${state.isBusy} onClick=${() => load(null)}>Look again</button>
        ${picked.size > 0 && html`<b>${count(picked.size)} selected</b>`}
        ${
          picked.size > 0 &&
          isMover &&
          html`<button onClick=${async () => {
            if (await move(queue, { tags: [...picked] })) load(null);
          }}>Move …</button><button onClick=${async () => {
            if (await replay(queue, { tags: [...picked] })) load(null);
          }}>Replay …</button>`
        }
        ${
          picked.size > 0 &&
          html`<button class="danger" onClick=${async () => {
            if (await erase(queue, { tags: [...picked] })) load(null);
          }}>Delete …</button>`
        }
        ${
          isMover &&
          isFiltered &&
          html`<button onClick=${async () => {
            if (await move(queue, match)) load(null);
          }}>Move all like these …</button>`
        }
        ${
          isFiltered &&
          html`<button class="danger" onClick=${async () => {
            if (await erase(queue, match)) load(null);
          }}>Delete all like these …</button>`
        }</div></div>
    ${chosen && html`<${Panel} title="Message" actions=${html`<button onClick=${() => choose(null)}>Close</button>`}>${chosen.isGone ? html`<p>It is not ready in this queue any more.</p>` : html`<${Message} key=${chosen.tag} message=${chosen} whole=${chosen.payload_bytes > BODY_BYTES ? whole : undefined} />`}<//>`}</div>`;
}

const DEATH = ["x-first-death-reason", "x-first-death-queue"];
const EXCEPTIONS = ["x-exception-message", "x-exception", "exception"];

/**
 * Groups of dead letters: [{key, headers, count, first, last, sample}]. headers: those that all of the group have and no others:
 * reason and queue of the first death, and the exception, if consumers or publishers said one.
 */
export function grouped(messages) {
  const groups = new Map();
  for (const message of messages) {
    const all = message.properties?.headers ?? {};
    if (all[DEATH[0]] === undefined) continue;
    const names = [...DEATH, ...EXCEPTIONS.filter((name) => typeof all[name] === "string").slice(0, 1)];
    const headers = Object.fromEntries(names.map((name) => [name, all[name]]));
    const death = all["x-death"]?.[0];
    const key = JSON.stringify(headers);
    const found =
      groups.get(key) ??
      groups.set(key, { key, headers, count: 0, first: Infinity, last: 0, sample: message }).get(key);
    found.count += 1;
    if (death?.time) {
      found.first = Math.min(found.first, death.time);
      found.last = Math.max(found.last, death.time);
    }
  }
  return [...groups.values()].sort((a, b) => b.count - a.count);
}

/** The dead letters of a queue by their reason, and their way back. */
export function DeadLetters({ queue, onDone }) {
  const path = `${at("penstock", "queues", queue.vhost, queue.name)}/messages`;
  const [state, set] = useState({ groups: null, scanned: 0, isEnd: false, error: null });
  const [turn, again] = useState(0);
  const [sample, choose] = useState(null);
  useEffect(() => {
    let isOld = false;
    (async () => {
      const found = [];
      let [after, scanned, isEnd] = [undefined, 0, false];
      try {
        while (!isEnd && scanned < SCANNED_MAX && !isOld) {
          const answer = await get(path, { count: 1000, truncate: 1024, after });
          found.push(...answer.messages);
          [after, scanned, isEnd] = [answer.after, scanned + answer.scanned, answer.is_end];
          if (!isOld) set({ groups: grouped(found), scanned, isEnd, error: null });
        }
      } catch (error) {
        if (!isOld) set((old) => ({ ...old, error }));
      }
    })();
    return () => {
      isOld = true;
    };
  }, [path, turn]);
  const dead = state.groups ?? [];
  const replayed = async (headers) => {
    if (await replay(queue, { headers })) {
      onDone();
      again(turn + 1);
    }
  };
  if (state.groups && !dead.length)
    return html`<${Empty} title="There are no dead letters here."><p>Messages that were rejected, expired or too many come to the queue that is bound to <code>x-dead-letter-exchange</code>.</p>
    <button onClick=${() => again(turn + 1)}>Look again</button><//>`;
  return html`<${Problem} error=${state.error} />
    <div class="table"><div class="tools">${may("administrator") && html`<button class="primary" onClick=${() => replayed({})}>Replay all …</button>`}
      <button onClick=${() => again(turn + 1)}>Look again</button></div>
    <div class="wide"><table><thead><tr><th scope="col">reason</th><th scope="col">died in</th><th scope="col">exception</th><th scope="col" class="number">messages</th><th scope="col">first</th><th scope="col">last</th><td></td></tr></thead>
    <tbody>${dead.map(
      (
        g,
      ) => html`<tr key=${g.key}><th scope="row">${g.headers[DEATH[0]]}</th><td><code>${g.headers[DEATH[1]]}</code></td><td>${Object.values(g.headers)[2] ?? "–"}</td><td class="number">${count(g.count)}</td>
      <td>${clock(g.first === Infinity ? null : g.first)}</td><td title=${clock(g.last)}>${g.last ? ago(g.last) : "–"}</td><td><button class="plain" onClick=${() => choose(g.sample)}>one of them</button>${may("administrator") && html` <button onClick=${() => replayed(g.headers)}>Replay …</button>`}</td></tr>`,
    )}</tbody></table></div>
    <div class="foot">${state.isEnd ? "" : "of the first "}${count(state.scanned)} messages</div></div>
    ${sample && html`<${Panel} title="One of them" actions=${html`<button onClick=${() => choose(null)}>Close</button>`}><${Message} key=${sample.tag} message=${sample} /><//>`}`;
}

/** What would happen to the messages that match, by a dry run; null if it was refused, and the user knows why. */
async function wouldHappen(path, match) {
  try {
    return await post(path, { dry_run: true, ...match });
  } catch (error) {
    toast(error.message, "danger");
    return null;
  }
}

/** Says first how many go, by a dry run. match: as of move. Resolves to whether they were deleted. */
async function erase(queue, match) {
  const path = `${at("penstock", "queues", queue.vhost, queue.name)}/delete`;
  const would = await wouldHappen(path, match);
  if (!would) return false;
  const n = would.deleted;
  if (!n) {
    toast(`No message goes. ${would.why}`, "danger");
    return false;
  }
  return ask({
    title: `Delete messages of ${queue.name}?`,
    danger: true,
    body: html`<p>${count(n)} ready ${n === 1 ? "message is" : "messages are"} deleted, and no dead letters are made. They cannot be had back.${would.stays > 0 && ` ${would.why}.`}</p>`,
    action: `Delete ${count(n)}`,
    typed: n > 10_000 ? queue.name : undefined,
    command: `penstock delete_messages ${shell(queue.name)}${matchOptions(match)} --count ${n}${ofVhost(queue.vhost)}`,
    run: async () => {
      const { deleted } = await post(path, { ...match, count: n });
      toast(`${count(deleted)} deleted.`);
    },
  });
}

/** Says first where the dead letters would go, by a dry run. match: only those with this {headers, tags}, as of move. */
export async function replay(queue, match = {}) {
  const path = `${at("penstock", "queues", queue.vhost, queue.name)}/move`;
  const would = await wouldHappen(path, match);
  if (!would) return false;
  const matches = matchOptions(match);
  return ask({
    title: `Replay ${matches ? "these" : "the"} dead letters of ${queue.name}?`,
    danger: true,
    action: (v) => `Replay ${count(Math.min(v.count || would.moved, would.moved))}`,
    body: html`<p>Each goes back to the queue in which it died last. Their deaths stay in <code>x-death</code>.</p>
      <ul>${Object.entries(would.by_queue).map(([name, n]) => html`<li key=${name}>${count(n)} to <code>${name}</code></li>`)}${would.stays > 0 && html`<li><b>${count(would.stays)} would stay</b>: ${would.why}</li>`}</ul>`,
    fields: [
      { name: "count", label: "How many at most", type: "number", min: 1, value: would.moved || 1 },
      { name: "to", label: "All to another queue instead", help: "empty: each to where it died" },
    ],
    command: (v) =>
      (v.to ? `penstock move ${shell(queue.name)} ${shell(v.to)}` : `penstock replay ${shell(queue.name)}`) +
      `${matches}${countOption(v.count)}${ofVhost(queue.vhost)}`,
    run: async (v) => {
      const answer = await post(path, { to: v.to || undefined, count: v.count || undefined, ...match });
      toast(movedText(answer), answer.stays ? "danger" : "ok");
    },
  });
}
