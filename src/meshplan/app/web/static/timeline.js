// What each rank does, on a Canvas: rows of ranks, with what they compute above what they send.
import { html, signal, useEffect, useRef, useState } from "./vendor.js";
import * as s from "./state.js";
import { t } from "./state.js";
import { seconds } from "./format.js";

export const look = signal(null); // the place of a finding: {rank, start_us, end_us, all}

const TONES = { compute: "t0", tp: "t1", cp: "t2", dp: "t3", ep: "t4", pp: "t5", copies: "t6", unknown: "t7" };
const NAMED = new Set(["compute", "copies", "unknown"]);
const laneName = (name) => (NAMED.has(name) ? t(`web.diagnose.lane.${name}`) : t("web.diagnose.lane.axis", { axis: name.toUpperCase() }));
const LEFT = 68, HEAD = 22, GAP = 5;
const MOST_ROWS_PX = 620;

// Where a row's lane is drawn: compute takes the upper half, everything that moves data the lower.
const bands = (lane, height) => (lane === "compute" ? [0, height * 0.55] : lane === "copies" ? [height * 0.88, height * 0.12] : [height * 0.57, height * 0.29]);

// First interval that ends after a time.
function firstAfter(end, time) {
  let low = 0, high = end.length;
  while (low < high) { const mid = (low + high) >> 1; if (end[mid] > time) high = mid; else low = mid + 1; }
  return low;
}

// One lane between two times: what is narrower than a pixel adds up to the shade of that pixel.
function paintLane(ctx, lane, { from, to, x0, width, y, height, colour }) {
  const scale = width / (to - from), shade = new Float32Array(Math.ceil(width) + 1);
  ctx.fillStyle = colour;
  for (let i = firstAfter(lane.end_us, from); i < lane.start_us.length && lane.start_us[i] < to; i++) {
    const a = Math.max(0, (lane.start_us[i] - from) * scale), b = Math.min(width, (lane.end_us[i] - from) * scale);
    if (b - a >= 1.5) { ctx.globalAlpha = 0.25 + 0.75 * lane.cover[i]; ctx.fillRect(x0 + a, y, b - a, height); }
    else shade[a | 0] += (b - a) * lane.cover[i];
  }
  for (let x = 0; x < shade.length; x++) if (shade[x] > 0) { ctx.globalAlpha = Math.max(0.15, Math.min(1, shade[x])); ctx.fillRect(x0 + x, y, 1, height); }
  ctx.globalAlpha = 1;
}

function ticks(from, to, count) {
  const raw = (to - from) / count, base = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * base).find((x) => x >= raw);
  const first = Math.ceil(from / step) * step;
  return Array.from({ length: Math.max(0, Math.floor((to - first) / step) + 1) }, (_, i) => first + i * step);
}

const rowHeight = (count) => Math.max(10, Math.min(46, Math.floor(MOST_ROWS_PX / count) - GAP));

function paint(canvas, data, { from, to }, places) {
  const ratio = devicePixelRatio || 1, wide = canvas.clientWidth, row = rowHeight(data.ranks.length);
  const tall = HEAD + data.ranks.length * (row + GAP);
  canvas.width = wide * ratio;
  canvas.height = tall * ratio;
  const ctx = canvas.getContext("2d"), css = getComputedStyle(document.documentElement), tone = (name) => css.getPropertyValue(`--${name}`);
  ctx.scale(ratio, ratio);
  ctx.font = `11.5px ${getComputedStyle(document.body).fontFamily}`;
  ctx.textBaseline = "middle";
  const width = wide - LEFT, x = (time) => LEFT + ((time - from) / (to - from)) * width;
  for (const time of ticks(from, to, Math.max(2, width / 120))) {
    ctx.fillStyle = tone("line"); ctx.fillRect(x(time), HEAD - 5, 1, tall);
    ctx.fillStyle = tone("soft"); const label = time ? seconds(time / 1e6) : "0"; if (x(time) + 4 + ctx.measureText(label).width <= wide) ctx.fillText(label, x(time) + 4, HEAD / 2 - 2);
  }
  data.ranks.forEach((rank, i) => {
    const y = HEAD + i * (row + GAP);
    ctx.fillStyle = tone("track"); ctx.fillRect(LEFT, y, width, row);
    for (const lane of rank.lanes) {
      const [top, height] = bands(lane.name, row);
      paintLane(ctx, lane, { from, to, x0: LEFT, width, y: y + top, height: Math.max(1, height), colour: tone(TONES[lane.name] ?? "muted") });
    }
    ctx.fillStyle = tone("ink");
    for (const step of rank.steps) if (step.start_us >= from && step.start_us <= to) ctx.fillRect(x(step.start_us) - 0.5, y - 2, 1, row + 4);
    ctx.fillStyle = tone("paper"); ctx.fillRect(0, y - 2, LEFT, row + 4);
    ctx.fillStyle = tone("soft"); ctx.fillText(t("web.diagnose.rank", { rank: rank.rank }), 2, y + row / 2, LEFT - 6);
  });
  ctx.strokeStyle = tone("bad"); ctx.lineWidth = 1.5;
  for (const place of places) {
    const i = data.ranks.findIndex((r) => r.rank === place.rank);
    if (i < 0) continue;
    const shift = data.ranks[i].clock_offset_us + data.origin_us, a = Math.max(LEFT, x(place.start_us - shift)), b = Math.min(wide - 1, x(place.end_us - shift));
    if (b > a) ctx.strokeRect(a, HEAD + i * (row + GAP) - 1.5, b - a, row + 3);
  }
  return { x, width, row };
}

function span(data) {
  const ends = data.ranks.flatMap((r) => r.lanes.map((l) => l.end_us[l.end_us.length - 1] ?? 0));
  return { from: 0, to: Math.max(...ends, 1) };
}

export function Timeline({ data, count }) {
  const canvas = useRef(), drawn = useRef(null), dragged = useRef(null);
  const [seen, setSeen] = useState(null);
  const [said, setSaid] = useState("");
  const all = data ? span(data) : null, shown = seen ?? all;
  const places = look.value?.all ?? [];
  useEffect(() => { setSeen(null); }, [data]);
  useEffect(() => {
    const place = look.value, rank = data?.ranks.find((r) => r.rank === place?.rank);
    if (!rank) return;
    const shift = rank.clock_offset_us + data.origin_us, room = Math.max(10, (place.end_us - place.start_us) * 0.15);
    setSeen({ from: Math.max(all.from, place.start_us - shift - room), to: Math.min(all.to, place.end_us - shift + room) });
  }, [look.value, data]);
  useEffect(() => {
    if (!canvas.current) return undefined;
    let frame = requestAnimationFrame(() => { drawn.current = paint(canvas.current, data, shown, places); });
    const watch = new ResizeObserver(() => { cancelAnimationFrame(frame); frame = requestAnimationFrame(() => { if (canvas.current) drawn.current = paint(canvas.current, data, shown, places); }); });
    watch.observe(canvas.current);
    return () => { cancelAnimationFrame(frame); watch.disconnect(); };
  }, [data, shown?.from, shown?.to, look.value, s.theme.value, s.lang.value]);
  if (!data) return null;
  const move = (from, to) => {
    const length = Math.min(Math.max(to - from, 1), all.to - all.from), start = Math.min(Math.max(from, all.from), all.to - length);
    setSeen({ from: start, to: start + length });
  };
  const zoom = (factor, at = 0.5) => { const length = shown.to - shown.from, pivot = shown.from + at * length; move(pivot - at * length * factor, pivot + (1 - at) * length * factor); };
  const slide = (share) => { const d = share * (shown.to - shown.from); move(shown.from + d, shown.to + d); };
  const share = (event) => (event.clientX - canvas.current.getBoundingClientRect().left - LEFT) / (canvas.current.clientWidth - LEFT);
  const point = (event) => {
    const box = canvas.current.getBoundingClientRect(), row = rowHeight(data.ranks.length) + GAP;
    if (dragged.current) { const d = (share(event) - dragged.current.at) * (dragged.current.to - dragged.current.from); move(dragged.current.from - d, dragged.current.to - d); return; }
    const rank = data.ranks[Math.floor((event.clientY - box.top - HEAD) / row)], time = shown.from + share(event) * (shown.to - shown.from);
    if (!rank || time < shown.from) { setSaid(""); return; }
    const busy = rank.lanes.filter((lane) => { const i = firstAfter(lane.end_us, time); return i < lane.start_us.length && lane.start_us[i] <= time; }).map((lane) => laneName(lane.name));
    setSaid(`${t("web.diagnose.rank", { rank: rank.rank })} · ${seconds(time / 1e6)} · ${busy.join(" + ") || "–"}`);
  };
  const wheel = (event) => { if (!event.ctrlKey && !event.metaKey) return; event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8, Math.min(1, Math.max(0, share(event)))); };
  const keys = (event) => {
    const act = { ArrowLeft: () => slide(-0.2), ArrowRight: () => slide(0.2), "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1.7), Home: () => setSeen(null) }[event.key];
    if (act) { event.preventDefault(); act(); }
  };
  const lanes = [...new Set(data.ranks.flatMap((r) => r.lanes.map((l) => l.name)))];
  const events = data.ranks.reduce((a, r) => a + r.num_events, 0);
  const tall = HEAD + data.ranks.length * (rowHeight(data.ranks.length) + GAP);
  return html`<section class="card" id="timeline"><div class="see-head"><h2>${t("web.diagnose.timeline")} <small class="soft">${t("web.diagnose.events", { count: count(events) })}</small></h2>
    <div class="controls">${[["earlier", "←", () => slide(-0.4)], ["later", "→", () => slide(0.4)], ["closer", "+", () => zoom(0.5)], ["wider", "−", () => zoom(2)]].map(([name, mark, act]) => html`<button class="button" aria-label=${t(`web.diagnose.${name}`)} onClick=${act}>${mark}</button>`)}
      <button class="button" onClick=${() => { look.value = null; setSeen(null); }}>${t("web.diagnose.whole")}</button></div></div>
    <div class="lanes" tabindex="0" role="img" aria-label=${t("web.diagnose.timeline")} onKeyDown=${keys} onWheel=${wheel} onPointerMove=${point} onPointerLeave=${() => setSaid("")}
      onPointerDown=${(e) => { e.currentTarget.setPointerCapture(e.pointerId); dragged.current = { at: share(e), ...shown }; }} onPointerUp=${() => { dragged.current = null; }} onPointerCancel=${() => { dragged.current = null; }}>
      <canvas ref=${canvas} style=${{ height: `${tall}px` }} aria-hidden="true"></canvas></div>
    <p class="pointed soft">${said || t("web.diagnose.help")}</p>
    <div class="key"><span><i class="line start"></i>${t("web.diagnose.step")}</span>${lanes.map((name) => html`<span><i class=${TONES[name] ?? "tm"}></i>${laneName(name)}</span>`)}</div></section>`;
}
