/** The last lines of the log of all processes, as they come. What is shown is in the address. */
import { get, may } from "../parts/api.js";
import { clock } from "../parts/format.js";
import { usePolled } from "../parts/live.js";
import { setParams } from "../parts/router.js";
import { html, useRef } from "../parts/ui.js";
import { Chip, Code, Empty, Panel, Problem } from "../parts/words.js";

const LINES_MAX = 1000;
const LEVELS = ["debug", "info", "warning", "error"];
const CHIPS = { warning: "warning", error: "danger", critical: "danger" };

/** The lines that are there, and those that came since: the server is asked for the new ones only. */
function useLines(level) {
  const known = useRef({ level, rows: [] });
  return usePolled(
    async () => {
      const before = known.current.level === level ? known.current.rows : [];
      const last = before.at(-1)?.number;
      const fresh = await get("penstock/log", { number: LINES_MAX, level, after: last });
      const isOther = fresh.length > 0 && fresh[0].number <= (last ?? 0); // the broker has started again
      known.current = { level, rows: [...(isOther ? [] : before), ...fresh].slice(-LINES_MAX) };
      return known.current.rows;
    },
    [level],
    2,
  );
}

export default function Log(props) {
  return html`<h1>Log</h1>${may("monitoring") ? html`<${Lines} ...${props} />` : html`<${Empty} title="The log is for operators."><p>It needs the tag <code>monitoring</code>.</p><//>`}`;
}

function Lines({ params, vhost }) {
  const { data, error, refresh } = useLines(params.level ?? "info");
  const wanted = (params.text ?? "").toLowerCase();
  const rows = (data ?? []).filter(
    (row) => (!vhost || row.vhost === vhost) && (!wanted || row.text.toLowerCase().includes(wanted)),
  );
  return html`<${Problem} error=${error} retry=${refresh} />
    <${Panel}><div class="tools"><label>level <select value=${params.level ?? "info"} onChange=${(e) => setParams({ level: e.currentTarget.value })}>${LEVELS.map((one) => html`<option key=${one}>${one}</option>`)}</select></label>
      <label>text <input type="search" value=${params.text ?? ""} onInput=${(e) => setParams({ text: e.currentTarget.value })} /></label>
      <span class="muted">${rows.length} of the last ${data?.length ?? "…"} lines, the newest first</span></div>
    <div class="log" tabindex="0" role="region" aria-label="Lines of the log"><table><thead><tr><th scope="col">time</th><th scope="col">level</th><th scope="col">process</th><th scope="col">line</th></tr></thead><tbody>
      ${[...rows]
        .reverse()
        .map(
          (row) =>
            html`<tr key=${row.number}><td title=${row.time}>${clock(row.time)}</td><td>${CHIPS[row.level] ? html`<${Chip} level=${CHIPS[row.level]}>${row.level}<//>` : row.level}</td><td>${row.vhost ? `vhost ${row.vhost}` : row.process}</td><td><pre>${row.text}</pre></td></tr>`,
        )}</tbody></table>${data && !rows.length && html`<p class="muted">No such line since the broker started.</p>`}</div><//>
    <p class="muted">The broker keeps the last ${LINES_MAX} lines. All of them are where its standard error goes; where systemd runs it:</p><${Code}>journalctl -u penstock -f<//>`;
}
