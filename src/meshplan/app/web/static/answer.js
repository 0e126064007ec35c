// Middle: verdict, table, memory, parts, the cloud of plans, and why.
import { html, useState } from "./vendor.js";
import * as s from "./state.js";
import { t } from "./state.js";
import { again, cancel } from "./api.js";
import { gib, percent, seconds, whole } from "./format.js";
import { Edit } from "./edit.js";

function Status() {
  const [, tick] = useState(0);
  const since = s.busy.value;
  if (since) setTimeout(() => tick(performance.now()), 200);
  const searched = s.result.value?.searched;
  return html`<div class="status" role="status">
    ${since ? html`<span class="spin" aria-hidden="true"></span><span>${t("web.searching")} · ${((performance.now() - since) / 1000).toFixed(1)} s</span>
      <button class="button quiet" onClick=${cancel}>${t("web.cancel")}</button>`
    : s.note.value ? html`<span>${t(s.note.value)}</span><button class="button quiet" onClick=${again}>${t("web.retry")}</button>`
    : searched ? t("web.searched", { candidates: whole(searched.num_candidates), legal: whole(searched.num_legal), fits: whole(searched.num_fits) }) : ""}
  </div>`;
}

export function Verdict() {
  const e = s.entry.value, w = s.words.value;
  const verdict = e?.memory.verdict ?? "";
  const hand = s.editing.value?.words;
  return html`<section class="card answer" aria-label=${t("web.answer")}>
    <div class="verdict" aria-live="polite">
      <h1 class=${verdict}>${hand?.headline ?? (w && indexOf(e) > 0 ? t(`web.headline.${verdict}`, { plan: w.names[indexOf(e)] }) : w?.headline) ?? "meshplan"}</h1>
      <p>${e ? hand?.verdict ?? usage(e) : " "}</p>
      ${e && html`<dl class="facts">
        <div><dt>${t("web.step")}</dt><dd>${seconds(e.step_time_s)}<small>${t("web.band", { low: seconds(e.band.low_s), high: seconds(e.band.high_s) })}</small></dd></div>
        <div><dt>MFU</dt><dd>${percent(e.mfu)}</dd></div>
        <div><dt>${t("web.per_gpu")}</dt><dd>${whole(e.tokens_per_s_per_gpu)}</dd></div>
        <div><dt>${t("web.memory")}</dt><dd>${gib(e.memory.peak_bytes)}<small>${t("web.usable")} ${gib(e.memory.usable_bytes)}</small></dd></div>
      </dl>`}
    </div>
    <${Status} />
    ${s.problems.value.map((p) => html`<div class="problem" role="alert">${p.message}<small>${t("web.hint")}: ${p.hint}</small></div>`)}
  </section>`;
}
const indexOf = (e) => s.result.value?.plans.indexOf(e) ?? -1;
const usage = (e) => (indexOf(e) === 0 || !s.result.value?.plans.length ? s.words.value?.verdict : `${gib(e.memory.peak_bytes)} / ${gib(e.memory.usable_bytes)}`);

export function Plans() {
  const plans = s.result.value?.plans ?? [], names = s.words.value?.names ?? [];
  const [all, setAll] = useState(false);
  const [edit, setEdit] = useState(false);
  if (!plans.length) return null;
  const pick = (p) => { s.editing.value = null; s.picked.value = p.rank === 1 ? null : s.fieldsOf(p.plan); };
  const pin = (e, name) => {
    const has = s.pinned.value.some((p) => p.name === name);
    s.pinned.value = has ? s.pinned.value.filter((p) => p.name !== name) : [...s.pinned.value, { name, entry: e }].slice(-4);
  };
  return html`<section class="card"><h2>${t("web.plans")}</h2>
    <div class="scroll" tabindex="0" role="region" aria-label=${t("web.plans")}><table><thead><tr><th>#</th><th>${t("web.plan")}</th><th class="n">${t("web.memory")}</th><th class="n">${t("web.step")}</th><th class="n">MFU</th><th class="n">${t("web.per_gpu")}</th><th><span class="soft">${t("web.pin")}</span></th></tr></thead>
      <tbody>${plans.slice(0, all ? 99 : 5).map((p, i) => html`<tr class=${p === s.entry.value ? "on" : ""}>
        <td>${p.rank}</td><td><button class="pick" aria-pressed=${p === s.entry.value} onClick=${() => pick(p)}>${names[i]}</button></td>
        <td class="n">${gib(p.memory.peak_bytes)}</td><td class="n">${seconds(p.step_time_s)}</td><td class="n">${percent(p.mfu)}</td><td class="n">${whole(p.tokens_per_s_per_gpu)}</td>
        <td><button class="button quiet" aria-pressed=${s.pinned.value.some((x) => x.name === names[i])} aria-label=${`${t("web.pin")} ${names[i]}`} onClick=${() => pin(p, names[i])}>${s.pinned.value.some((x) => x.name === names[i]) ? "✓" : "+"}</button></td></tr>`)}</tbody></table></div>
    <div class="controls">
      ${plans.length > 5 && html`<button class="button" onClick=${() => setAll(!all)}>${all ? "5" : plans.length} ${t("web.plans")}</button>`}
      <button class="button" aria-expanded=${edit} onClick=${() => setEdit(!edit)}>${t("web.edit")}</button>
    </div>
    ${edit && html`<${Edit} onPin=${pin} />`}
    <${Compare} /></section>`;
}

function Compare() {
  const pins = s.pinned.value;
  if (pins.length < 2) return null;
  const best = pins.reduce((a, b) => (b.entry.step_time_s < a.entry.step_time_s ? b : a));
  const rows = Object.keys(best.entry.time).filter((part) => pins.some((p) => p.entry.time[part] > 1e-4 * p.entry.step_time_s));
  const delta = (v) => (Math.abs(v) < 1e-9 ? "" : `${v > 0 ? "+" : "−"}${seconds(Math.abs(v))}`);
  return html`<h3>${t("web.compare_title")}</h3><div class="scroll" tabindex="0" role="region" aria-label=${t("web.compare_title")}><table><thead><tr><th></th>${pins.map((p) => html`<th class="n">${p.name}</th>`)}</tr></thead><tbody>
    <tr><td>${t("web.step")}</td>${pins.map((p) => html`<td class="n">${seconds(p.entry.step_time_s)}</td>`)}</tr>
    <tr><td>${t("web.memory")}</td>${pins.map((p) => html`<td class="n">${gib(p.entry.memory.peak_bytes)}</td>`)}</tr>
    ${rows.map((part) => html`<tr><td>${t(`part.${part}`)}</td>${pins.map((p) => html`<td class="n">${seconds(p.entry.time[part])} <span class="soft">${delta(p.entry.time[part] - best.entry.time[part])}</span></td>`)}</tr>`)}
  </tbody></table></div>`;
}

const GROUP = { weights: 0, weight_copies: 0, gathered: 0, loading: 0, gradients: 6, autograd_gradients: 6, replica_buckets: 6, placeholders: 6, reduced: 6, step_gradients: 6, head_gradient: 6, embedding_gradient: 6, optimizer: 3, optimizer_temporaries: 3, workspace: "m", imbalance: "m", fragmentation: "m", communicators: "m" };
const KEYS = [[0, "weights"], [6, "gradients"], [3, "optimizer"], [2, "activations"], ["m", "other"]];

export function Memory() {
  const m = s.entry.value?.memory;
  if (!m) return null;
  const most = Math.max(m.usable_bytes, m.peak_bytes) * 1.04;
  const sums = (stage) => KEYS.map(([tone]) => [tone, stage.terms.filter((x) => (GROUP[x.code] ?? 2) === tone).reduce((a, x) => a + x.bytes, 0)]);
  const worst = m.stages.find((x) => x.stage === m.worst_stage) ?? m.stages[0];
  const shown = m.stages.length > 16 ? m.stages.filter((x, i) => i < 15 || x === worst || i === m.stages.length - 1) : m.stages;
  return html`<section class="card"><h2>${t("web.stages")}</h2><div class="bars">
    ${shown.map((stage) => html`<div class="bar"><span class="soft">PP${stage.stage}</span>
      <div class="track">${sums(stage).map(([tone, bytes]) => html`<i class=${`t${tone}`} style=${{ width: `${(100 * bytes) / most}%` }}></i>`)}
        <b class="limit" style=${{ left: `${(100 * m.usable_bytes) / most}%` }}></b></div><span>${gib(stage.peak_bytes)}</span></div>`)}
  </div><div class="key">${KEYS.map(([tone, name]) => html`<span><i class=${`t${tone}`}></i>${t(`cli.memory.${name}`)}</span>`)}<span>| ${t("web.usable")} ${gib(m.usable_bytes)}</span></div>
  <details class="more"><summary>PP${worst.stage} · ${t(`event.${worst.peak_event}`)}</summary><table><tbody>
    ${[...worst.terms].sort((a, b) => b.bytes - a.bytes).filter((x) => x.bytes > 0).map((x) => html`<tr><td>${t(`memory.${x.code}`)}</td><td class="n">${gib(x.bytes)}</td><td class="n soft">${percent(x.bytes / worst.peak_bytes)}</td></tr>`)}</tbody></table></details></section>`;
}

export function Parts() {
  const e = s.entry.value;
  if (!e) return null;
  const rows = Object.entries(e.time).filter(([, v]) => v > 1e-5 * e.step_time_s).sort((a, b) => b[1] - a[1]);
  return html`<section class="card"><h2>${t("web.parts")}</h2><div class="parts">
    ${rows.map(([part, v], i) => html`<div class="part"><span>${t(`part.${part}`)}</span><div class="track"><i class=${`t${Math.min(i, 7)}`} style=${{ width: `${(100 * v) / e.step_time_s}%` }}></i></div><span>${seconds(v)} <small>${percent(v / e.step_time_s)}</small></span></div>`)}
  </div></section>`;
}

export function Cloud() {
  const plans = s.result.value?.plans ?? [];
  if (plans.length < 2) return null;
  const xs = plans.map((p) => p.step_time_s), ys = plans.map((p) => p.memory.peak_bytes);
  const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const px = (x) => 62 + (400 * (x - x0)) / (x1 - x0 || 1), py = (y) => 196 - (164 * (y - y0)) / (y1 - y0 || 1);
  const beaten = (p) => plans.some((q) => q !== p && q.step_time_s <= p.step_time_s && q.memory.peak_bytes <= p.memory.peak_bytes);
  return html`<section class="card"><h2>${t("web.pareto")}</h2><svg class="chart" viewBox="0 0 490 236" role="img" aria-label=${t("web.pareto_note", { count: plans.length })}>
    <line class="axis" x1="50" y1="208" x2="480" y2="208" /><line class="axis" x1="50" y1="16" x2="50" y2="208" />
    <text x="50" y="226">${seconds(x0)}</text><text x="480" y="226" text-anchor="end">${seconds(x1)}</text><text x="44" y="200" text-anchor="end">${(y0 / 2 ** 30).toFixed(0)}</text><text x="44" y="36" text-anchor="end">${(y1 / 2 ** 30).toFixed(0)} GiB</text>
    ${plans.map((p, i) => html`<circle class=${`dot ${beaten(p) ? "" : "front"} ${p === s.entry.value ? "on" : ""}`} cx=${px(p.step_time_s)} cy=${py(p.memory.peak_bytes)} r="6" onClick=${() => { s.editing.value = null; s.picked.value = s.fieldsOf(p.plan); }}><title>${s.words.value?.names[i]}: ${seconds(p.step_time_s)}, ${gib(p.memory.peak_bytes)}</title></circle>`)}
  </svg><p class="soft">${t("web.pareto_note", { count: plans.length })}</p></section>`;
}

const List = ({ title, items }) => items?.length ? html`<h3>${t(title)}</h3><ul>${items.map((x) => html`<li>${x}</li>`)}</ul>` : null;

export function Why() {
  const w = s.editing.value?.words ?? s.words.value;
  if (!w) return null;
  return html`<section class="card"><h2>${t("web.why")}</h2>
    ${(w.reasons ?? []).filter((r) => r.said.length).map((r) => html`<h3>${r.topic}</h3><ul>${r.said.map((x) => html`<li>${x}</li>`)}</ul>`)}
    ${w.runner_up && html`<h3>${t("web.why_not")}</h3><p>${w.runner_up}</p>`}
    <${List} title="web.remedies" items=${w.remedies} /><${List} title="web.flips" items=${w.flips} />
    ${w.refused.length ? html`<details class="more"><summary>${t("web.refused")}</summary><table><tbody>${w.refused.map((r) => html`<tr><td class="n">${whole(r.count)}</td><td>${r.rule}</td></tr>`)}</tbody></table></details>` : null}
    <details class="more"><summary>${t("web.assumptions")}</summary><ul>${[...w.assumptions, ...w.notes].map((x) => html`<li>${x}</li>`)}</ul></details></section>`;
}
