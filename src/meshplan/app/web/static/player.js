// The picture with its clock: play, pause, step, scrub, speed, keyboard.
import { html, useEffect, useRef, useState } from "./vendor.js";
import * as s from "./state.js";
import { t } from "./state.js";
import { ask, withPlan } from "./api.js";
import { canvasPainter, groupsOf, hitCell, hitMark, MOST_NODES, svgPainter } from "./paint.js";

export const MECHANISMS = ["panorama", "data", "tensor", "pipeline", "combination", "scale", "links"];
export const MODES = ["overview", "transmission", "transformation", "output"];
export const current = { scene: null };
const reduced = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

function Tabs({ names, prefix, value, onPick, label, extra }) {
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    onPick(names[(names.indexOf(value) + step + names.length) % names.length]);
    queueMicrotask(() => event.currentTarget?.querySelector('[aria-selected="true"]')?.focus());
  };
  return html`<div class=${`tabs ${extra ?? ""}`} role="tablist" aria-label=${label} onKeyDown=${move}>${names.map((n) => html`
    <button role="tab" aria-selected=${n === value} tabindex=${n === value ? 0 : -1} data-name=${n} onClick=${() => onPick(n)}>${t(`${prefix}.${n}`)}</button>`)}</div>`;
}

function useScene() {
  const [scene, setScene] = useState(null);
  const plan = s.entry.value?.plan, v = s.view.value;
  const key = plan && JSON.stringify([s.fieldsOf(plan), s.asked.value, v.mechanism, v.mode, s.whatIf.value, s.lang.value]);
  useEffect(() => {
    if (!plan || s.busy.value) return undefined;
    const stop = new AbortController();
    const extra = v.mechanism === "pipeline" && v.mode === "output" && Object.keys(s.whatIf.value).length ? { what_if: s.whatIf.value } : {};
    ask("scene", { ...withPlan(plan), mechanism: v.mechanism, mode: v.mode, lang: s.lang.value, ...extra }, stop.signal)
      .then((made) => { current.scene = made; setScene(made); }, () => {});
    return () => stop.abort();
  }, [key, !!s.busy.value]);
  return scene;
}

function Picture({ scene, onSay }) {
  const svg = useRef(), canvas = useRef(), draw = useRef(() => {}), lit = useRef(null);
  const large = (scene.marks?.length ?? 0) > MOST_NODES;
  useEffect(() => {
    const build = () => {
      const paint = large ? () => {} : svgPainter(svg.current, scene);
      if (large) svg.current.replaceChildren();
      const cells = large || scene.cells ? canvasPainter(canvas.current, scene, { marks: large }) : () => canvas.current.getContext("2d").clearRect(0, 0, 9999, 9999);
      draw.current = (time) => { paint(time); cells(time, lit.current); };
      draw.current(s.time.peek());
    };
    build();
    const watch = new ResizeObserver(build);
    watch.observe(canvas.current);
    return () => watch.disconnect();
  }, [scene, s.theme.value]);
  useEffect(() => s.time.subscribe((now) => draw.current(now)), []);
  const point = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const x = (1000 * (event.clientX - box.left)) / box.width, y = (520 * (event.clientY - box.top)) / box.height;
    if (scene.cells) {
      const i = hitCell(scene.cells, x, y);
      lit.current = i < 0 ? null : groupsOf(scene.cells, i);
      onSay(i < 0 ? "" : `${t("web.groups_of", { rank: scene.cells.first_rank[i] })}: ${Object.keys(scene.cells.groups ?? {}).map((a) => `${a.toUpperCase()} ${scene.facts[a]}`).join(" · ")}`);
      draw.current(s.time.peek());
    } else if (large) onSay(hitMark(scene, x, y, s.time.peek())?.title ?? "");
  };
  return html`<div class="picture" onPointerMove=${point} onPointerLeave=${() => { lit.current = null; onSay(""); draw.current(s.time.peek()); }}>
    <canvas ref=${canvas} aria-hidden="true"></canvas><svg ref=${svg} viewBox="0 0 1000 520" role="img" aria-label=${scene.caption.field}></svg></div>`;
}

function Clock({ scene }) {
  const [playing, setPlaying] = useState(false);
  const [speed, setSpeed] = useState(1);
  const end = scene.duration_s;
  useEffect(() => {
    if (!playing) return undefined;
    let frame, before = performance.now();
    const turn = (now) => {
      const next = s.time.peek() + ((now - before) / 1000) * speed;
      before = now;
      if (next >= end) { s.time.value = end; setPlaying(false); return; }
      s.time.value = next;
      frame = requestAnimationFrame(turn);
    };
    frame = requestAnimationFrame(turn);
    return () => cancelAnimationFrame(frame);
  }, [playing, speed, scene]);
  const step = (way) => {
    setPlaying(false);
    const now = s.time.peek(), stops = scene.stops ?? [];
    s.time.value = way > 0 ? stops.find((x) => x > now + 1e-6) ?? end : stops.findLast((x) => x < now - 1e-6) ?? 0;
  };
  const toggle = () => { if (s.time.peek() >= end) s.time.value = 0; setPlaying(!playing); };
  useEffect(() => {
    const press = (event) => {
      if (!event.target.closest?.(".see") || event.target.closest("input, select, textarea, button, [role=tab]")) return;
      const act = { " ": reduced() ? () => step(1) : toggle, ArrowRight: () => step(1), ArrowLeft: () => step(-1), Home: () => { s.time.value = 0; }, End: () => { s.time.value = end; } }[event.key];
      if (act) { event.preventDefault(); act(); }
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });
  if (!end) return html`<div class="controls"><span class="soft">${t("web.still")}</span></div>`;
  return html`<div class="controls">
    ${!reduced() && html`<button class="button primary" onClick=${toggle}>${t(playing ? "web.pause" : "web.play")}</button>`}
    <button class="button" aria-label=${t("web.back")} onClick=${() => step(-1)}>←</button><button class="button" aria-label=${t("web.forward")} onClick=${() => step(1)}>→</button>
    <input type="range" min="0" max=${end} step="0.01" value=${s.time.value} aria-label=${t("web.time")} onInput=${(e) => { setPlaying(false); s.time.value = +e.target.value; }} />
    <output>${s.time.value.toFixed(1)}</output>
    <label>${t("web.speed")} <select value=${speed} onChange=${(e) => setSpeed(+e.target.value)}>${[0.25, 0.5, 1, 2, 4].map((n) => html`<option value=${n}>${n}×</option>`)}</select></label></div>`;
}

function Playground({ facts }) {
  const set = (change) => { s.whatIf.value = { schedule: facts.schedule === "one_f_one_b" ? "1f1b" : facts.schedule, pp: facts.pp, num_micro_batches: facts.num_micro_batches, num_layers: facts.num_layers, ...s.whatIf.value, ...change }; };
  const Slide = ({ name, code, least, most, value }) => html`<label>${t(code)} <input type="range" min=${least} max=${most} value=${value} onChange=${(e) => set({ [name]: +e.target.value })} /><output>${value}</output></label>`;
  const names = s.choices.value.schedules, now = s.whatIf.value.schedule ?? facts.schedule.replace("one_f_one_b", "1f1b");
  return html`<div class="controls playground">
    <label>${t("web.schedule")} <select value=${now} onChange=${(e) => set({ schedule: e.target.value })}>${names.map((n) => html`<option value=${n}>${n}</option>`)}</select></label>
    <${Slide} name="pp" code="web.stages_p" least="1" most="64" value=${facts.pp} /><${Slide} name="num_micro_batches" code="web.micro_m" least="1" most="128" value=${facts.num_micro_batches} />
    <label>${t("web.layers_l")} <select value=${facts.num_layers} onChange=${(e) => set({ num_layers: +e.target.value })}>${[...new Set([facts.num_layers, 32, 64, 128, 1024])].map((n) => html`<option value=${n}>${n}</option>`)}</select></label>
    <button class="button quiet" onClick=${() => { s.whatIf.value = {}; }}>${t("web.reset")}</button></div>`;
}

export function See() {
  const scene = useScene(), v = s.view.value;
  const [said, say] = useState("");
  const [shown, setShown] = useState(null);
  useEffect(() => {
    if (!scene) return;
    const first = shown === null;
    const same = shown === `${scene.mechanism}.${scene.mode}`;
    // a picture that moves opens at its end, where everything is there; a link opens where it was
    if (!same) s.time.value = first && s.time.peek() ? Math.min(s.time.peek(), scene.duration_s) : scene.duration_s * 0.45;
    else s.time.value = Math.min(s.time.peek(), scene.duration_s);
    setShown(`${scene.mechanism}.${scene.mode}`);
  }, [scene]);
  const pick = (change) => { s.view.value = { ...v, ...change }; };
  return html`<section class="card see" data-ready=${scene ? `${scene.mechanism}.${scene.mode}.${s.lang.value}` : ""}>
    <div class="see-head"><h2>${t("web.see")}</h2>
      ${["field", "kitchen"].map((n) => html`<button class="button quiet" aria-pressed=${v.words === n} onClick=${() => pick({ words: n })}>${t(`web.view.${n}`)}</button>`)}</div>
    <${Tabs} names=${MECHANISMS} prefix="web.mechanism" value=${v.mechanism} onPick=${(mechanism) => pick({ mechanism })} label=${t("web.see")} />
    <${Tabs} names=${MODES} prefix="web.mode" value=${v.mode} onPick=${(mode) => pick({ mode })} label=${t("web.see")} extra="modes" />
    <div class="stage" tabindex="0" role="region" aria-label=${t("web.keys")}>${scene ? html`<${Picture} scene=${scene} onSay=${say} />` : html`<div class="picture"></div>`}</div>
    <p class="groups" aria-live="polite">${said || " "}</p>
    <p class="caption">${scene?.caption[v.words] ?? " "}</p>
    ${scene && html`<${Clock} scene=${scene} key=${`${scene.mechanism}.${scene.mode}`} />`}
    ${scene?.controls === "pipeline" && html`<${Playground} facts=${scene.facts} />`}
  </section>`;
}
