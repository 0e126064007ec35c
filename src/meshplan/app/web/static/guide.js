// The guide: the chapters of `meshplan learn`, with their pictures alive.
import { html, render, signal, useEffect, useLayoutEffect, useRef, useState } from "./vendor.js";
import * as s from "./state.js";
import { t } from "./state.js";
import { Player, useScene } from "./player.js";

const get = async (path) => { const said = await fetch(`api/${path}?lang=${s.lang.value}`); if (!said.ok) throw new Error(path); return said.json(); };
const SCENARIO = ["model", "cluster", "seqLen", "globalBatch", "framework"];
const snake = (name) => name.replace(/[A-Z]/g, (c) => `_${c.toLowerCase()}`);

// The scenario and plan that a chapter gives to a picture.
function exampleOf(data) {
  const plan = Object.fromEntries(Object.entries(data).filter(([k]) => !SCENARIO.includes(k) && k !== "mechanism" && k !== "mode").map(([k, v]) => [snake(k), v]));
  const job = { seq_len: +data.seqLen, global_batch: +data.globalBatch, precision: "bf16" };
  return { model: data.model, cluster: data.cluster, job, frameworks: [data.framework], plan: { ...plan, framework: data.framework } };
}

function open(mechanism, mode, adopt = () => {}) {
  s.visit(() => {
    adopt();
    s.whatIf.value = {};
    s.time.value = 0;
    s.view.value = { ...s.view.value, mechanism, mode };
    s.page.value = "plan";
  });
  setTimeout(() => document.getElementById("see")?.scrollIntoView({ block: "start" }), 60);
}
// The example becomes the person's own inputs.
function adoptExample(example, mechanism, mode) {
  const [, gpus, device] = example.cluster.match(/^(\d+)x(.+)$/);
  open(mechanism, mode, () => {
    s.editing.value = null;
    s.picked.value = example.plan;
    s.input.value = { ...s.input.value, config: null, model: example.model, gpus: +gpus, device, seq_len: example.job.seq_len, global_batch: example.job.global_batch, framework: example.frameworks[0], variant: "", precision: "bf16", objective: "fastest" };
  });
}

// What a reader did with a picture stays when the language changes or a chapter is read again.
const kept = new Map();
const fresh = () => ({ own: signal(false), words: signal(s.view.peek().words), clock: signal(0), seen: "", scene: null });
const degree = new Set(["tp", "pp", "vpp", "cp", "ep", "etp", "dp"]);
const named = (plan) => {
  const fields = Object.entries(plan).filter(([k]) => k !== "framework");
  return [fields.filter(([k]) => degree.has(k)).map(([k, v]) => k.toUpperCase() + v).join(" "), ...fields.filter(([k]) => !degree.has(k)).map(([k, v]) => `${t(`axis.${k}`)} ${v}`)].filter(Boolean);
};

function Widget({ data, name }) {
  if (!kept.has(name)) kept.set(name, fresh());
  const state = kept.get(name), { clock } = state, own = state.own.value, words = state.words.value;
  const example = exampleOf(data), { mechanism, mode } = data;
  const e = s.entry.value;
  const body = own && e ? s.withPlan(e) : example;
  const got = useScene({ ...body, mechanism, mode });
  if (got) state.scene = got;
  const scene = got ?? state.scene; // keeps its room until the next one is there
  useLayoutEffect(() => {
    if (!scene) return;
    const shown = JSON.stringify(body);
    clock.value = state.seen === shown ? Math.min(clock.peek(), scene.duration_s) : scene.opens_s ?? 0;
    state.seen = shown;
  }, [scene]);
  return html`<div class="see inline" data-ready=${scene ? `${mechanism}.${mode}.${own ? "own" : "example"}` : ""}>
    <div class="see-head"><h3>${t(`web.mechanism.${mechanism}`)} · ${t(`web.mode.${mode}`)}</h3>
      <div class="switch" role="group" aria-label=${t("web.whose_plan")}><button aria-pressed=${!own} onClick=${() => { state.own.value = false; }}>${t("web.example")}</button><button aria-pressed=${own} disabled=${!e} onClick=${() => { state.own.value = true; }}>${t("web.own_plan")}</button></div>
      <div class="switch" role="group" aria-label=${t("web.caption_words")}>${["field", "kitchen"].map((n) => html`<button aria-pressed=${words === n} onClick=${() => { state.words.value = n; }}>${t(`web.view.${n}`)}</button>`)}</div></div>
    <p class="soft">${own && e ? `${s.words.value?.names[s.result.value?.plans.indexOf(e)] ?? s.editing.value?.words?.names[0] ?? ""} · ${s.input.value.model} · ${e.num_gpus}x${s.input.value.device}` : [example.model, example.cluster, ...named(example.plan)].join(" · ")}</p>
    <${Player} scene=${scene} clock=${clock} words=${words} key=${own}>
      <div class="controls"><button class="button primary" data-go="own" onClick=${() => open(mechanism, mode)}>${t("web.open_own")}</button>
      <button class="button" data-go="example" onClick=${() => adoptExample(example, mechanism, mode)}>${t("web.open_example")}</button></div><//></div>`;
}

const go = (id) => s.visit(() => { s.chapter.value = { id, at: "" }; });

// Where a reader is: the part of the text at the top of the window, the same in every language.
const TOP = 80; // what stands above the text, px
const place = { chapter: "", part: 0, y: 0, at: "" };
function remember(node, chapter) {
  const parts = [...node.children], part = parts.findIndex((x) => x.getBoundingClientRect().bottom > TOP);
  Object.assign(place, { chapter, part, y: part < 0 ? 0 : parts[part].getBoundingClientRect().top });
}
function arrive(node, { id, at }) {
  if (at && place.at !== `${id}#${at}`) document.getElementById(at)?.scrollIntoView();
  else if (place.chapter === id && place.part > 0) scrollBy(0, node.children[place.part].getBoundingClientRect().top - place.y);
  place.at = at && `${id}#${at}`;
  place.chapter = "";
}

function Text({ made }) {
  const ref = useRef();
  useLayoutEffect(() => {
    const node = ref.current;
    node.innerHTML = made.html;
    for (const link of node.querySelectorAll("a[href^=http]")) { link.target = "_blank"; link.rel = "noreferrer"; }
    for (const quiz of node.querySelectorAll(".quiz[data-level]")) quiz.dataset.grade = t(`learn.level.${quiz.dataset.level}`);
    for (const math of node.querySelectorAll(".formula")) { math.tabIndex = 0; math.role = "group"; math.ariaLabel = t("web.formula"); }
    for (const table of node.querySelectorAll("table")) { const box = document.createElement("div"); box.className = "scroll"; table.replaceWith(box); box.append(table); }
    const widgets = [...node.querySelectorAll(".widget")], { id } = made.chapter;
    widgets.forEach((widget, i) => render(html`<${Widget} data=${{ ...widget.dataset }} name=${`${id}.${i}`} />`, widget));
    arrive(node, { id, at: s.chapter.peek().at });
    return () => { remember(node, id); widgets.forEach((widget) => render(null, widget)); };
  }, [made]);
  return html`<div class="prose" ref=${ref}></div>`;
}

export function Page() {
  const [list, setList] = useState([]);
  const [made, setMade] = useState(null);
  const lang = s.lang.value, id = s.chapter.value.id || list[0]?.id;
  useEffect(() => { get("guide").then((found) => setList(found.chapters), () => {}); }, [lang]);
  useEffect(() => {
    let here = true;
    if (id) get(`guide/${encodeURIComponent(id)}`).then((found) => here && setMade({ ...found, lang }), () => here && go(""));
    return () => { here = false; };
  }, [id, lang]);
  const place = list.findIndex((c) => c.id === made?.chapter.id);
  const headings = made ? [...made.html.matchAll(/<h2 id="([^"]+)">(.*?)<\/h2>/g)].map(([, at, text]) => [at, text.replace(/<[^>]+>/g, "")]) : [];
  const jump = (at) => { s.chapter.value = { id, at }; document.getElementById(at)?.scrollIntoView(); };
  const leaf = (to, way) => to ? html`<button class=${`turn ${way}`} onClick=${() => go(to.id)}><small>${t(`web.${way}`)}</small>${to.title}</button>` : html`<span></span>`;
  return html`<div class="page guide"><nav class="side card" aria-label=${t("web.chapters")}><ol>${list.map((c) => html`<li><button aria-current=${c.id === id ? "page" : null} data-chapter=${c.id} onClick=${() => go(c.id)}><span class="soft">${c.order}</span>${c.title}</button>
      ${c.id === id && headings.length > 1 ? html`<ul>${headings.map(([at, text]) => html`<li><button onClick=${() => jump(at)}>${text}</button></li>`)}</ul>` : null}</li>`)}</ol></nav>
    <main class="main" id="main" tabindex="-1"><article class="card chapter" data-ready=${made ? `${made.chapter.id}.${made.lang}` : ""}>
      ${made && html`<header><p class="soft">${t("web.chapter_of", { order: made.chapter.order, count: list.length })}</p><h1>${made.chapter.title}</h1><p class="lead">${made.chapter.summary}</p></header>
      <${Text} made=${made} key=${`${made.chapter.id}.${made.lang}`} />
      <footer>${leaf(list[place - 1], "before")}${leaf(list[place + 1], "after")}</footer>`}</article></main></div>`;
}
