// Why this plan and not the others, and every formula with its numbers and their sources.
import { html, useEffect, useRef, useState } from "./vendor.js";
import * as s from "./state.js";
import { t } from "./state.js";
import { ask } from "./api.js";
import { setVariant, settingName, settingsOf, turn } from "./settings.js";
import { amount, filled, told, typeset, whole } from "./format.js";

const Topic = ({ title, plain, children }) => html`<section class=${`topic ${plain ? "plain" : ""}`}><h3>${title}</h3>${children}</section>`;
const List = ({ title, items, plain }) => items?.length ? html`<${Topic} title=${title} plain=${plain}><ul>${items.map((x) => html`<li>${told(x)}</li>`)}</ul><//>` : null;

// Settings of the framework: what each that is off would gain, and those that are on. A click plans
// with one or without it, and the keyboard stays where what was clicked stands next.
function Switches({ offered }) {
  const list = useRef(), next = useRef("");
  const on = settingsOf(s.input.value.variant), off = offered.filter((w) => !on.includes(w.name));
  useEffect(() => {
    if (next.current) list.current?.querySelector(`[data-setting="${next.current}"]`)?.focus({ preventScroll: true });
    next.current = "";
  });
  if (!on.length && !off.length) return null;
  // no component: one that is defined here would be another at every turn, and lose the focus
  const button = (name, code, change) => html`<button class="button" data-setting=${name} aria-label=${`${t(code)}: ${settingName(name)}`} onClick=${() => { next.current = name; change(); }}>${t(code)}</button>`;
  return html`<div ref=${list}><${Topic} title=${t(off.length ? "web.switches" : "web.settings_in_use")}><ul class="settings">
    ${on.map((name) => html`<li key=${name}>${t("web.setting_on", { name: settingName(name) })} ${button(name, "web.plan_without", () => turn(name, false))}</li>`)}
    ${off.map((w) => html`<li key=${w.name}>${told(w.said)}<br /><small class="soft"><code>${w.flags.join(" ")}</code></small>${w.cautions.map((x) => html`<br /><small class="soft">${x}</small>`)}<br />${button(w.name, "web.plan_with", () => setVariant(w.variant))}</li>`)}</ul><//></div>`;
}

export function Why() {
  const hand = s.editing.value?.words, w = hand ?? s.words.value;
  if (!w) return null;
  return html`<section class=${`card why ${(s.stale.value && !hand) || w.old ? "stale" : ""}`}><h2>${t(s.result.value && !s.result.value.plans.length && !hand ? "web.why_none" : "web.why")}</h2>
    <div class="topics">${(w.reasons ?? []).map((r) => html`<${List} title=${r.topic} items=${r.said} />`)}
    <${Switches} offered=${w.switches} />
    ${w.runner_up && html`<${Topic} title=${t("web.why_not")}><p>${told(w.runner_up)}</p><//>`}
    <${List} title=${t("web.remedies")} items=${w.remedies} plain=${true} />
    ${s.rest.value ? html`<${Topic} title=${t("web.flips")}><p class="soft waiting">${t("web.flips_wait")}</p><//>` : html`<${List} title=${t("web.flips")} items=${w.flips} />`}</div>
    ${w.refused.length ? html`<details class="more"><summary>${t("web.refused")}</summary><table><tbody>${w.refused.map((r) => html`<tr><td class="n">${whole(r.count)}</td><td class="wrap">${r.rule}</td></tr>`)}</tbody></table></details>` : null}
    <details class="more"><summary>${t("web.assumptions")}</summary><ul>${[...w.assumptions, ...w.notes].map((x) => html`<li>${x}</li>`)}</ul></details></section>`;
}

const about = (subject) => Object.entries(subject).map(([key, v]) => (key === "event" ? t(`event.${v}`) : key === "axis" ? String(v).toUpperCase() : key === "stage" ? `PP${v}` : `${t(`axis.${key}`)} ${v}`)).join(", ");

function Formula({ f }) {
  const sources = f.values.filter((v) => v.source);
  const topic = about(f.subject);
  return html`<div class="formula"><p><b>${t(`formula.${f.code}`)}</b>${topic && html` <span class="soft">${topic}</span>`}</p>
    <p class="equation"><code>${typeset(f.expression)}</code><code>= ${typeset(filled(f))}</code><code class="sum">= ${amount(f.result, f.unit)}</code></p>
    ${(f.source || sources.length > 0) && html`<details><summary>${t("web.sources")}</summary><ul>
      ${f.source && html`<li>${s.sourced(f.source)}</li>`}
      ${sources.map((v) => html`<li><code>${v.symbol}</code> = ${amount(v.value, v.unit)} · ${t(`cli.kind.${v.kind}`)} · ${s.sourced(v.source)}</li>`)}</ul></details>`}</div>`;
}

function Constants({ constants }) {
  const areas = [...new Set(constants.map((c) => c.area))];
  return html`<details class="more"><summary>${t("web.constants", { count: constants.length })}</summary>${areas.map((area) => html`<h3>${t(`cli.area.${area}`)}</h3>
    <div class="scroll" tabindex="0" role="region" aria-label=${t(`cli.area.${area}`)}><table><tbody>${constants.filter((c) => c.area === area).map((c) => html`<tr><td><code>${c.name}</code></td><td class="n">${amount(c.value, c.unit)}</td><td class="soft">${t(`cli.kind.${c.kind}`)}</td><td class="soft wrap">${s.sourced(c.source)}</td></tr>`)}</tbody></table></div>`)}</details>`;
}

export function Formulas() {
  const [open, setOpen] = useState(false);
  const [found, setFound] = useState(null);
  const e = s.entry.value;
  const key = e && JSON.stringify([s.fieldsOf(e.plan), e.num_gpus, s.asked.value]);
  useEffect(() => {
    if (!open || !e || s.busy.value) return undefined;
    const stop = new AbortController();
    ask("explain", s.withPlan(e), stop.signal).then(setFound, () => {});
    return () => stop.abort();
  }, [open, key, !!s.busy.value]);
  if (!e) return null;
  const groups = found ? [...new Set(found.formulas.map((f) => f.group))] : [];
  return html`<section class="card formulas"><details open=${open} onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary><h2>${t("web.formulas")}</h2><span class="soft">${t("web.formulas_note")}</span></summary>
    ${open && (found ? html`<div class="columns">${groups.map((group) => html`<div class="family"><h3>${t(`cli.group.${group}`)}</h3>
      ${found.formulas.filter((f) => f.group === group).map((f) => html`<${Formula} f=${f} />`)}</div>`)}</div><${Constants} constants=${found.constants} />` : html`<p class="soft">…</p>`)}
  </details></section>`;
}
