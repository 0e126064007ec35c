// See it: four modes of seven mechanisms, for the plan in hand.
import { html, useLayoutEffect, useState } from "./vendor.js";
import * as s from "./state.js";
import { t } from "./state.js";
import { Player, useScene } from "./player.js";

export const MECHANISMS = ["panorama", "data", "tensor", "pipeline", "combination", "scale", "links"];
export const MODES = ["overview", "transmission", "transformation", "output"];
export const current = { scene: null };

function Tabs({ names, prefix, value, onPick, label, extra }) {
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const list = event.currentTarget;
    onPick(names[(names.indexOf(value) + step + names.length) % names.length]);
    setTimeout(() => list.querySelector('[aria-selected="true"]')?.focus());
  };
  return html`<div class=${`tabs ${extra ?? ""}`} role="tablist" aria-label=${label} onKeyDown=${move}>${names.map((n) => html`
    <button role="tab" aria-selected=${n === value} tabindex=${n === value ? 0 : -1} data-name=${n} onClick=${() => onPick(n)}>${t(`${prefix}.${n}`)}</button>`)}</div>`;
}

const schedule = (facts) => (facts.schedule === "one_f_one_b" ? "1f1b" : facts.schedule);

function Slide({ code, least, most, value, onPick }) {
  return html`<label>${t(code)} <input type="range" min=${least} max=${most} value=${value} onChange=${(e) => onPick(+e.target.value)} /><output>${value}</output></label>`;
}

// What may be varied in a picture, beside the plan in hand.
function Pipeline({ facts }) {
  const set = (change) => { s.whatIf.value = { schedule: schedule(facts), pp: facts.pp, num_micro_batches: facts.num_micro_batches, num_layers: facts.num_layers, ...s.whatIf.value, ...change }; };
  const layers = [...new Set([facts.num_layers, 32, 64, 128, 1024])].sort((a, b) => a - b);
  return html`<div class="controls playground">
    <label>${t("web.schedule")} <select value=${s.whatIf.value.schedule ?? schedule(facts)} onChange=${(e) => set({ schedule: e.target.value })}>${s.choices.value.schedules.map((n) => html`<option value=${n}>${n}</option>`)}</select></label>
    <${Slide} code="web.stages_p" least="1" most="64" value=${facts.pp} onPick=${(pp) => set({ pp })} /><${Slide} code="web.micro_m" least="1" most="128" value=${facts.num_micro_batches} onPick=${(num_micro_batches) => set({ num_micro_batches })} />
    <label>${t("web.layers_l")} <select value=${facts.num_layers} onChange=${(e) => set({ num_layers: +e.target.value })}>${layers.map((n) => html`<option value=${n}>${n}</option>`)}</select></label>
    <button class="button quiet" onClick=${() => { s.whatIf.value = {}; }}>${t("web.reset")}</button></div>`;
}

function Algorithm({ facts }) {
  const names = facts.algorithms.split(" "), now = facts.algorithm;
  return html`<div class="controls playground" role="group" aria-label=${t("web.algorithm")}><span class="soft">${t("web.algorithm")}</span>
    ${names.map((n) => html`<button class="button" aria-pressed=${n === now} onClick=${() => { s.whatIf.value = { algorithm: n }; }}>${t(`web.algorithm.${n}`)}</button>`)}
    ${s.whatIf.value.algorithm && html`<button class="button quiet" onClick=${() => { s.whatIf.value = {}; }}>${t("web.reset")}</button>`}</div>`;
}
const CONTROLS = { pipeline: Pipeline, collective: Algorithm };

export function See() {
  const e = s.entry.value, v = s.view.value;
  const body = e && !s.busy.value && s.asked.value ? { ...s.withPlan(e), mechanism: v.mechanism, mode: v.mode, ...(Object.keys(s.whatIf.value).length ? { what_if: s.whatIf.value } : {}) } : null;
  // what a link asks of the picture may be nothing that it can show
  const scene = useScene(body, () => { if (body.what_if) s.whatIf.value = {}; });
  const [shown, setShown] = useState(null);
  useLayoutEffect(() => {
    if (!scene) return;
    current.scene = scene;
    const name = `${scene.mechanism}.${scene.mode}`;
    // a link opens where it was, any other picture where most of it is to be seen
    if (shown === null && s.time.peek()) s.time.value = Math.min(s.time.peek(), scene.duration_s);
    else if (shown !== name) s.time.value = scene.opens_s ?? 0;
    else s.time.value = Math.min(s.time.peek(), scene.duration_s);
    setShown(name);
  }, [scene]);
  const pick = (change) => { if (change.mechanism || change.mode) s.whatIf.value = {}; s.view.value = { ...v, ...change }; };
  const More = scene && CONTROLS[scene.controls];
  if (!e) return null;
  const read = () => s.visit(() => { s.chapter.value = { id: v.mechanism, at: "" }; s.page.value = "guide"; });
  return html`<section class=${`card see ${s.stale.value ? "stale" : ""}`} id="see" data-ready=${scene ? `${scene.mechanism}.${scene.mode}.${s.lang.value}` : ""}>
    <div class="see-head"><h2>${t("web.see")}</h2>
      <button class="button quiet" onClick=${read}>${t("web.read_chapter", { chapter: t(`web.mechanism.${v.mechanism}`) })}</button>
      <div class="switch" role="group" aria-label=${t("web.caption_words")}>${["field", "kitchen"].map((n) => html`<button aria-pressed=${v.words === n} onClick=${() => pick({ words: n })}>${t(`web.view.${n}`)}</button>`)}</div></div>
    <${Tabs} names=${MECHANISMS} prefix="web.mechanism" value=${v.mechanism} onPick=${(mechanism) => pick({ mechanism })} label=${t("web.mechanisms")} />
    <${Tabs} names=${MODES} prefix="web.mode" value=${v.mode} onPick=${(mode) => pick({ mode })} label=${t("web.modes")} extra="modes" />
    <${Player} scene=${scene} clock=${s.time} words=${v.words} key=${`${scene?.mechanism}.${scene?.mode}`}>${More && html`<${More} facts=${scene.facts} />`}<//>
  </section>`;
}
