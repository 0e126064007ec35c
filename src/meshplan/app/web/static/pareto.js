// The Pareto front: plans that none beats in time, memory and GPUs together; searched when it is looked at.
import { html, useEffect, useRef, useState } from "./vendor.js";
import * as s from "./state.js";
import { t } from "./state.js";
import { adopt, lines } from "./api.js";
import { gib, percent, seconds, whole } from "./format.js";
import { paper } from "./player.js";

const [LEFT, TOP, BOTTOM] = [58, 18, 262];

// Round numbers on a logarithmic axis: 1, 2, 5 in every decade, or all digits where that gives too few.
function ticks(low, high) {
  const found = (digits) => {
    const all = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e++) for (const d of digits) all.push(+`${d}e${e}`);
    return all.filter((x) => x >= low && x <= high);
  };
  return [[1], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 6, 8]].map(found).find((x) => x.length > 2) ?? found([1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6, 7, 8, 9]);
}

function useFront(ref) {
  const [seen, setSeen] = useState(false);
  const [found, setFound] = useState(null);
  const [share, setShare] = useState(0);
  const request = s.asked.value, ready = !!s.result.value && !s.busy.value && !s.rest.value;
  const own = request?.objective === "pareto";
  const key = JSON.stringify(request);
  useEffect(() => {
    if (!ref.current) return undefined;
    const watch = new IntersectionObserver((all) => { if (all.some((x) => x.isIntersecting)) setSeen(true); }, { rootMargin: "200px" });
    watch.observe(ref.current);
    return () => watch.disconnect();
  }, [!!ref.current]);
  useEffect(() => {
    if (!seen || !ready || own) return undefined;
    const stop = new AbortController();
    setShare(0);
    (async () => {
      for await (const said of lines({ ...request, objective: "pareto", top: 1 }, stop.signal)) {
        if (said.share) setShare(said.share);
        if (said.result) setFound({ key, plans: said.result.plans, names: said.words.names });
      }
    })().catch(() => {});
    return () => stop.abort();
  }, [seen, ready, key, s.lang.value]);
  if (own && s.result.value) return [{ key, plans: s.result.value.plans, names: s.words.value?.names ?? [] }, 1];
  return [found, found?.key === key ? 1 : share];
}

function Chart({ plans, names }) {
  const [over, setOver] = useState(null);
  const [at, setAt] = useState(null);
  const wide = paper.value === "narrow" ? 390 : 570, RIGHT = wide - 18;
  const mine = s.entry.value;
  const all = mine ? [...plans, mine] : plans;
  const xs = all.map((p) => p.step_time_s), ys = all.map((p) => p.memory.peak_bytes);
  const x0 = Math.min(...xs) / 1.1, x1 = Math.max(...xs) * 1.1, y1 = Math.max(...ys, mine?.memory.usable_bytes ?? 0) * 1.05;
  const px = (x) => LEFT + ((RIGHT - LEFT) * Math.log(x / x0)) / Math.log(x1 / x0), py = (y) => BOTTOM - ((BOTTOM - TOP) * y) / y1;
  const sizes = [...new Set(plans.map((p) => p.num_gpus))].sort((a, b) => b - a);
  const shown = sizes.slice(0, 5);
  const tone = (p) => Math.max(shown.indexOf(p.num_gpus), 0);
  const usable = mine?.memory.usable_bytes ?? 0;
  const step = y1 / 2 ** 30 > 100 ? 40 : y1 / 2 ** 30 > 40 ? 20 : 5;
  const rows = []; for (let g = 0; g * 2 ** 30 <= y1; g += step) rows.push(g);
  const say = (p, name) => `${name}, ${whole(p.num_gpus)} GPU: ${seconds(p.step_time_s)}, ${gib(p.memory.peak_bytes)}`;
  const here = (p) => mine && s.fieldsKey(p.plan) === s.fieldsKey(mine.plan) && p.num_gpus === mine.num_gpus;
  // the front has plans that the table lacks: they are judged as plans that a link names are
  const choose = (p) => {
    const plan = { ...s.fieldsOf(p.plan), dp: p.plan.dp };
    s.notice.value = null;
    if (p.num_gpus === s.input.value.gpus) adopt(plan).catch(() => {}); else { s.picked.value = plan; s.input.value = { ...s.input.value, gpus: p.num_gpus }; }
  };
  // by keyboard: arrows go from plan to plan as time grows, Enter takes one
  const order = plans.map((p, i) => i).sort((a, b) => plans[a].step_time_s - plans[b].step_time_s);
  const keys = (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Enter" && at !== null) choose(plans[at]);
    else if (!step) return;
    else { const next = order[Math.min(Math.max(order.indexOf(at) + step, 0), order.length - 1)]; setAt(next); setOver(say(plans[next], names[next])); }
    event.preventDefault();
  };
  return html`<div class="beside"><svg class="chart" viewBox=${`0 0 ${wide} 300`} tabindex="0" role="group" aria-describedby="pareto-said" onKeyDown=${keys} onBlur=${() => { setAt(null); setOver(null); }} aria-label=${t("web.pareto_note", { count: plans.length })}>
    ${rows.map((g) => html`<line class="axis" x1=${LEFT} x2=${RIGHT} y1=${py(g * 2 ** 30)} y2=${py(g * 2 ** 30)} /><text x=${LEFT - 8} y=${py(g * 2 ** 30) + 4} text-anchor="end">${g}</text>`)}
    ${ticks(x0, x1).map((x) => html`<line class="axis" x1=${px(x)} x2=${px(x)} y1=${TOP} y2=${BOTTOM} /><text x=${px(x)} y=${BOTTOM + 16} text-anchor="middle">${x.toLocaleString("en-US")}</text>`)}
    <text x=${RIGHT} y=${BOTTOM + 32} text-anchor="end">${t("web.pareto_x")}</text><text x=${LEFT - 50} y=${TOP - 6}>${t("web.pareto_y")}</text>
    ${usable > 0 && html`<line class="limit" x1=${LEFT} x2=${RIGHT} y1=${py(usable)} y2=${py(usable)} />`}
    ${shown.map((n, k) => { const own = plans.filter((p) => p.num_gpus === n).sort((a, b) => a.step_time_s - b.step_time_s); return html`<polyline class=${`front k${k}`} points=${own.map((p) => `${px(p.step_time_s)},${py(p.memory.peak_bytes)}`).join(" ")} />`; })}
    ${plans.map((p, i) => html`<circle class=${`dot k${tone(p)} ${here(p) ? "on" : ""} ${i === at ? "at" : ""}`} cx=${px(p.step_time_s)} cy=${py(p.memory.peak_bytes)} r=${shown.includes(p.num_gpus) ? 5.5 : 3} onClick=${() => choose(p)} onPointerEnter=${() => setOver(say(p, names[i]))} onPointerLeave=${() => setOver(null)}><title>${say(p, names[i])}</title></circle>`)}
    ${mine && html`<circle class="mine" cx=${px(mine.step_time_s)} cy=${py(mine.memory.peak_bytes)} r="9" />`}
  </svg><div><p class="pointed soft" id="pareto-said" aria-live="polite">${over ?? t("web.pareto_hint")}</p>
  <div class="key">${shown.map((n, k) => html`<span><i class=${`t${k}`}></i>${whole(n)} GPU</span>`)}${sizes.length > shown.length && html`<span><i class="t0 small"></i>${t("web.pareto_small")}</span>`}<span><i class="ring"></i>${t("web.pareto_mine")}</span><span><i class="dash"></i>${t("web.usable")}</span></div><p class="soft">${t("web.pareto_note", { count: plans.length })}</p></div></div>`;
}

export function Front() {
  const ref = useRef();
  const [found, share] = useFront(ref);
  if (!s.result.value?.plans.length) return null;
  const old = s.stale.value || share < 1;
  return html`<section class="card pareto" ref=${ref}><h2>${t("web.pareto")}</h2>
    ${found?.plans.length ? html`<div class=${old ? "stale" : ""}><${Chart} plans=${found.plans} names=${found.names} /></div>`
    : html`<div class="blank"><span class="turn-slowly" aria-hidden="true"></span> <span class="soft">${t("web.pareto_wait")} ${share ? percent(share, 0) : ""}</span></div>`}</section>`;
}
