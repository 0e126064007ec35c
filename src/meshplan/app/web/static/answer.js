// The verdict, and how far the search is.
import { html, useEffect, useState } from "./vendor.js";
import * as s from "./state.js";
import { t } from "./state.js";
import { again, cancel } from "./api.js";
import { settingName, settingsOf } from "./settings.js";
import { days, gib, percent, seconds, told, usd, whole } from "./format.js";

const LATE_MS = 250; // a search that is over by then shows no progress at all

function Progress({ since }) {
  const [now, tick] = useState(performance.now());
  useEffect(() => { const id = setInterval(() => tick(performance.now()), 100); return () => clearInterval(id); }, []);
  if (now - since < LATE_MS) return html`<span></span>`;
  const share = s.share.value;
  return html`<div class="progress" role="progressbar" aria-label=${t("web.searching")} aria-valuenow=${share ? Math.round(100 * share) : null} aria-valuemin="0" aria-valuemax="100">
      <i class=${share ? "" : "unknown"} style=${share ? { width: percent(share) } : {}}></i></div>
    <span>${t("web.searching")} ${share ? percent(share, 0) : ""} · ${((now - since) / 1000).toFixed(1)} s</span>
    <button class="button quiet" onClick=${cancel}>${t("web.cancel")}</button>`;
}

function Status() {
  const since = s.busy.value, searched = s.result.value?.searched;
  return html`<div class="status" role="status">
    ${since ? html`<span class="spin" aria-hidden="true"></span><${Progress} since=${since} />`
    : s.note.value ? html`<span>${t(s.note.value)}</span><button class="button quiet" onClick=${again}>${t("web.retry")}</button>`
    : searched ? t("web.searched", { candidates: whole(searched.num_candidates), legal: whole(searched.num_legal), fits: whole(searched.num_fits) }) : ""}
  </div>`;
}

const Fact = ({ name, value, note, bad }) => html`<div><dt>${name}</dt><dd class=${bad ? "oom" : ""}>${value}${note && html`<small>${note}</small>`}</dd></div>`;

function Run({ e }) {
  const run = e.run;
  if (!run) return null;
  const late = run.meets_deadline === false;
  return html`<${Fact} name=${t("web.run")} value=${t("web.days", { days: days(run.days) })} bad=${late}
      note=${late ? t("web.late", { least: whole(run.gpus_in_time) }) : t("web.gpu_hours", { hours: whole(run.gpu_hours) })} />
    ${run.cost_usd != null && html`<${Fact} name=${t("web.cost")} value=${usd(run.cost_usd)} />`}`;
}

// A problem with its hint; where a field of the form would do, its values are one click away.
const FIELDS = { "job.precision": "precision", frameworks: "framework" };
function Problem({ p }) {
  const field = FIELDS[p.where], names = field ? s.choices.value[`${field}s`].filter((n) => p.allowed.includes(n)) : [];
  return html`<div class="problem" role="alert">${p.message}<small>${t("web.hint", { hint: p.hint })}</small>
    ${names.map((n) => html`<button class="button" onClick=${() => { s.input.value = { ...s.input.peek(), [field]: n, ...(field === "framework" ? { variant: "" } : {}) }; }}>${n}</button>`)}</div>`;
}

export function Verdict() {
  const e = s.entry.value, w = s.words.value;
  const verdict = e?.memory.verdict ?? "";
  const hand = s.editing.value?.words;
  const waiting = s.stale.value && !s.editing.value?.waiting;
  const more = e && s.asked.value && e.num_gpus !== s.input.value.gpus;
  const asking = s.busy.value ? `${s.input.value.model} · ${s.input.value.gpus}x${s.input.value.device}` : "meshplan";
  const named = w && indexOf(e) > 0 ? t(`web.headline.${verdict}`, { plan: w.names[indexOf(e)] }) : w?.headline;
  const headline = hand?.headline ?? named ?? (s.problems.value.length ? t("web.no_plan") : asking);
  const on = settingsOf(s.asked.value?.variant);
  return html`<section class="card answer" aria-label=${t("web.answer")} aria-busy=${s.busy.value > 0}>
    <div class=${`verdict ${waiting ? "stale" : ""} ${s.problems.value.length && !e ? "bare" : ""}`} aria-live="polite">
      <h1 class=${s.problems.value.length && !e ? "oom" : verdict}>${told(headline)}</h1>
      <p>${!hand && w?.closest ? t("web.closest", { plan: w.closest }) : ""}${e ? hand?.verdict ?? usage(e) : " "}</p>
      ${e && on.length > 0 && html`<p class="with">${t("web.with_settings", { names: on.map(settingName).join(t("web.listing")) })}</p>`}
      ${e && html`<dl class="facts">
        ${more && html`<${Fact} name=${t("web.gpus")} value=${whole(e.num_gpus)} note=${t("web.of_gpus", { num: whole(s.input.value.gpus) })} />`}
        <${Fact} name=${t("web.step")} value=${seconds(e.step_time_s)} note=${t("web.band", { low: seconds(e.band.low_s), high: seconds(e.band.high_s) })} />
        <${Fact} name="MFU" value=${percent(e.mfu)} />
        <${Fact} name=${t("web.per_gpu")} value=${whole(e.tokens_per_s_per_gpu)} />
        <${Fact} name=${t("web.memory")} value=${gib(e.memory.peak_bytes)} note=${`${t("web.usable")} ${gib(e.memory.usable_bytes)}`} />
        <${Run} e=${e} />
      </dl>`}
    </div>
    <${Status} />
    ${s.notice.value && !s.busy.value && html`<p class="notice" role="status">${t(s.notice.value.code)}${s.notice.value.why && html` <span class="soft">${s.notice.value.why}</span>`}</p>`}
    ${s.problems.value.map((p) => html`<${Problem} p=${p} />`)}
  </section>`;
}
const indexOf = (e) => s.result.value?.plans.indexOf(e) ?? -1;
const usage = (e) => (indexOf(e) === 0 || !s.result.value?.plans.length ? s.words.value?.verdict : `${gib(e.memory.peak_bytes)} / ${gib(e.memory.usable_bytes)}`);
