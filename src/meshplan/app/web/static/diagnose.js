// Why is it slow? Files of a run in; where a step goes, what costs time and what to change out.
import { html, signal, batch, useState } from "./vendor.js";
import * as s from "./state.js";
import { t } from "./state.js";
import { download, post, readLines } from "./api.js";
import { gib, part, seconds, told, whole } from "./format.js";
import { Timeline, look } from "./timeline.js";

const MOST_FILES = 1024;
const files = signal([]); // {name, bytes, key, done}: what was dropped, in order
const own = signal(false);
const stageTimes = signal("");
const found = signal(null); // {result, words: {en, zh}}
const problems = signal([]);
const state = signal(""); // "", uploading, working
const share = signal(0);
let running = null;

function add(list) {
  const known = new Set(files.value.map((f) => `${f.name} ${f.bytes}`));
  const fresh = [...list].filter((file) => !known.has(`${file.name} ${file.size}`)).slice(0, MOST_FILES);
  files.value = [...files.value, ...fresh.map((file) => ({ file, name: file.name, bytes: file.size, key: null }))];
}

// Files of a dropped folder, one for each rank.
async function within(items) {
  const list = [];
  const walk = async (entry) => {
    if (entry.isFile) list.push(await new Promise((take, drop) => entry.file(take, drop)));
    else if (entry.isDirectory) {
      const reader = entry.createReader();
      for (;;) {
        const some = await new Promise((take, drop) => reader.readEntries(take, drop));
        if (!some.length) break;
        for (const one of some) await walk(one);
      }
    }
  };
  // entries are gone when the event is over, so all are taken before the first is read
  const entries = [...items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  for (const entry of entries) await walk(entry);
  return list;
}

// Where the names of the files begin to differ: what is before it may be cut, what follows may not.
function start(names) {
  let same = names.length > 1 ? 0 : names[0].length;
  while (names.length > 1 && names[0][same] && names.every((name) => name[same] === names[0][same])) same += 1;
  if (names.length === 1) same -= 24;
  while (same > 0 && /[a-z0-9]/i.test(names[0][same - 1])) same -= 1;
  return Math.max(same, 0);
}

async function upload(signal) {
  for (const [i, one] of files.value.entries()) {
    share.value = i / files.value.length;
    if (one.key) continue;
    const response = await post(`upload?name=${encodeURIComponent(one.name)}`, one.file, signal, "application/octet-stream");
    one.key = (await response.json()).key;
  }
}

async function run() {
  running?.abort();
  const mine = (running = new AbortController());
  batch(() => { state.value = "uploading"; share.value = 0; problems.value = []; });
  try {
    await upload(mine.signal);
    batch(() => { state.value = "working"; share.value = 0; });
    const e = own.value ? s.entry.peek() : null;
    const body = { ...(e ? s.withPlan(e) : {}), files: files.value.map((f) => f.key), ...(stageTimes.value ? { stage_times: stageTimes.value } : {}) };
    for await (const said of readLines(await post("diagnose", body, mine.signal))) {
      if (said.share) share.value = said.share;
      if (said.result) batch(() => { found.value = said; look.value = null; });
    }
  } catch (error) {
    if (mine.signal.aborted) return;
    if (error.problems?.some((p) => p.code === "web_upload_gone")) for (const one of files.value) one.key = null;
    problems.value = error.problems?.length ? error.problems : [{ message: t(error.fault ? "web.fault" : "web.offline") }];
  } finally {
    if (running === mine) batch(() => { running = null; state.value = ""; });
  }
}
const stop = () => { running?.abort(); running = null; state.value = ""; };

const size = (bytes) => (bytes < 2 ** 20 ? `${(bytes / 2 ** 10).toFixed(1)} KiB` : bytes < 2 ** 27 ? `${(bytes / 2 ** 20).toFixed(1)} MiB` : gib(bytes));

function Files() {
  const [over, setOver] = useState(false);
  const drop = async (event) => {
    event.preventDefault();
    setOver(false);
    add(await within(event.dataTransfer.items));
  };
  const e = s.entry.value;
  const name = s.words.value?.names?.[s.result.value?.plans.indexOf(e)] ?? s.editing.value?.words?.names?.[0] ?? "";
  const cut = files.value.length ? start(files.value.map((f) => f.name)) : 0;
  const ready = files.value.length > 0 || stageTimes.value !== "";
  return html`<aside class="card side" aria-label=${t("web.diagnose.files")}><h2>${t("web.diagnose.files")}</h2>
    <div class=${`drop open ${over ? "over" : ""}`} onDrop=${drop} onDragOver=${(ev) => { ev.preventDefault(); setOver(true); }} onDragLeave=${() => setOver(false)}>
      <p>${t("web.diagnose.drop")}</p><label class="button choose">${t("web.diagnose.choose")}<input type="file" multiple onChange=${(ev) => { add(ev.target.files); ev.target.value = ""; }} /></label></div>
    <ul class="files">${files.value.map((f, i) => html`<li><span class="name" title=${f.name}><span>${f.name.slice(0, cut)}</span><b>${f.name.slice(cut)}</b></span><small>${size(f.bytes)}</small>
      <button class="button quiet" aria-label=${`${t("web.diagnose.remove")} ${f.name}`} onClick=${() => { files.value = files.value.filter((_, j) => j !== i); }}>×</button></li>`)}</ul>
    <p class="soft">${t("web.diagnose.kinds")}</p>
    ${e && html`<label class="tick"><input type="checkbox" checked=${own.value} onChange=${(ev) => { own.value = ev.target.checked; }} /><span>${t("web.diagnose.own")}<small>${s.input.value.model}, ${s.input.value.gpus}x${s.input.value.device}${name && `: ${name}`}</small></span></label>`}
    <label class="field"><span>${t("web.diagnose.stage_times")}</span><input value=${stageTimes.value} placeholder="1.0, 1.1, 1.0, 1.6" onChange=${(ev) => { stageTimes.value = ev.target.value.trim(); }} /></label>
    <div class="status">${state.value
      ? html`<span class="progress">${share.value ? html`<i style=${{ width: `${100 * share.value}%` }}></i>` : html`<i class="unknown"></i>`}</span><span>${t(`web.diagnose.${state.value}`)}</span><button class="button" onClick=${stop}>${t("web.cancel")}</button>`
      : html`<button class="button primary" disabled=${!ready} onClick=${run}>${t("web.diagnose.look")}</button>`}</div></aside>`;
}

function Where({ run: measured, words }) {
  if (measured.step_time_s == null) return null;
  const rows = Object.entries(measured.parts).filter(([, v]) => v > 0.001).sort((a, b) => b[1] - a[1]);
  return html`<section class="card"><h2>${t("web.diagnose.where")} <small class="soft">${t("web.diagnose.of", { time: seconds(measured.step_time_s) })}</small></h2><div class="parts">
    ${rows.map(([name, v]) => html`<div class="part"><span>${words.parts[name]}</span><div class="track"><i class=${`t${tone(name)}`} style=${{ width: `${100 * v}%` }}></i></div><span>${seconds(v * measured.step_time_s, 3)}</span><small>${part(v)}</small></div>`)}</div></section>`;
}
const TONES = { compute: 0, exposed_tp: 1, exposed_cp: 2, exposed_ep: 4, exposed_dp: 3, exposed_pp: 5, exposed_unknown: 7, copies: 6 };
const tone = (name) => TONES[name] ?? "m";

function Finding({ finding, words, number }) {
  const place = finding.places[0];
  const at = () => { look.value = { ...place, all: finding.places }; document.getElementById("timeline")?.scrollIntoView({ block: "center" }); };
  return html`<li class=${`finding ${finding.severity}`} data-code=${finding.code}><h3><b>${number}. ${words.title}</b><span>${words.cost}</span></h3>
    <p>${told(words.evidence)}${words.where && html` <small class="soft">(${words.where})</small>`}</p><p class="next">${told(words.next)}</p>
    <p class="soft">${told([words.expected, words.certain].filter(Boolean).join(t("diagnose.and")))}</p>
    ${place && html`<button class="button quiet" onClick=${at}>${t("web.diagnose.show")}</button>`}</li>`;
}

function Findings({ result, words }) {
  return html`<section class="card"><h2>${t("web.diagnose.findings")}</h2>
    ${result.findings.length ? html`<ol class="findings">${result.findings.map((f, i) => html`<${Finding} finding=${f} words=${words.findings[i]} number=${i + 1} />`)}</ol>` : html`<p>${words.nothing}</p>`}
  </section>`;
}

// What stands beside the findings: what could not be told, what was odd, what was looked at in vain.
function Remarks({ words }) {
  const lists = [["rule", words.rule_of_thumb], ["open", words.open], ["notes", words.notes]].filter(([, list]) => list.length);
  if (!lists.length && !words.clear.length) return null;
  return html`<section class="card remarks">${lists.map(([name, list]) => html`<h3>${t(`web.diagnose.${name}`)}</h3><ul class="soft">${list.map((x) => html`<li>${told(x)}</li>`)}</ul>`)}
    ${words.clear.length > 0 && html`<h3>${t("web.diagnose.clear")}</h3><p class="soft">${words.clear.join(t("diagnose.and"))}</p>`}</section>`;
}

const COLUMNS = ["axis", "kind", "group", "calls", "time", "shown", "bandwidth", "basis"];
const LEFT = new Set(["axis", "kind", "basis"]);
function Traffic({ rows }) {
  if (!rows.length) return null;
  return html`<section class="card"><h2>${t("web.diagnose.traffic")}</h2><div class="scroll"><table><thead><tr>${COLUMNS.map((c) => html`<th class=${LEFT.has(c) ? "" : "n"}>${t(`diagnose.column.${c}`)}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${row.map((x, i) => html`<td class=${LEFT.has(COLUMNS[i]) ? "" : "n"}>${told(`${x}`)}</td>`)}</tr>`)}</tbody></table></div></section>`;
}

function Compared({ c }) {
  if (!c) return null;
  const most = Math.max(...c.parts.flatMap((p) => [p.predicted_s ?? 0, p.measured_s ?? 0]), 1e-12);
  const pair = (v, kind) => html`<div class="track thin"><i class=${kind} style=${{ width: `${(100 * (v ?? 0)) / most}%` }}></i></div><span>${v == null ? "" : seconds(v)}</span>`;
  return html`<section class="card"><h2>${t("web.diagnose.compared")} <small class="soft">${seconds(c.step.predicted_s)} (${seconds(c.low_s)} – ${seconds(c.high_s)}) · ${seconds(c.step.measured_s)}</small></h2>
    <div class="pairs">${c.parts.map((p) => html`<span>${t(`compared.part.${p.code}`)}</span><div>${pair(p.predicted_s, "tm")}${pair(p.measured_s, "t0")}</div>`)}</div>
    <div class="key"><span><i class="tm"></i>${t("compared.column.predicted")}</span><span><i class="t0"></i>${t("compared.column.measured")}</span></div></section>`;
}

export function Page() {
  const f = found.value, words = f?.words[s.lang.value];
  return html`<div class="page diagnose"><${Files} /><main class="main" id="main" tabindex="-1" data-ready=${f && !state.value ? "yes" : ""}>
    ${problems.value.length > 0 && html`<section class="card" role="alert">${problems.value.map((p) => html`<div class="problem">${p.message}<small>${p.hint}</small></div>`)}</section>`}
    ${!f && html`<section class="card empty"><h1>${t("web.diagnose.title")}</h1><p class="soft">${t("web.diagnose.empty")}</p></section>`}
    ${f && html`<section class="card headline"><div><h1>${words.findings.length ? t("diagnose.of", { name: words.findings[0].title, text: words.findings[0].cost }) : words.nothing}</h1>${words.headline.map((x) => html`<p>${x}</p>`)}</div><button class="button" onClick=${() => download(new Blob([JSON.stringify(f.result, null, 2)], { type: "application/json" }), "diagnosis.json")}>${t("web.diagnose.save")}</button></section>
      <div class="found"><${Findings} result=${f.result} words=${words} /><div class="main"><${Where} run=${f.result.run} words=${words} /><${Remarks} words=${words} /></div></div>
      <${Timeline} data=${f.result.timeline} findings=${f.result.findings} count=${whole} /><${Compared} c=${f.result.comparison} /><${Traffic} rows=${words.traffic} />`}
  </main></div>`;
}
