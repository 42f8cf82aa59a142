/** Charts by uPlot. Each has a sentence for screen readers, and its figures as a table. */
import { bytes, clock, count } from "./format.js";
import { html, Store, useEffect, useRef } from "./ui.js";

/** uPlot, when the first chart has asked for it: it is as large as all else of a page without charts. */
const library = new Store(null);

/** Loads the style of uPlot. */
const styled = () =>
  new Promise((done) => {
    const link = document.createElement("link");
    const href = new URL("../lib/uplot.css", import.meta.url).href;
    document.head.append(Object.assign(link, { rel: "stylesheet", href, onload: done, onerror: done }));
  });

/** Counts changes of the theme: charts take their colours anew. */
export const themed = new Store(0);

// Between two ticks: whole seconds, whole messages.
const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 14_400, 21_600, 43_200];
const COUNT_STEPS = Array.from({ length: 13 }, (_, n) => [1, 2, 5].map((one) => one * 10 ** n)).flat();

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** A fill that is told apart without colour. kind: "solid", "dots", "diagonal", "lines". */
function pattern(kind, name) {
  const line = colour(name);
  if (kind === "solid") return line;
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const c = tile.getContext("2d");
  c.globalAlpha = 0.35;
  c.fillStyle = line;
  c.fillRect(0, 0, 8, 8);
  c.globalAlpha = 1;
  c.strokeStyle = line;
  c.lineWidth = 2;
  if (kind === "dots") {
    c.fillRect(1, 1, 2, 2);
    c.fillRect(5, 5, 2, 2);
  }
  if (kind === "lines") {
    c.beginPath();
    c.moveTo(0, 2);
    c.lineTo(8, 2);
    c.moveTo(0, 6);
    c.lineTo(8, 6);
    c.stroke();
  }
  if (kind === "diagonal") {
    c.beginPath();
    c.moveTo(-2, 10);
    c.lineTo(10, -2);
    c.moveTo(-2, 2);
    c.lineTo(2, -2);
    c.moveTo(6, 10);
    c.lineTo(10, 6);
    c.stroke();
  }
  return c.createPattern(tile, "repeat");
}

/**
 * @typedef {Object} Series
 * @property {string} label
 * @property {Array<number|null>} values as many as times
 * @property {string} colour a custom property of app.css without dashes: "alpha", "link"
 * @property {"solid"|"dots"|"diagonal"|"lines"} [pattern] of a stacked area
 * @property {number[]} [dash] of a line
 */

/**
 * @param {Object} props
 * @param {number[]} props.times Unix seconds, rising
 * @param {Series[]} props.series the first is at the bottom of a stack
 * @param {boolean} [props.stacked] areas on one another, otherwise lines
 * @param {"linear"|"log"|"share"} [props.scale] share: of the sum, for stacked
 * @param {(value: number) => string} [props.format] of the axis and the table
 * @param {number} [props.height] pixels
 * @param {string} props.describe the sentence for who does not see it
 */
export function Chart({ times, series, stacked = false, scale = "linear", format = count, height = 160, describe }) {
  const box = useRef(null);
  const plot = useRef(null);
  const theme = themed.use();
  const uPlot = library.use();
  useEffect(() => {
    if (uPlot) return;
    Promise.all([import("../lib/uplot.js"), styled()]).then(
      ([module]) => library.set(module.default),
      () => {}, // the figures are there as numbers
    );
  }, []);
  const shape = JSON.stringify([
    series.map((s) => [s.label, s.colour, s.pattern, s.dash]),
    stacked,
    scale,
    height,
    theme,
  ]);
  const sums = times.map((_, i) => series.reduce((sum, s) => sum + (s.values[i] ?? 0), 0));
  const drawn = stacked
    ? stackOf(series, sums, scale)
    : series.map((s) => s.values.map((v) => (scale === "log" && v <= 0 ? null : v)));
  const axis = scale === "share" ? (v) => `${Math.round(v)} %` : format;
  useEffect(() => {
    if (!uPlot) return;
    // A stack is drawn from the top sum down: each area covers what is below it, down to the next line.
    const order = stacked ? series.map((_, i) => series.length - 1 - i) : series.map((_, i) => i);
    const line = colour("line");
    const text = colour("muted");
    const shown = (_, ticks) => (scale === "log" ? thinned(ticks, format === bytes ? 2 : 10) : ticks);
    const options = {
      width: box.current.clientWidth || 300,
      height,
      legend: { show: false },
      cursor: { show: false },
      padding: [8, 26, 0, 0], // half of the last time
      scales: {
        x: { time: true },
        y:
          scale === "log"
            ? { distr: 3, log: format === bytes ? 2 : 10 }
            : { range: (_, low, high) => [0, scale === "share" ? 100 : Math.max(high * 1.05, 1)] },
      },
      axes: [
        {
          stroke: text,
          grid: { show: false },
          ticks: { stroke: line, size: 4 },
          font: "11px system-ui",
          size: 24,
          space: 80,
          incrs: TIME_STEPS,
          values: (_, ticks) =>
            ticks.map((t) => clock(t).slice(-8, ticks.length > 1 && ticks[1] - ticks[0] >= 60 ? -3 : undefined)),
        },
        {
          stroke: text,
          grid: { stroke: line, width: 0.5, filter: shown },
          ticks: { show: false },
          font: "11px system-ui",
          size: 64,
          ...(format === count && scale === "linear" && { incrs: COUNT_STEPS }),
          filter: shown,
          values: (_, ticks) => ticks.map((t) => (t === null ? "" : axis(t))),
        },
      ],
      series: [
        {},
        ...order.map((i) => ({
          label: series[i].label,
          points: { show: false },
          width: stacked ? 1 : 2,
          stroke: stacked ? colour("surface") : colour(series[i].colour),
          dash: series[i].dash,
          fill: stacked ? () => pattern(series[i].pattern ?? "solid", series[i].colour) : undefined,
        })),
      ],
      bands: stacked ? order.slice(1).map((_, i) => ({ series: [i + 1, i + 2] })) : [],
    };
    plot.current = Object.assign(new uPlot(options, [[], ...order.map(() => [])], box.current), { order });
    const element = box.current;
    const watch = new ResizeObserver(() => {
      if (element.clientWidth) plot.current?.setSize({ width: element.clientWidth, height });
    });
    watch.observe(element);
    return () => {
      watch.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [shape, uPlot]);
  useEffect(() => plot.current?.setData(withGaps([times, ...plot.current.order.map((i) => drawn[i])])));
  const last = times.length - 1;
  return html`<figure class="chart">
    <div ref=${box} role="img" aria-label=${describe}></div>
    <figcaption>${[...series].reverse().map(
      (
        s,
      ) => html`<span key=${s.label} class="key"><${Swatch} colour=${s.colour} kind=${stacked ? (s.pattern ?? "solid") : "line"} dash=${s.dash} />${s.label}
      <b>${last < 0 ? "–" : format(s.values[last])}</b></span>`,
    )}
      <details><summary>as numbers</summary>${
        last >= 0 &&
        html`<div class="scroll" tabindex="0" role="region" aria-label=${describe}><table><thead><tr><th scope="col">time</th>${series.map((s) => html`<th scope="col" class="number">${s.label}</th>`)}</tr></thead>
        <tbody>${spread(times.length).map((i) => html`<tr key=${times[i]}><th scope="row">${clock(times[i])}</th>${series.map((s) => html`<td class="number">${format(s.values[i])}</td>`)}</tr>`)}</tbody></table></div>`
      }</details>
    </figcaption></figure>`;
}

// Of the ticks of a logarithm about five: powers, or 1, 2 and 5 times a power if there are few.
function thinned(ticks, base) {
  const part = (t) => t / base ** Math.floor(Math.log(t) / Math.log(base) + 1e-9);
  let kept = ticks.filter((t) => Math.abs(part(t) - 1) < 1e-6);
  if (kept.length < 3) kept = ticks.filter((t) => [1, 2, 5].includes(Math.round(part(t) * 1000) / 1000));
  const step = Math.ceil(kept.length / 5);
  return ticks.map((t) => (kept.indexOf(t) >= 0 && kept.indexOf(t) % step === 0 ? t : null));
}

// Sums from the bottom up; as parts of 100 for "share". A logarithm has no zero: such points are left out.
function stackOf(series, sums, scale) {
  const below = sums.map(() => 0);
  return series.map((s) =>
    s.values.map((value, i) => {
      below[i] += value ?? 0;
      if (scale === "share") return sums[i] > 0 ? (100 * below[i]) / sums[i] : 0;
      return scale === "log" && below[i] <= 0 ? null : below[i];
    }),
  );
}

// Where samples are missing, no line is drawn: a point without a value is put into each long pause.
function withGaps([times, ...columns]) {
  const step = Math.min(
    ...times
      .slice(1)
      .map((t, i) => t - times[i])
      .filter((dt) => dt > 0),
  );
  const starts = times.flatMap((t, i) => (i > 0 && t - times[i - 1] > Math.max(15, step * 3) ? [i] : []));
  if (!starts.length) return [times, ...columns];
  const filled = (values, between) => values.flatMap((v, i) => (starts.includes(i) ? [between(i), v] : [v]));
  return [filled(times, (i) => times[i - 1] + step), ...columns.map((values) => filled(values, () => null))];
}

// At most 20 places, the last included.
const spread = (n) =>
  Array.from({ length: Math.min(n, 20) }, (_, i, all) => Math.round(((i + 1) * n) / Math.min(n, 20)) - 1).reverse();

/** The key of a colour and pattern, drawn as it is in the chart. kind: a pattern, or "line". */
export function Swatch({ colour: name, kind = "solid", dash }) {
  return html`<svg class=${`swatch ${name}`} width="14" height="12" aria-hidden="true">
    ${
      kind === "line"
        ? html`<path d="M0 6h14" class="edge" stroke-dasharray=${dash?.join(" ")} />`
        : html`<rect width="14" height="12" class=${kind === "solid" ? "fill" : "tint"} />
      ${kind === "dots" && html`<path d="M2 3h2M8 3h2M5 8h2M11 8h2" class="edge" />`}
      ${kind === "lines" && html`<path d="M0 3h14M0 9h14" class="edge" />`}
      ${kind === "diagonal" && html`<path d="M-2 10L8 0M4 13L16 1" class="edge" />`}`
    }</svg>`;
}

/** A line without axes. values: the oldest first; null where nothing is known. */
export function Sparkline({ values, width = 120, height = 24, label }) {
  const known = values.filter((v) => v !== null && v !== undefined);
  const high = Math.max(...known, 1e-9);
  const step = width / Math.max(values.length - 1, 1);
  let path = "";
  values.forEach((v, i) => {
    if (v === null || v === undefined) return;
    path += `${path && (values[i - 1] ?? null) !== null ? "L" : "M"}${(i * step).toFixed(1)} ${(height - 2 - (v / high) * (height - 4)).toFixed(1)}`;
  });
  return html`<svg class="spark" viewBox=${`0 0 ${width} ${height}`} preserveAspectRatio="none" aria-hidden=${label ? undefined : "true"} role=${label ? "img" : undefined} aria-label=${label}><path d=${path} /></svg>`;
}

/** The four states of messages, the deepest first, as stacked series want them. */
export const STATES = [
  { key: "delta", colour: "delta", pattern: "lines" },
  { key: "gamma", colour: "gamma", pattern: "diagonal" },
  { key: "beta", colour: "beta", pattern: "dots" },
  { key: "alpha", colour: "alpha", pattern: "solid" },
];

/** A bar of the four states, by share. counts: {alpha, beta, gamma, delta}. */
export function MiniBand({ counts }) {
  const total = STATES.reduce((sum, { key }) => sum + (counts[key] || 0), 0);
  const words = STATES.map(({ key }) => `${key} ${count(counts[key] ?? 0)}`)
    .reverse()
    .join(", ");
  let x = 0;
  return html`<svg class="band" viewBox="0 0 80 12" preserveAspectRatio="none" role="img" aria-label=${words}><title>${words}</title><rect class="empty" width="80" height="12" />
    ${
      total > 0 &&
      [...STATES].reverse().map(({ key }) => {
        const part = ((counts[key] || 0) / total) * 80;
        const from = x;
        x += part;
        return part > 0 && html`<rect key=${key} class=${key} x=${from} width=${Math.max(part, 0.8)} height="12" />`;
      })
    }</svg>`;
}
