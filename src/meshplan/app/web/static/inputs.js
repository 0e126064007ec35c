// Left: model, cluster, job. Every change searches again.
import { html, useState } from "./vendor.js";
import { input, choices, notice, t } from "./state.js";
import { Settings } from "./settings.js";

const set = (change) => { notice.value = null; input.value = { ...input.value, ...change }; };
const number = (name) => (event) => { const n = Math.floor(+event.target.value); if (n > 0) set({ [name]: n }); };
const choose = (name) => (event) => set({ [name]: event.target.value });
// stacks and settings are those of one framework
const frame = (event) => set({ framework: event.target.value, variant: "" });
// what may be left empty; half a number is not searched for
const optional = (name) => (event) => { const text = event.target.value.trim(); if (text === "" || +text > 0) set({ [name]: text }); };
const tokens = (event) => { const text = event.target.value.trim(); if (text === "" || /^\d+(\.\d+)?([kmbt]|e\d+)?$/i.test(text)) set({ tokens: text }); };

const Field = ({ label, note, children }) => html`<label class="field"><span>${t(label)}${note && html` <small>${t(note)}</small>`}</span>${children}</label>`;
const Options = ({ names, label = (n) => n }) => names.map((n) => html`<option value=${n}>${label(n)}</option>`);

// A file of one's own, pasted, dropped or chosen. `take` makes something of its text, or throws the code of what is wrong.
function Own({ id, label, used, value, take, clear, clearing, mostBytes, children }) {
  const [bad, setBad] = useState("");
  const [over, setOver] = useState(false);
  const give = (text) => {
    if (!text.trim()) return;
    try { take(text); setBad(""); } catch (error) { setBad(error.message); }
  };
  const read = async (file) => (file.size < mostBytes ? give(await file.text()) : setBad("web.file_too_large"));
  const drop = (event) => {
    event.preventDefault();
    setOver(false);
    const file = event.dataTransfer.files[0];
    if (file) read(file); else give(event.dataTransfer.getData("text"));
  };
  const choose = (event) => { const [file] = event.target.files; event.target.value = ""; if (file) read(file); };
  return html`<details class=${`drop ${over ? "over" : ""}`} id=${id} open=${!!value || !!bad} onDrop=${drop}
      onDragOver=${(e) => { e.preventDefault(); setOver(true); }} onDragLeave=${() => setOver(false)}>
    <summary>${t(value ? used : label)}</summary>
    ${children}
    <textarea aria-label=${t(label)} spellcheck="false" value=${value} onChange=${(e) => give(e.target.value)}></textarea>
    ${bad && html`<p class="problem" role="alert">${t(bad)}</p>`}
    <div class="controls"><label class="button choose">${t("web.choose_file")}<input type="file" onChange=${choose} /></label>
      ${value && html`<button class="button" onClick=${() => { setBad(""); clear(); }}>${t(clearing)}</button>`}</div>
  </details>`;
}

const refuse = (code) => { throw new Error(code); };

function Config() {
  const take = (text) => {
    let config = null;
    try { config = JSON.parse(text); } catch { /* no object either */ }
    if (typeof config !== "object" || config === null || Array.isArray(config)) refuse("web.bad_file");
    set({ config, model: String(config._name_or_path || config.model_type || "model").split("/").pop() });
  };
  const { config } = input.value;
  return html`<${Own} id="own-model" label="web.model_paste" used="web.model_pasted" value=${config ? JSON.stringify(config, null, 1) : ""} mostBytes=${2e6}
    take=${take} clear=${() => set({ config: null, model: choices.value.default.model })} clearing="web.clear" />`;
}

// What `meshplan calibrate` wrote; the server reads it, and says what is wrong with it.
function Profile() {
  return html`<${Own} id="own-profile" label="web.profile_paste" used="web.profile_pasted" value=${input.value.profile} mostBytes=${5e5}
    take=${(text) => set({ profile: `${text.trim()}\n` })} clear=${() => set({ profile: "" })} clearing="web.profile_clear">
    <p class="soft">${t("web.profile_how")} <code>meshplan calibrate runs.csv -o profile.yaml</code></p><//>`;
}

// What the whole run may take. An objective that weighs it opens it.
function Budget() {
  const i = input.value;
  const wanted = i.tokens || i.deadline || i.price || i.objective !== "fastest";
  return html`<details class="budget" open=${!!wanted}><summary>${t("web.budget")}</summary>
    <${Field} label="web.tokens"><input inputmode="text" value=${i.tokens} placeholder="15T" onInput=${tokens} /><//>
    <div class="pair even"><${Field} label="web.deadline"><input type="number" min="0" step="any" value=${i.deadline} placeholder="–" onInput=${optional("deadline")} /><//>
    <${Field} label="web.price"><input type="number" min="0" step="any" value=${i.price} placeholder="–" onInput=${optional("price")} /><//></div></details>`;
}

export function Inputs() {
  const i = input.value, c = choices.value;
  return html`<aside class="side card inputs" aria-label=${t("web.inputs")}>
    <div class="group">
      ${!i.config && html`<${Field} label="web.model"><select value=${i.model} onChange=${choose("model")}><${Options} names=${c.models} /></select><//>`}
      <${Config} />
    </div>
    <div class="group"><div class="pair">
      <${Field} label="web.gpus"><input type="number" min="1" max="1000000" value=${i.gpus} onInput=${number("gpus")} /><//>
      <${Field} label="web.device"><select value=${i.device} onChange=${choose("device")}><${Options} names=${c.devices} /></select><//></div>
      <${Profile} />
    </div>
    <div class="group">
      <div class="pair even"><${Field} label="web.seq_len"><input type="number" min="1" step="1024" value=${i.seq_len} onInput=${number("seq_len")} /><//>
      <${Field} label="web.global_batch"><input type="number" min="1" value=${i.global_batch} onInput=${number("global_batch")} /><//></div>
      <div class="pair even"><${Field} label="web.precision"><select value=${i.precision} onChange=${choose("precision")}><${Options} names=${c.precisions} /></select><//>
      <${Field} label="web.framework"><select value=${i.framework} onChange=${frame}><${Options} names=${c.frameworks} /></select><//></div>
      <${Settings} />
    </div>
    <div class="group">
      <${Field} label="web.objective"><select value=${i.objective} onChange=${choose("objective")}>
        <${Options} names=${c.objectives} label=${(n) => t(`web.objective.${n}`)} /></select><//>
      <${Budget} />
    </div>
  </aside>`;
}
