// A scene with its clock: play, pause, step, scrub, speed; by keyboard, mouse and touch.
import { html, signal, useEffect, useLayoutEffect, useRef, useState } from "./vendor.js";
import { t, theme } from "./state.js";
import { ask } from "./api.js";
import { lang } from "./state.js";
import { told } from "./format.js";
import { canvasPainter, extent, groupsOf, hitCell, hitMark, MOST_NODES, svgPainter } from "./paint.js";

const FLICK_MS = 260, FLICK_PX = 36; // a quick swipe is a step, a slow one scrubs
export const reduced = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

// Pictures of a phone are laid out for it.
const phone = matchMedia("(max-width: 760px)");
export const paper = signal("wide");
const fit = () => { paper.value = phone.matches ? "narrow" : "wide"; };
fit();
phone.addEventListener("change", fit);

// The scene that a request names; the last one stays while the next is on its way.
export function useScene(body, refused = () => {}) {
  const [scene, setScene] = useState(null);
  const key = body && JSON.stringify([body, lang.value, paper.value]);
  useEffect(() => {
    if (!body) return undefined;
    const stop = new AbortController();
    ask("scene", { ...body, lang: lang.value, paper: paper.value }, stop.signal).then(setScene, (error) => { if (error.problems) refused(); });
    return () => stop.abort();
  }, [key]);
  return scene;
}

function Picture({ scene, clock, onSay }) {
  const svg = useRef(), canvas = useRef(), draw = useRef(() => {}), lit = useRef(null);
  const large = (scene.marks?.length ?? 0) > MOST_NODES;
  useLayoutEffect(() => { // with the frame that shows it, or an empty picture would flash
    const build = () => {
      if (!svg.current) return; // gone before it was drawn
      const paint = large ? () => {} : svgPainter(svg.current, scene);
      if (large) svg.current.replaceChildren();
      const cells = large || scene.cells ? canvasPainter(canvas.current, scene, { marks: large }) : () => canvas.current.getContext("2d").clearRect(0, 0, 9999, 9999);
      draw.current = (time) => { paint(time); cells(time, lit.current); };
      draw.current(clock.peek());
    };
    build();
    const watch = new ResizeObserver(build);
    if (canvas.current) watch.observe(canvas.current);
    return () => watch.disconnect();
  }, [scene, theme.value]);
  useLayoutEffect(() => clock.subscribe((now) => draw.current(now)), []);
  const { width, height } = extent(scene);
  const clear = () => { lit.current = null; onSay(""); draw.current(clock.peek()); };
  const point = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const x = (width * (event.clientX - box.left)) / box.width, y = (height * (event.clientY - box.top)) / box.height;
    if (scene.cells) {
      const i = hitCell(scene.cells, x, y);
      if (i < 0) return lit.current && clear();
      lit.current = groupsOf(scene.cells, i);
      onSay(`${t("web.groups_of", { rank: scene.cells.first_rank[i] })}: ${Object.keys(scene.cells.groups ?? {}).map((a) => `${a.toUpperCase()} ${scene.facts[a]}`).join(" · ")}`);
      return draw.current(clock.peek());
    }
    return onSay(hitMark(scene, x, y, clock.peek())?.title ?? "");
  };
  return html`<div class=${`picture ${width < height ? "tall" : ""}`} style=${`aspect-ratio: ${width} / ${height}`} onPointerMove=${point} onPointerDown=${point} onPointerLeave=${(e) => e.pointerType === "mouse" && clear()}>
    <canvas ref=${canvas} aria-hidden="true"></canvas><svg ref=${svg} viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${scene.caption.field}></svg></div>`;
}

// Moves of the clock that buttons, keys and fingers share.
function useClock(scene, clock) {
  const [playing, setPlaying] = useState(false);
  const [speed, setSpeed] = useState(1);
  const end = scene?.duration_s ?? 0;
  useEffect(() => {
    if (!playing) return undefined;
    let frame, before = performance.now();
    const turn = (now) => {
      const next = clock.peek() + ((now - before) / 1000) * speed;
      before = now;
      if (next >= end) { clock.value = end; setPlaying(false); return; }
      clock.value = next;
      frame = requestAnimationFrame(turn);
    };
    frame = requestAnimationFrame(turn);
    return () => cancelAnimationFrame(frame);
  }, [playing, speed, scene]);
  const seek = (time) => { setPlaying(false); clock.value = Math.min(Math.max(time, 0), end); };
  const step = (way) => {
    const now = clock.peek(), stops = scene?.stops ?? [];
    seek(way > 0 ? stops.find((x) => x > now + 1e-6) ?? end : stops.findLast((x) => x < now - 1e-6) ?? 0);
  };
  const toggle = () => { if (clock.peek() >= end) clock.value = 0; setPlaying(!playing); };
  return { playing, speed, setSpeed, end, seek, step, toggle };
}

function useKeys(c) {
  return (event) => {
    if (!c.end || event.target.closest("input, select, textarea, button, summary, a, [role=tab]")) return;
    const act = { " ": reduced() ? () => c.step(1) : c.toggle, ArrowRight: () => c.step(1), ArrowLeft: () => c.step(-1), Home: () => c.seek(0), End: () => c.seek(c.end) }[event.key];
    if (act) { event.preventDefault(); act(); }
  };
}

// A finger on the picture scrubs and a flick steps.
function useSwipe(c, clock) {
  const start = useRef(null);
  return {
    onPointerDown: (e) => { start.current = e.pointerType !== "mouse" && c.end ? { x: e.clientX, at: e.timeStamp, time: clock.peek(), id: e.pointerId } : null; },
    onPointerMove: (e) => {
      const from = start.current;
      if (!from || e.pointerId !== from.id || e.timeStamp - from.at < FLICK_MS) return;
      c.seek(from.time + ((e.clientX - from.x) / e.currentTarget.clientWidth) * c.end);
    },
    onPointerUp: (e) => {
      const from = start.current;
      start.current = null;
      if (!from || e.timeStamp - from.at >= FLICK_MS || Math.abs(e.clientX - from.x) < FLICK_PX) return;
      c.step(e.clientX < from.x ? 1 : -1);
    },
    onPointerCancel: () => { start.current = null; },
  };
}

function Controls({ c, clock }) {
  if (!c.end) return null;
  return html`<div class="controls">
    ${!reduced() && html`<button class="button primary play" onClick=${c.toggle}>${t(c.playing ? "web.pause" : "web.play")}</button>`}
    <button class="button" aria-label=${t("web.back")} onClick=${() => c.step(-1)}>←</button><button class="button" aria-label=${t("web.forward")} onClick=${() => c.step(1)}>→</button>
    <input type="range" min="0" max=${c.end} step="0.01" value=${clock.value} aria-label=${t("web.time")} onInput=${(e) => c.seek(+e.target.value)} />
    <output data-of=${(+c.end.toFixed(1)).toString()} title=${t("web.time")}>${clock.value.toFixed(1)}</output>
    ${!reduced() && html`<label>${t("web.speed")} <select value=${c.speed} onChange=${(e) => c.setSpeed(+e.target.value)}>${[0.25, 0.5, 1, 2, 4].map((n) => html`<option value=${n}>${n}×</option>`)}</select></label>`}</div>`;
}

// What happens at the moment that is shown. All of them take their room, so that none moves the page.
function Beat({ beats, clock, quiet }) {
  const now = beats.findLastIndex(([at]) => at <= clock.value + 1e-3);
  return html`<p class="beat" aria-live=${quiet ? "off" : "polite"}>${beats.map(([, said], i) => html`<span class=${i === now ? "" : "off"} aria-hidden=${i === now ? null : "true"}>${told(said)}</span>`)}</p>`;
}

// Args: scene; clock, a signal of seconds; words, `field` or `kitchen`; children, more controls.
export function Player({ scene, clock, words = "field", children }) {
  const [said, say] = useState("");
  const c = useClock(scene, clock);
  const swipe = useSwipe(c, clock);
  return html`<div class="player" onKeyDown=${useKeys(c)}>
    <div class=${`stage ${c.end ? "moves" : ""}`} tabindex="0" role="group" aria-label=${t("web.keys")} ...${swipe}>${scene ? html`<${Picture} scene=${scene} clock=${clock} onSay=${say} />` : html`<div class="picture"></div>`}</div>
    ${scene?.beats?.length > 0 && html`<${Beat} beats=${scene.beats} clock=${clock} quiet=${c.playing} />`}
    <p class="groups" aria-live="polite">${said || " "}</p>
    <p class="caption">${told(scene?.caption[words] ?? " ")}</p>
    ${scene && html`<${Controls} c=${c} clock=${clock} />`}${children}</div>`;
}
