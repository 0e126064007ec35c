// The plans as a table, pinned ones side by side.
import { html, useState } from "./vendor.js";
import * as s from "./state.js";
import { t } from "./state.js";
import { download } from "./api.js";
import { gib, percent, seconds, usd, whole } from "./format.js";
import { Edit } from "./edit.js";

const FEW = 5, MOST_PINNED = 4;
const isPinned = (name) => s.pinned.value.some((p) => p.name === name);

function pin(entry, name) {
  s.pinned.value = isPinned(name) ? s.pinned.value.filter((p) => p.name !== name) : [...s.pinned.value, { name, entry }].slice(-MOST_PINNED);
}
function take(p, best) {
  s.editing.value = null;
  s.notice.value = null;
  s.picked.value = best ? null : { ...s.fieldsOf(p.plan), dp: p.plan.dp };
}

const quoted = (value) => (/[",\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value ?? ""));
// One line for each plan: its fields, then what they give, with units in the names as in the JSON.
export function csv(plans) {
  const numbers = (p) => ({ rank: p.rank, num_gpus: p.num_gpus, peak_bytes: p.memory.peak_bytes, usable_bytes: p.memory.usable_bytes, verdict: p.memory.verdict, step_time_s: p.step_time_s, low_s: p.band.low_s, high_s: p.band.high_s, mfu: p.mfu, tokens_per_s: p.tokens_per_s, days: p.days, gpu_hours: p.gpu_hours, cost_usd: p.cost_usd, ...p.time });
  const rows = plans.map((p) => ({ ...numbers(p), ...Object.fromEntries(Object.entries(p.plan).map(([k, v]) => [`plan_${k}`, Array.isArray(v) ? v.join(" ") : v])) }));
  return `${[Object.keys(rows[0]), ...rows.map(Object.values)].map((row) => row.map(quoted).join(",")).join("\n")}\n`;
}

export function Plans() {
  const plans = s.result.value?.plans ?? [], names = s.words.value?.names ?? [];
  const [all, setAll] = useState(false);
  const [edit, setEdit] = useState(false);
  if (!plans.length) return null;
  const sizes = plans.some((p) => p.num_gpus !== plans[0].num_gpus), cost = plans.some((p) => p.cost_usd != null), hours = plans.some((p) => p.gpu_hours != null);
  return html`<section class=${`card ${s.stale.value ? "stale" : ""}`}><h2>${t("web.plans")}</h2>
    <div class="scroll" tabindex="0" role="region" aria-label=${t("web.plans")}><table class="plans"><thead><tr><th>#</th><th>${t("web.plan")}</th>${sizes && html`<th class="n">${t("web.gpus")}</th>`}<th class="n">${t("web.memory")}</th><th class="n">${t("web.step")}</th><th class="n">MFU</th><th class="n">${t("web.per_gpu")}</th>${hours && html`<th class="n">${t("web.hours")}</th>`}${cost && html`<th class="n">${t("web.cost")}</th>`}<th class="c"><span class="soft">${t("web.pin")}</span></th></tr></thead>
      <tbody>${plans.slice(0, all ? 99 : FEW).map((p, i) => html`<tr class=${p === s.entry.value ? "on" : ""}>
        <td class="soft">${p.rank}</td><td><button class="pick" aria-pressed=${p === s.entry.value} onClick=${() => take(p, i === 0)}>${names[i]}</button></td>
        ${sizes && html`<td class="n">${whole(p.num_gpus)}</td>`}
        <td class="n">${gib(p.memory.peak_bytes)}</td><td class="n">${seconds(p.step_time_s)}</td><td class="n">${percent(p.mfu)}</td><td class="n">${whole(p.tokens_per_s_per_gpu)}</td>
        ${hours && html`<td class="n">${whole(p.gpu_hours)}</td>`}${cost && html`<td class="n">${usd(p.cost_usd)}</td>`}
        <td class="c"><button class="button quiet" aria-pressed=${isPinned(names[i])} aria-label=${`${t("web.pin")} ${names[i]}`} onClick=${() => pin(p, names[i])}>${isPinned(names[i]) ? "✓" : "+"}</button></td></tr>`)}</tbody></table></div>
    <div class="controls">
      ${plans.length > FEW && html`<button class="button" onClick=${() => setAll(!all)}>${all ? t("web.fewer") : t("web.all_plans", { count: plans.length })}</button>`}
      <button class="button" aria-expanded=${edit} onClick=${() => setEdit(!edit)}>${t("web.edit")}</button>
      <button class="button" id="csv" onClick=${() => download(new Blob([csv(plans)], { type: "text/csv" }), "plans.csv")}>${t("web.csv")}</button>
      <span class="soft">${t("web.pin_hint")}</span>
    </div>
    ${edit && html`<${Edit} onPin=${pin} />`}
    <${Compare} /></section>`;
}

function Compare() {
  const pins = s.pinned.value;
  if (pins.length < 2) return null;
  const best = pins.reduce((a, b) => (b.entry.step_time_s < a.entry.step_time_s ? b : a));
  const rows = Object.keys(best.entry.time).filter((part) => pins.some((p) => p.entry.time[part] > 1e-4 * p.entry.step_time_s));
  const delta = (v) => (Math.abs(v ?? 0) < 1e-9 ? "" : `${v > 0 ? "+" : "−"}${seconds(Math.abs(v))}`);
  const cause = (p) => rows.reduce((a, part) => (p.entry.time[part] - best.entry.time[part] > p.entry.time[a] - best.entry.time[a] ? part : a), rows[0]);
  return html`<h3>${t("web.compare_title")}</h3><div class="scroll" tabindex="0" role="region" aria-label=${t("web.compare_title")}><table class="compare"><thead><tr><th></th>${pins.map((p) => html`<th class="n">${p.name}</th>`)}</tr></thead><tbody>
    <tr><th scope="row">${t("web.step")}</th>${pins.map((p) => html`<td class="n"><b>${seconds(p.entry.step_time_s)}</b> <span class="soft">${delta(p.entry.step_time_s - best.entry.step_time_s)}</span></td>`)}</tr>
    <tr><th scope="row">${t("web.cause")}</th>${pins.map((p) => html`<td class="n">${p === best ? "–" : t(`part.${cause(p)}`)} <span class="soft"></span></td>`)}</tr>
    <tr><th scope="row">${t("web.memory")}</th>${pins.map((p) => html`<td class="n">${gib(p.entry.memory.peak_bytes)} <span class="soft"></span></td>`)}</tr>
    ${rows.map((part) => html`<tr><th scope="row">${t(`part.${part}`)}</th>${pins.map((p) => html`<td class="n">${seconds(p.entry.time[part])} <span class="soft">${delta(p.entry.time[part] - best.entry.time[part])}</span></td>`)}</tr>`)}
  </tbody></table></div>`;
}
