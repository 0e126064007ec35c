// A scene at a moment, in SVG or on a Canvas. Nothing here knows what a number means.
const NS = "http://www.w3.org/2000/svg";
const make = (name, attributes, text) => {
  const node = document.createElementNS(NS, name);
  for (const [k, v] of Object.entries(attributes)) node.setAttribute(k, v);
  if (text != null) node.textContent = text;
  return node;
};
export const MOST_NODES = 2000;
const LINE = 1.35, SIZE = { huge: 36, strong: 15, soft: 13 };
export const extent = (scene) => scene?.paper ?? { width: 1000, height: 520 };
const at = (m) => ({ x: m.x ?? 0, y: m.y ?? 0, w: m.w ?? 0, h: m.h ?? 0, tone: m.tone ?? "muted" });
export const shows = (m, t) => !m.span || (t >= m.span[0] && (m.kind === "grow" || t < m.span[1]));
// How far a box that grows has come.
const grown = (m, t) => (m.kind === "grow" ? Math.min((t - m.span[0]) / (m.span[1] - m.span[0]), 1) : 1);
export const along = (m, t) => { const b = at(m), k = (t - m.span[0]) / (m.span[1] - m.span[0]); return [b.x + b.w * k, b.y + b.h * k]; };
const light = (tone) => ["frame", "track", "glow"].includes(tone);

function words(m, x, y, tone) {
  const lines = m.label.split("\n");
  const made = make("text", { x, y, class: tone, "text-anchor": m.anchor ?? "start" }, lines.length > 1 ? null : m.label);
  if (lines.length > 1) lines.forEach((line, k) => made.append(make("tspan", { x, dy: k ? `${LINE}em` : 0 }, line)));
  return made;
}

function node(m) {
  const { x, y, w, h, tone } = at(m);
  if (m.kind === "text") return words(m, x, y, tone);
  if (m.kind === "line") return make("line", { x1: x, y1: y, x2: x + w, y2: y + h, class: `l-${tone}`, "stroke-width": 2 });
  if (m.kind === "curve") return make("polyline", { points: m.points.map((p) => p.join(",")).join(" "), class: `l-${tone}`, "stroke-width": w || 2 });
  const g = make("g", {});
  if (m.kind === "packet") {
    g.append(make("circle", { r: 9, class: `packet s-${tone}` }));
    if (m.label) g.append(make("text", { class: "on", "text-anchor": "middle", y: 4 }, m.label));
  } else {
    g.append(make("rect", { x, y, width: Math.max(w, 0), height: Math.max(h, 0), rx: Math.min(4, w / 4, h / 4), class: `s-${tone}` }));
    if (m.label) g.append(make("text", { x: x + w / 2, y: y + h / 2 + 4, class: light(tone) ? "plain" : "on", "text-anchor": "middle" }, m.label));
  }
  if (m.title) g.append(make("title", {}, m.title));
  if (m.num_bytes != null) g.dataset.bytes = m.num_bytes;
  return g;
}

export function svgPainter(svg, scene) {
  svg.replaceChildren();
  const moving = [];
  for (const m of scene.marks ?? []) {
    const made = node(m);
    svg.append(made);
    if (m.span) moving.push([m, made]);
  }
  return (t) => {
    for (const [m, made] of moving) {
      const on = shows(m, t);
      made.style.display = on ? "" : "none";
      if (on && m.kind === "packet") { const [x, y] = along(m, t); made.setAttribute("transform", `translate(${x} ${y})`); }
      if (on && m.kind === "grow") made.firstChild.setAttribute("width", Math.max(m.w * grown(m, t), 0));
    }
  };
}

const palette = (element) => {
  const style = getComputedStyle(element), name = (n) => style.getPropertyValue(`--${n}`).trim();
  const c = Object.fromEntries(["t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7", "accent", "muted", "track", "bad", "ink", "soft", "line", "on", "paper"].map((n) => [n, name(n)]));
  return { ...c, frame: "", t9: c.track, glow: name("hover"), strong: c.ink, huge: c.ink };
};
function paintMark(g, m, t, c) {
  const { x, y, w, h, tone } = at(m);
  const colour = c[tone] ?? c.ink;
  const write = (text, px, py, size, fill, anchor, bold) => { g.font = `${bold ? 600 : 400} ${size}px system-ui, "Noto Sans CJK SC", sans-serif`; g.fillStyle = fill; g.textAlign = { start: "left", middle: "center", end: "right" }[anchor]; g.fillText(text, px, py); };
  if (m.kind === "text") { const size = SIZE[tone] ?? 14; return m.label.split("\n").forEach((line, k) => write(line, x, y + k * LINE * size, size, colour, m.anchor ?? "start", tone === "strong" || tone === "huge")); }
  if (m.kind === "line" || m.kind === "curve") {
    g.strokeStyle = tone === "frame" ? c.line : colour; g.lineWidth = m.kind === "curve" ? w || 2 : 2; g.beginPath();
    (m.points ?? [[x, y], [x + w, y + h]]).forEach(([px, py], i) => (i ? g.lineTo(px, py) : g.moveTo(px, py)));
    return g.stroke();
  }
  if (m.kind === "packet") { const [px, py] = along(m, t); g.fillStyle = colour; g.beginPath(); g.arc(px, py, 9, 0, 7); g.fill(); return m.label && write(m.label, px, py + 4, 12, c.on, "middle"); }
  if (tone === "frame") { g.strokeStyle = c.line; g.lineWidth = 1.2; g.strokeRect(x, y, w, h); }
  else { g.fillStyle = colour; g.fillRect(x, y, Math.max(w * grown(m, t), 0.4), h); }
  if (m.label) write(m.label, x + w / 2, y + h / 2 + 4, 12, light(tone) ? c.ink : c.on, "middle");
}

export function canvasPainter(canvas, scene, { marks = true, ratio } = {}) {
  const { width, height } = extent(scene);
  const scale = ratio ?? Math.max(canvas.clientWidth / width, 0.1) * (devicePixelRatio || 1);
  canvas.width = Math.round(width * scale); canvas.height = Math.round(height * scale);
  const g = canvas.getContext("2d"), c = palette(document.documentElement);
  return (t, lit = null) => {
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.clearRect(0, 0, width, height);
    if (ratio) { g.fillStyle = c.paper; g.fillRect(0, 0, width, height); }
    if (marks) for (const m of scene.marks ?? []) if (shows(m, t)) paintMark(g, m, t, c);
    if (scene.cells) paintCells(g, scene.cells, c, lit);
  };
}

function paintCells(g, cells, c, lit) {
  const { size } = cells;
  cells.x.forEach((x, i) => {
    const on = !lit || lit.all.has(i);
    g.globalAlpha = on ? 1 : 0.16;
    g.fillStyle = c[`t${cells.tone[i]}`];
    g.fillRect(x, cells.y[i], size, size);
    if (lit?.axes.has(i)) { g.globalAlpha = 1; g.strokeStyle = c[`t${lit.axes.get(i)}`]; g.lineWidth = Math.max(size * 0.12, 1); g.strokeRect(x - 1, cells.y[i] - 1, size + 2, size + 2); }
  });
  g.globalAlpha = 1;
  if (size > 26) cells.x.forEach((x, i) => { g.fillStyle = cells.tone[i] === 9 ? c.soft : c.on; g.font = "11px system-ui"; g.textAlign = "center"; if (!lit || lit.all.has(i)) g.fillText(cells.first_rank[i], x + size / 2, cells.y[i] + size / 2 + 4); });
}

export const hitCell = (cells, x, y) => cells.x.findIndex((cx, i) => x >= cx && x <= cx + cells.size && y >= cells.y[i] && y <= cells.y[i] + cells.size);
export const hitMark = (scene, x, y, t) => (scene.marks ?? []).findLast((m) => (m.kind === "box" || m.kind === "grow") && m.title && shows(m, t) && x >= m.x && x <= m.x + m.w && y >= m.y && y <= m.y + m.h);
// Cells that share a group with one cell, axis by axis; groups come with the scene.
export function groupsOf(cells, i) {
  const all = new Set([i]), axes = new Map();
  Object.entries(cells.groups ?? {}).forEach(([, ids], k) => {
    ids.forEach((id, j) => { if (id === ids[i]) { all.add(j); if (j !== i) axes.set(j, k); } });
  });
  return { all, axes };
}
