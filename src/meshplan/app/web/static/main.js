// The pages, and what stands above them all.
import { html, render, effect, signal, useEffect, useState } from "./vendor.js";
import * as s from "./state.js";
import { t } from "./state.js";
import { download, loadTexts, reword, save, watchInputs } from "./api.js";
import { Verdict } from "./answer.js";
import { Memory, Parts } from "./bars.js";
import { Front } from "./pareto.js";
import { Inputs } from "./inputs.js";
import { Plans } from "./plans.js";
import { Recent, watchHistory } from "./recent.js";
import { current, See } from "./see.js";
import { canvasPainter } from "./paint.js";
import { Formulas, Why } from "./why.js";

// A page beside the plan is a module with a component `Page`, fetched when it is first opened.
const PAGES = { plan: null, diagnose: () => import("./diagnose.js"), guide: () => import("./guide.js") };

function picture(kind) {
  const v = s.view.value, name = `meshplan-${v.mechanism}-${v.mode}`;
  if (kind === "svg") return save("svg", `${name}.svg`, { ...s.withPlan(s.entry.value), mechanism: v.mechanism, mode: v.mode, at: s.time.value, what_if: s.whatIf.value });
  const canvas = document.createElement("canvas");
  canvasPainter(canvas, current.scene, { ratio: 2 })(s.time.value);
  return canvas.toBlob((blob) => download(blob, `${name}.png`));
}
const FILES = { yaml: "scenario.yaml", json: "plan.json", trace: "trace.json", report: "report.html" };

function Export() {
  const [open, setOpen] = useState(false);
  const run = (kind) => { setOpen(false); if (kind in FILES) save(kind, FILES[kind], s.withPlan(s.entry.value)); else picture(kind); };
  const close = (event) => { if (!event.currentTarget.contains(event.relatedTarget)) setOpen(false); };
  return html`<div class="menu" onKeyDown=${(e) => e.key === "Escape" && setOpen(false)} onFocusOut=${close}>
    <button class="button" aria-expanded=${open} disabled=${!s.entry.value} onClick=${() => setOpen(!open)}>${t("web.export")}</button>
    ${open && html`<div>${["svg", "png", ...Object.keys(FILES)].map((k) => html`<button data-kind=${k} onClick=${() => run(k)}>${t(`web.export.${k}`)}</button>`)}</div>`}</div>`;
}

const turnTo = (name) => s.visit(() => { s.page.value = name; });

function Header() {
  const [copied, setCopied] = useState(false);
  const share = async () => {
    s.writeAddress();
    try { await navigator.clipboard.writeText(location.href); } catch { /* the address bar has it too */ }
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  const turn = () => { s.lang.value = s.lang.value === "en" ? "zh" : "en"; reword(); };
  return html`<header class="top"><a class="skip" href="#main" onClick=${(e) => { e.preventDefault(); document.getElementById("main").focus(); }}>${t("web.skip")}</a>
    <div class="brand"><img src="static/icon.svg" alt="" />meshplan</div>
    <nav class="pages" aria-label=${t("web.pages")}>${Object.keys(PAGES).map((name) => html`<button aria-current=${s.page.value === name ? "page" : null} data-page=${name} onClick=${() => turnTo(name)}>${t(`web.page.${name}`)}</button>`)}</nav>
    <div class="tools"><${Recent} open=${() => { s.editing.value = null; s.readAddress(s.choices.value.default, { returning: true }); }} /><button class="button" onClick=${share}>${t(copied ? "web.copied" : "web.share")}</button><${Export} />
    <button class="button" id="language" onClick=${turn}>${t("web.language")}</button>
    <button class="button" aria-label=${t("web.theme")} title=${t("web.theme")} onClick=${() => { s.theme.value = s.theme.value === "dark" ? "light" : "dark"; }}>◐</button></div></header>`;
}

const Workbench = () => html`<div class="page"><${Inputs} />
  <main class="main" id="main" tabindex="-1"><${Verdict} /><div class="main rest"><${Plans} /><div class="two"><${Memory} /><${Parts} /></div><${See} /><${Why} /><${Front} /><${Formulas} /></div></main></div>`;

const loaded = signal({});

function App() {
  const name = s.page.value in PAGES ? s.page.value : "plan";
  useEffect(() => { if (PAGES[name]) PAGES[name]().then((module) => { loaded.value = { ...loaded.peek(), [name]: module.Page }; }); }, [name]);
  const Page = PAGES[name] ? loaded.value[name] : Workbench;
  return html`<${Header} />${Page ? html`<${Page} />` : html`<main class="page" id="main" tabindex="-1"></main>`}`;
}

s.choices.value = await (await fetch("api/choices")).json();
s.readAddress(s.choices.value.default);
await loadTexts();
effect(() => { document.documentElement.dataset.theme = s.theme.value; });
let writing = 0;
effect(() => {
  for (const kept of [s.page, s.chapter, s.input, s.picked, s.view, s.time, s.whatIf, s.lang, s.theme]) kept.value;
  clearTimeout(writing);
  writing = setTimeout(() => s.writeAddress(), 250);
});
watchInputs();
watchHistory(s.choices.value.default, reword);
render(html`<${App} />`, document.getElementById("app"));
