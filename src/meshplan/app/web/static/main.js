// The page: header, inputs, answer, picture.
import { html, render, effect, useState } from "./vendor.js";
import * as s from "./state.js";
import { t } from "./state.js";
import { download, loadTexts, reword, save, watchInputs, withPlan } from "./api.js";
import { Cloud, Memory, Parts, Plans, Verdict, Why } from "./answer.js";
import { Inputs } from "./inputs.js";
import { current, See } from "./player.js";
import { canvasPainter } from "./paint.js";

function picture(kind) {
  const v = s.view.value, name = `meshplan-${v.mechanism}-${v.mode}`;
  if (kind === "svg") return save("svg", `${name}.svg`, { ...withPlan(s.entry.value.plan), mechanism: v.mechanism, mode: v.mode, at: s.time.value, what_if: s.whatIf.value });
  const canvas = document.createElement("canvas");
  canvasPainter(canvas, current.scene, { ratio: 2 })(s.time.value);
  return canvas.toBlob((blob) => download(blob, `${name}.png`));
}
const FILES = { yaml: "scenario.yaml", json: "plan.json", trace: "trace.json", report: "report.html" };

function Export() {
  const [open, setOpen] = useState(false);
  const run = (kind) => { setOpen(false); if (kind in FILES) save(kind, FILES[kind], withPlan(s.entry.value.plan)); else picture(kind); };
  return html`<div class="menu" onKeyDown=${(e) => e.key === "Escape" && setOpen(false)}>
    <button class="button" aria-expanded=${open} disabled=${!s.entry.value} onClick=${() => setOpen(!open)}>${t("web.export")}</button>
    ${open && html`<div>${["svg", "png", ...Object.keys(FILES)].map((k) => html`<button data-kind=${k} onClick=${() => run(k)}>${t(`web.export.${k}`)}</button>`)}</div>`}</div>`;
}

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
    <button class="button" onClick=${share}>${t(copied ? "web.copied" : "web.share")}</button><${Export} />
    <button class="button" id="language" onClick=${turn}>${t("web.language")}</button>
    <button class="button" aria-label=${t("web.theme")} title=${t("web.theme")} onClick=${() => { s.theme.value = s.theme.value === "dark" ? "light" : "dark"; }}>◐</button></header>`;
}

const App = () => html`<${Header} /><div class="page"><${Inputs} />
  <main class="main" id="main" tabindex="-1"><${Verdict} /><div class="main rest"><${Plans} /><div class="two"><${Memory} /><${Parts} /></div><${See} /><div class="two"><${Why} /><${Cloud} /></div></div></main></div>`;

s.choices.value = await (await fetch("api/choices")).json();
s.readAddress(s.choices.value.default);
await loadTexts();
effect(() => { document.documentElement.dataset.theme = s.theme.value; });
let writing = 0;
effect(() => { s.input.value; s.picked.value; s.view.value; s.time.value; s.lang.value; s.theme.value; clearTimeout(writing); writing = setTimeout(s.writeAddress, 250); });
watchInputs();
render(html`<${App} />`, document.getElementById("app"));
