// Memory of each stage against the line of what the device can use, and the parts of the step.
import { html } from "./vendor.js";
import * as s from "./state.js";
import { t } from "./state.js";
import { gib, part as share, seconds } from "./format.js";

const GROUP = { weights: 0, weight_copies: 0, gathered: 0, loading: 0, gradients: 6, autograd_gradients: 6, unsharded_gradients: 6, replica_buckets: 6, placeholders: 6, reduced: 6, step_gradients: 6, head_gradient: 6, embedding_gradient: 6, optimizer: 3, optimizer_temporaries: 3, workspace: "m", imbalance: "m", fragmentation: "m", communicators: "m", user_buffers: "m", graph_pool: "m" };
const KEYS = [[0, "weights"], [6, "gradients"], [3, "optimizer"], [2, "activations"], ["m", "other"]];
const MOST_STAGES = 16;

const sums = (stage) => KEYS.map(([tone, name]) => [tone, name, stage.terms.filter((x) => (GROUP[x.code] ?? 2) === tone).reduce((a, x) => a + x.bytes, 0)]);

// What answers inputs that were left behind stands pale; the plan in hand is judged at once.
const pale = () => (s.stale.value && !s.editing.value?.waiting ? "stale" : "");

export function Memory() {
  const m = s.entry.value?.memory;
  if (!m) return null;
  const most = Math.max(m.usable_bytes, m.peak_bytes) * 1.06;
  const worst = m.stages.find((x) => x.stage === m.worst_stage) ?? m.stages[0];
  const shown = m.stages.length > MOST_STAGES ? m.stages.filter((x, i) => i < MOST_STAGES - 1 || x === worst || i === m.stages.length - 1) : m.stages;
  const line = { left: `${(100 * m.usable_bytes) / most}%` };
  return html`<section class=${`card ${pale()}`}><h2>${t("web.stages")}</h2><div class="bars">
    ${shown.map((stage) => html`<div class=${`bar ${stage === worst ? "worst" : ""}`}><span>PP${stage.stage}</span>
      <div class="track">${sums(stage).map(([tone, name, bytes]) => html`<i class=${`t${tone}`} title=${`${t(`cli.memory.${name}`)}: ${gib(bytes)}`} style=${{ width: `${(100 * bytes) / most}%` }}></i>`)}
        <b class="limit" style=${line}></b></div><span>${gib(stage.peak_bytes)}</span></div>`)}
    ${shown.length < m.stages.length && html`<p class="soft">${t("web.stages_shown", { shown: shown.length, all: m.stages.length })}</p>`}
  </div><div class="key">${KEYS.map(([tone, name]) => html`<span><i class=${`t${tone}`}></i>${t(`cli.memory.${name}`)}</span>`)}<span><i class="line"></i>${t("web.usable")} ${gib(m.usable_bytes)}</span></div>
  <details class="more"><summary>PP${worst.stage} · ${t(`event.${worst.peak_event}`)}</summary><table><tbody>
    ${[...worst.terms].sort((a, b) => b.bytes - a.bytes).filter((x) => x.bytes > 0).map((x) => html`<tr><td>${t(`memory.${x.code}`)}</td><td class="n">${gib(x.bytes)}</td><td class="n soft">${share(x.bytes / worst.peak_bytes)}</td></tr>`)}</tbody></table></details></section>`;
}

export function Parts() {
  const e = s.entry.value;
  if (!e) return null;
  const rows = Object.entries(e.time).filter(([, v]) => v > 1e-5 * e.step_time_s).sort((a, b) => b[1] - a[1]);
  return html`<section class=${`card ${pale()}`}><h2>${t("web.parts")}</h2><div class="parts">
    ${rows.map(([part, v], i) => html`<div class="part"><span>${t(`part.${part}`)}</span><div class="track"><i class=${`t${Math.min(i, 7)}`} style=${{ width: `${(100 * v) / e.step_time_s}%` }}></i></div><span>${seconds(v, 3)}</span><small>${share(v / e.step_time_s)}</small></div>`)}
  </div></section>`;
}
