// The stack that a framework runs on and its settings, as `--set variant=stack+setting` names them.
import { html, useEffect, useState } from "./vendor.js";
import * as s from "./state.js";
import { t } from "./state.js";
import { probe } from "./api.js";

const parts = (variant) => { const [stack, ...on] = variant.split("+"); return { stack, on }; };
const whole = (stack, on, framework) => [on.length ? stack || framework : stack === framework ? "" : stack, ...on].join("+");

export const settingName = (name) => s.texts.value[`switch.name.${name}`] ?? name;
// What a variant has on, in words.
export const settingsOf = (variant) => parts(variant ?? "").on;

export function setVariant(variant) {
  s.notice.value = null;
  s.input.value = { ...s.input.peek(), variant };
}
// A setting that is turned on takes the place of those that it excludes.
export function turn(name, on, rivals = []) {
  const { variant, framework } = s.input.peek(), now = parts(variant);
  const others = now.on.filter((n) => n !== name && !(on && rivals.includes(n)));
  setVariant(whole(now.stack, on ? [...others, name] : others, framework));
}

// What the server offers; until it has answered, what is on.
function useSettings(asked) {
  const [found, setFound] = useState(null);
  const { variant, framework } = s.input.value;
  const { objective, ...request } = s.scenario.value;
  const key = asked && JSON.stringify([request, s.lang.value]);
  useEffect(() => {
    if (!asked) return undefined;
    const stop = new AbortController();
    probe("settings", { ...request, lang: s.lang.value }, stop.signal).then((got) => setFound({ framework, list: got.settings }), () => {});
    return () => stop.abort();
  }, [key]);
  const on = settingsOf(variant), list = found?.framework === framework ? found.list : [];
  const missing = on.filter((name) => !list.some((x) => x.name === name));
  return [...list, ...missing.map((name) => ({ name, said: settingName(name), flags: [], cautions: [], legal: true, why: "" }))].map((x) => ({ ...x, on: on.includes(x.name) }));
}

function Setting({ x }) {
  const id = `setting-${x.name}`, notes = [x.why, ...(x.on ? x.cautions : [])].filter(Boolean);
  return html`<div class="tick"><input type="checkbox" id=${id} checked=${x.on} disabled=${!x.legal && !x.on} aria-describedby=${`${id}-notes`} onChange=${(e) => turn(x.name, e.currentTarget.checked, x.rivals)} />
    <div><label for=${id}>${x.said}</label><div id=${`${id}-notes`}>${x.flags.length > 0 && html`<code>${x.flags.join(" ")}</code>`}${notes.map((said) => html`<small class=${said === x.why ? "why-not" : ""}>${said}</small>`)}</div></div></div>`;
}

export function Settings() {
  const i = s.input.value, now = parts(i.variant), stacks = s.choices.value.stacks[i.framework] ?? [];
  const [open, setOpen] = useState(!!i.variant);
  const list = useSettings(open);
  if (stacks.length < 2 && !i.variant) return null;
  const known = stacks.includes(now.stack || i.framework) ? stacks : [...stacks, now.stack];
  const about = s.texts.value[`web.stack.${now.stack || i.framework}`];
  return html`<details class="budget settings" open=${open} onToggle=${(e) => setOpen(e.currentTarget.open)}>
    <summary>${t("web.settings")}${i.variant && html` <b>${now.on.length ? t("web.settings_on", { count: now.on.length }) : now.stack}</b>`}</summary>
    <label class="field"><span>${t("web.stack")}</span><select value=${now.stack || i.framework} aria-describedby="stack-about" onChange=${(e) => setVariant(whole(e.target.value, now.on, i.framework))}>${known.map((n) => html`<option value=${n}>${n}</option>`)}</select></label>
    <p class="about soft" id="stack-about">${about ?? ""}</p>
    ${list.length > 0 && html`<div role="group" aria-label=${t("web.settings")}>${list.map((x) => html`<${Setting} x=${x} key=${x.name} />`)}</div>`}</details>`;
}
