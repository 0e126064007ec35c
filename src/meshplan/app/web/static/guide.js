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

function open(mechanism, mode) {
  s.whatIf.value = {};
  s.time.value = 0;
  s.view.value = { ...s.view.value, mechanism, mode };
  s.page.value = "plan";
  setTimeout(() => document.getElementById("see")?.scrollIntoView({ block: "start" }), 60);
}
// The example becomes the person's own inputs.
function adoptExample(example, mechanism, mode) {
  const [, gpus, device] = example.cluster.match(/^(\d+)x(.+)$/);
  s.editing.value = null;
  s.picked.value = example.plan;
  s.input.value = { ...s.input.value, config: null, model: example.model, gpus: +gpus, device, seq_len: example.job.seq_len, global_batch: example.job.global_batch, framework: example.frameworks[0], precision: "bf16", objective: "fastest" };
  open(mechanism, mode);
}

function Widget({ data }) {
  const [own, setOwn] = useState(false);
  const [words, setWords] = useState(s.view.value.words);
  const clock = useRef(signal(0)).current;
  const example = exampleOf(data), { mechanism, mode } = data;
  const e = s.entry.value;
  const body = own && e ? s.withPlan(e) : example;
  const scene = useScene({ ...body, mechanism, mode });
  useLayoutEffect(() => { if (scene) clock.value = scene.opens_s ?? 0; }, [scene]);
  return html`<div class="see inline" data-ready=${scene ? `${mechanism}.${mode}.${own ? "own" : "example"}` : ""}>
    <div class="see-head"><h3>${t(`web.mechanism.${mechanism}`)} · ${t(`web.mode.${mode}`)}</h3>
      <div class="switch" role="group" aria-label=${t("web.whose_plan")}><button aria-pressed=${!own} onClick=${() => setOwn(false)}>${t("web.example")}</button><button aria-pressed=${own} disabled=${!e} onClick=${() => setOwn(true)}>${t("web.own_plan")}</button></div>
      <div class="switch" role="group" aria-label=${t("web.caption_words")}>${["field", "kitchen"].map((n) => html`<button aria-pressed=${words === n} onClick=${() => setWords(n)}>${t(`web.view.${n}`)}</button>`)}</div></div>
    <p class="soft">${own && e ? `${s.words.value?.names[s.result.value?.plans.indexOf(e)] ?? s.editing.value?.words?.names[0] ?? ""} · ${s.input.value.model} · ${e.num_gpus}x${s.input.value.device}` : `${example.model} · ${example.cluster} · ${Object.entries(example.plan).filter(([k]) => k !== "framework").map(([k, v]) => `${k} ${v}`).join(" · ")}`}</p>
    <${Player} scene=${scene} clock=${clock} words=${words} key=${own}>
      <div class="controls"><button class="button primary" data-go="own" onClick=${() => open(mechanism, mode)}>${t("web.open_own")}</button>
      <button class="button" data-go="example" onClick=${() => adoptExample(example, mechanism, mode)}>${t("web.open_example")}</button></div><//></div>`;
}

const go = (id) => { s.chapter.value = { id, at: "" }; scrollTo(0, 0); };

function Text({ made }) {
  const ref = useRef();
  useLayoutEffect(() => {
    const node = ref.current;
    node.innerHTML = made.html;
    for (const link of node.querySelectorAll("a[href^=http]")) { link.target = "_blank"; link.rel = "noreferrer"; }
    for (const quiz of node.querySelectorAll(".quiz[data-level]")) quiz.dataset.grade = t(`learn.level.${quiz.dataset.level}`);
    for (const math of node.querySelectorAll(".formula")) { math.tabIndex = 0; math.role = "group"; math.ariaLabel = t("web.formula"); }
    for (const table of node.querySelectorAll("table")) { const box = document.createElement("div"); box.className = "scroll"; table.replaceWith(box); box.append(table); }
    const places = [...node.querySelectorAll(".widget")];
    for (const place of places) render(html`<${Widget} data=${{ ...place.dataset }} />`, place);
    if (s.chapter.value.at) document.getElementById(s.chapter.value.at)?.scrollIntoView();
    return () => places.forEach((place) => render(null, place));
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
  const Turn = ({ to, way }) => to ? html`<button class=${`turn ${way}`} onClick=${() => go(to.id)}><small>${t(`web.${way}`)}</small>${to.title}</button>` : html`<span></span>`;
  return html`<div class="page guide"><nav class="side card" aria-label=${t("web.chapters")}><ol>${list.map((c) => html`<li><button aria-current=${c.id === id ? "page" : null} data-chapter=${c.id} onClick=${() => go(c.id)}><span class="soft">${c.order}</span>${c.title}</button>
      ${c.id === id && headings.length > 1 ? html`<ul>${headings.map(([at, text]) => html`<li><button onClick=${() => jump(at)}>${text}</button></li>`)}</ul>` : null}</li>`)}</ol></nav>
    <main class="main" id="main" tabindex="-1"><article class="card chapter" data-ready=${made ? `${made.chapter.id}.${made.lang}` : ""}>
      ${made && html`<header><p class="soft">${t("web.chapter_of", { order: made.chapter.order, count: list.length })}</p><h1>${made.chapter.title}</h1><p class="lead">${made.chapter.summary}</p></header>
      <${Text} made=${made} key=${`${made.chapter.id}.${made.lang}`} />
      <footer><${Turn} to=${list[place - 1]} way="before" /><${Turn} to=${list[place + 1]} way="after" /></footer>`}</article></main></div>`;
}
