/** Is it healthy? What grows? When is the disk full? Who is blocked? */
import { at, get, may } from "../parts/api.js";
import { Chart, Sparkline, STATES } from "../parts/chart.js";
import { bytes, clock, count, duration, millis, NONE, rate } from "../parts/format.js";
import { stream, usePolled } from "../parts/live.js";
import { useProblems } from "../parts/problems.js";
import { href, setParams } from "../parts/router.js";
import { RANGES, useSamples } from "../parts/samples.js";
import { NotListed } from "../parts/table.js";
import { html } from "../parts/ui.js";
import { Chip, Empty, Panel, Problem, Sentence, Time } from "../parts/words.js";

const NUMBERS = [
  ["published", "published", rate],
  ["delivered", "delivered", rate],
  ["acked", "acked", rate],
  ["ready", "ready", count],
  ["unacked", "unacked", count],
  ["connections", "connections", count],
  ["oldest_ready_s", "oldest ready", duration],
  ["sync_p99_ms", "sync p99", millis],
];
const LARGEST = new Set(["oldest_ready_s", "sync_p99_ms", "time", "budget_bytes"]);

/** One row of the rows of several vhosts: sums, but the largest of times. */
export function together(rows) {
  const sum = {};
  for (const row of rows) {
    for (const [key, value] of Object.entries(row)) {
      if (typeof value === "number")
        sum[key] = LARGEST.has(key) ? Math.max(sum[key] ?? 0, value) : (sum[key] ?? 0) + value;
    }
  }
  return sum;
}

export const switchOf = (name, current, options) =>
  html`<span class="switch" role="group" aria-label=${name}>${options.map(
    ([key, title]) =>
      html`<button key=${key} aria-pressed=${key === current} onClick=${() => setParams({ [name]: key })}>${title}</button>`,
  )}</span>`;

export const scaleSwitch = (params) =>
  switchOf("scale", params.scale ?? "share", [
    ["share", "share"],
    ["log", "log"],
    ["linear", "linear"],
  ]);
export const rangeSwitch = (params) => switchOf("range", params.range ?? "10m", RANGES);

/** The states of messages, stacked; as lines on a logarithm, where delta may be 10,000 times alpha. rows: of useSamples. */
export function River({ rows, scale }) {
  const last = rows.at(-1) ?? {};
  const words = STATES.map(({ key }) => `${key} ${count(last[key])}`)
    .reverse()
    .join(", ");
  return html`<${Chart} times=${rows.map((row) => row.time)} stacked=${scale !== "log"} scale=${scale} describe=${`Messages by state: ${words}`}
    series=${STATES.map((state) => ({ ...state, label: state.key, values: rows.map((row) => row[state.key] ?? null) }))} />`;
}

/** RAM: what is counted, what is allowed, and what the backlog would take if it were all in RAM. */
export function Ram({ rows, names = { counted: "counted_bytes", budget: "budget_bytes" }, rss }) {
  const last = rows.at(-1) ?? {};
  const [now, all] = [last[names.counted], last.backlog_as_alphas_bytes];
  const factor = now > 0 && all > now * 2 ? ` (${count(Math.round(all / now))}× less)` : "";
  const series = [
    { label: "counted", colour: "link", values: rows.map((row) => row[names.counted] ?? null) },
    { label: "budget", colour: "warning", dash: [6, 4], values: rows.map((row) => row[names.budget] ?? null) },
    ...(rss ? [{ label: "RSS", colour: "text", values: rows.map((row) => row[rss] ?? null) }] : []),
    {
      label: "had all been alphas",
      colour: "muted",
      dash: [2, 3],
      values: rows.map((row) => row.backlog_as_alphas_bytes ?? null),
    },
  ];
  const words = now === undefined ? "" : `${bytes(all)} of backlog in ${bytes(now)} of RAM${factor}`;
  return html`<${Chart} times=${rows.map((row) => row.time)} series=${series} scale="log" format=${bytes} describe=${`RAM: ${words}`} /><p class="muted">${words}</p>`;
}

export default function Overview({ vhost, params }) {
  const vhosts = usePolled(() => get("vhosts", { columns: "name" }), [], 30);
  const names = vhost ? [vhost] : (vhosts.data?.map(({ name }) => name) ?? []);
  const pick = (event) =>
    together(
      Object.entries(event.vhosts ?? {})
        .filter(([name]) => !vhost || name === vhost)
        .map(([, row]) => row),
    );
  const {
    event,
    at: when,
    rows,
  } = useSamples(
    "overview",
    names.map((name) => at("penstock", "history", name)),
    pick,
    together,
    params.range,
  );
  const now = rows.at(-1) ?? {};
  const isStale = stream.use() === "stale";
  if (!event)
    return html`<h1>Overview</h1><${Problem} error=${vhosts.error} /><p>${isStale ? "The server sends no figures." : "Waiting for the first figures …"}</p>`;
  const { node = {} } = event;
  const trend = rows.slice(-120);
  return html`<h1>Overview</h1>
    ${isStale && html`<${Sentence} level="warning" text=${`No news since ${clock(when / 1000)}: these are the last figures.`} />`}
    <${Worst} />
    <div class=${isStale ? "stale" : ""}>
    <div class="numbers">${NUMBERS.filter(([key]) => key in now || key !== "oldest_ready_s").map(
      ([
        key,
        title,
        format,
      ]) => html`<div key=${key} class="figure"><span class="muted">${title}</span><b>${key in now ? format(now[key]) : NONE}</b>
      <${Sparkline} values=${trend.map((row) => row[key])} /></div>`,
    )}</div>
    <div class="grid">
      <${Panel} title="Backlog by state" actions=${html`${scaleSwitch(params)}${rangeSwitch(params)}`}><${River} rows=${rows} scale=${params.scale ?? "share"} /><//>
      <${Panel} title="Memory"><${Ram} rows=${rows} />${node.memory && html`<p class="muted">broker: RSS ${bytes(node.memory.rss)}, counted ${bytes(node.memory.counted)} of ${bytes(node.memory.budget)}</p>`}<//>
    </div>
    ${node.disk_free !== undefined && html`<${Disk} node=${node} time=${event.time} />`}
    <${Vhosts} vhosts=${event.vhosts ?? {}} only=${vhost} />
    </div>
    <div class="grid"><${TopQueues} vhost=${vhost} by=${params.top ?? "growth"} />${may("monitoring") && html`<${Alerts} vhost=${vhost} />`}</div>`;
}

/** What is wrong first, and that there is more. */
function Worst() {
  const { all, loud } = useProblems();
  if (!all) return null;
  const others = all.length - 1;
  if (!loud.length)
    return html`<${Sentence} text=${all.length ? "Nothing is wrong but what is silenced." : may("monitoring") ? "All is well." : "Your vhosts serve. Users with the tag monitoring see here what is wrong with queues."} href=${all.length ? href(["alarms"]) : undefined} />`;
  return html`<${Sentence} ...${loud[0]}>${others > 0 && html` <a href=${href(["alarms"])}>${others} more</a>`}<//>`;
}

const free = []; // {time, bytes} of the last ten minutes that this tab has seen

/** Seconds until publishers wait at the rate of the last minutes; undefined if the disk does not fill. */
function fullIn({ disk_free: now, disk_limit: limit }, time) {
  if (free.at(-1)?.time !== time) free.push({ time, bytes: now });
  while (free.length > 600) free.shift();
  const span = time - free[0].time;
  const rate = (free[0].bytes - now) / span;
  return span >= 60 && rate > 1024 && now > limit ? (now - limit) / rate : undefined;
}

function Disk({ node, time }) {
  const left = fullIn(node, time);
  const part = node.disk_limit ? Math.min(1, node.disk_limit / Math.max(node.disk_free, 1)) : 0;
  return html`<p class=${`sentence ${part >= 1 ? "danger" : part > 0.5 ? "warning" : "ok"}`}><span>Disk: ${bytes(node.disk_free)} free, publishers wait below ${bytes(node.disk_limit)}${left === undefined ? "" : `: in ${duration(left)} at the rate of the last minutes`}.</span></p>`;
}

const LEVELS = { running: "ok", starting: "warning", stopped: "", down: "danger" };

function Vhosts({ vhosts, only }) {
  const processes =
    usePolled(() => (may("monitoring") ? get("penstock/processes") : Promise.resolve([])), [], 10).data ?? [];
  const of = (name) => processes.find((one) => one.process === "vhost" && one.vhost === name) ?? {};
  const shown = Object.entries(vhosts).filter(([name]) => !only || name === only);
  return html`<${Panel} title="Vhosts"><div class="wide"><table><thead><tr><th scope="col">vhost</th><th scope="col">state</th><th scope="col" class="number">restarts</th><th scope="col">since</th><th scope="col" class="number">RSS</th><th scope="col" class="number">published</th>
    <th scope="col" class="number">delivered</th><th scope="col" class="number">ready</th><th scope="col" class="number">unacked</th><th scope="col" class="number">connections</th><th scope="col" class="number">unroutable</th></tr></thead>
    <tbody>${shown.map(
      ([
        name,
        row,
      ]) => html`<tr key=${name} class=${row.state === "running" ? "" : "gone"}><th scope="row"><a href=${row.state === "running" ? href(["queues"], { vhost: name }) : href(["vhosts", name])}>${name}</a></th><td><${Chip} level=${LEVELS[row.state] ?? "warning"} title=${row.why}>${row.state}<//>${row.why && html` <small>${row.why}</small>`}${row.blocked && html` <${Chip} level="danger" title="Publishers wait">low on ${row.blocked}<//>`}</td>
      <td class="number">${count(row.restarts)}</td><td><${Time} value=${of(name).since} /></td><td class="number">${bytes(of(name).rss_bytes)}</td><td class="number">${rate(row.published)}</td><td class="number">${rate(row.delivered)}</td><td class="number">${count(row.ready)}</td>
      <td class="number">${count(row.unacked)}</td><td class="number">${count(row.connections)}</td><td class="number">${row.unroutable > 0 ? html`<${Chip} level="warning">${rate(row.unroutable)}<//>` : rate(row.unroutable)}</td></tr>`,
    )}</tbody></table></div><//>`;
}

const TOPS = {
  growth: ["growth", "messages_details.rate", (q) => rate(q.messages_details?.rate)],
  ready: ["ready", "messages_ready", (q) => count(q.messages_ready)],
  oldest: ["oldest", "penstock.oldest_ready_s", (q) => duration(q.penstock?.oldest_ready_s)],
  unacked: ["unacked", "messages_unacknowledged", (q) => count(q.messages_unacknowledged)],
  redelivered: [
    "redelivered",
    "message_stats.redeliver_details.rate",
    (q) => rate(q.message_stats?.redeliver_details?.rate),
  ],
};

function TopQueues({ vhost, by }) {
  const [, sort, format] = TOPS[by] ?? TOPS.growth;
  const { data, error } = usePolled(
    () =>
      get(vhost ? at("queues", vhost) : "queues", {
        sort,
        sort_reverse: true,
        page: 1,
        page_size: 5,
        columns: `name,vhost,messages_ready,consumers,type,state,${sort}`,
      }),
    [vhost, sort],
    5,
  );
  return html`<${Panel} title="Top queues" actions=${switchOf(
    "top",
    by,
    Object.entries(TOPS).map(([key, [title]]) => [key, title]),
  )}><${Problem} error=${error} />
    <${NotListed} names=${data?.penstock?.down ?? []} />
    ${
      data?.total_count === 0 && !data.penstock?.down
        ? html`<${Empty} title="There are no queues yet."><p><a href=${href(["queues"])}>How to make one</a></p><//>`
        : html`<div class="wide"><table><tbody>${data?.items.map(
            (
              q,
            ) => html`<tr key=${`${q.vhost}\n${q.name}`}><th scope="row"><a href=${href(["queues", q.vhost, q.name])}>${q.name}</a></th><td class="number">${format(q)}</td>
      <td class="number">${count(q.messages_ready)} ready</td><td>${isUnread(q) ? html`<${Chip} level="warning">${q.state === "paused" ? "paused" : "no consumer"}<//>` : ""}</td></tr>`,
          )}</tbody></table></div>`
    }<//>`;
}

const isUnread = (q) => q.state === "paused" || (q.messages_ready > 0 && !q.consumers && q.type !== "stream");

function Alerts({ vhost }) {
  const { data, error } = usePolled(() => get("penstock/alerts"), [], 10);
  const rows = (data ?? [])
    .filter((row) => !vhost || row.vhost === vhost)
    .sort((a, b) => (a.time < b.time ? 1 : -1))
    .slice(0, 8);
  return html`<${Panel} title="Last alerts"><${Problem} error=${error} />${data && rows.length === 0 && html`<p class="muted">None.</p>`}
    <ul class="plain">${rows.map((row) => html`<li key=${`${row.vhost}\n${row.queue}\n${row.kind}\n${row.first_time}`}><${Chip} level=${row.is_on && row.kind !== "flowed" ? "warning" : ""}>${row.kind}<//> ${row.text} <small><${Time} value=${row.time} />, ${row.vhost}</small></li>`)}</ul><//>`;
}
