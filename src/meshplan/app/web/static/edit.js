// A plan by hand: the server says which values are legal, and which rule forbids the others.
import { html, useState, useEffect } from "./vendor.js";
import * as s from "./state.js";
import { t } from "./state.js";
import { adopt, ask } from "./api.js";

const NAMES = { schedule: "axis.schedule", zero: "axis.zero", micro_batch: "axis.micro_batch" };

const shown = (value) => (typeof value === "boolean" ? t(value ? "web.on" : "web.off") : String(value));

export function Edit({ onPin }) {
  const [legal, setLegal] = useState(null);
  const [said, setSaid] = useState("");
  const entry = s.entry.value, plan = entry?.plan;
  const key = plan && s.fieldsKey(plan);
  useEffect(() => {
    let here = true;
    if (plan) ask("legal", s.withPlan(entry)).then((found) => here && setLegal(found), () => {});
    return () => { here = false; };
  }, [key, s.lang.value]);
  const change = async (name, choice) => {
    if (!choice.legal) { setSaid(choice.why); return; }
    setSaid("");
    const fields = { ...s.fieldsOf(plan), [name]: choice.value };
    if (name === "schedule") delete fields.vpp;
    if (name === "vpp") delete fields.schedule;
    if (name === "tp" && choice.value === 1) delete fields.sp;
    try { await adopt(fields); } catch (error) { setSaid(error.problems?.map((p) => p.message).join(" ") ?? ""); }
  };
  if (!legal) return html`<div class="edit">…</div>`;
  return html`<div class="edit"><p class="soft">${t("web.edit_hint")}</p>
    ${Object.entries(legal.fields).filter(([, v]) => v.length > 1).map(([name, values]) => html`<div class="degree" role="radiogroup" aria-label=${t(NAMES[name] ?? `axis.${name}`)}>
      <span>${t(NAMES[name] ?? `axis.${name}`)}</span><div class="chips">${values.map((v) => html`<button class="chip" role="radio" aria-checked=${v.value === legal.plan[name]}
        aria-disabled=${!v.legal} title=${v.why} onClick=${() => change(name, v)}>${shown(v.value)}</button>`)}</div></div>`)}
    <p role="status" class="soft">${said || " "}</p>
    ${s.editing.value && !s.editing.value.waiting && html`<div class="controls"><button class="button" onClick=${() => onPin(s.editing.value, s.editing.value.words.names[0])}>${t("web.pin")}</button>
      <button class="button" onClick=${() => { s.editing.value = null; s.picked.value = null; }}>${t("web.reset")}</button></div>`}</div>`;
}
