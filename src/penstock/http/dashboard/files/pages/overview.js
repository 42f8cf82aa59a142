/** Is it healthy, what grows, who is blocked? */
import { get } from "../parts/api.js";
import { usePolled } from "../parts/live.js";
import { html } from "../parts/ui.js";
import { Num, Pairs, Problem } from "../parts/words.js";

export default function Overview() {
  const { data, error } = usePolled(() => get("overview"), [], 5);
  return html`<h1>Overview</h1><${Problem} error=${error} />
    ${data && html`<${Pairs} pairs=${[["node", data.node], ["version", data.product_version],
      ["queues", html`<${Num} value=${data.object_totals.queues} />`], ["ready", html`<${Num} value=${data.queue_totals.messages_ready} />`],
      ["unacked", html`<${Num} value=${data.queue_totals.messages_unacknowledged} />`]]} />`}`;
}
