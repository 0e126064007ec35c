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

function Paste() {
  const [bad, setBad] = useState(false);
  const [over, setOver] = useState(false);
  const take = (text) => {
    if (!text.trim()) return;
    try {
      const config = JSON.parse(text);
      if (typeof config !== "object" || config === null || Array.isArray(config)) throw new Error();
      setBad(false);
      const name = String(config._name_or_path || config.model_type || "model").split("/").pop();
      set({ config, model: name });
    } catch { setBad(true); }
  };
  const drop = async (event) => {
    event.preventDefault();
    setOver(false);
    const file = event.dataTransfer.files[0];
    take(file ? (file.size < 2e6 ? await file.text() : "too large") : event.dataTransfer.getData("text"));
  };
  const custom = input.value.config;
  return html`<details class=${`drop ${over ? "over" : ""}`} open=${!!custom || bad} onDrop=${drop}
      onDragOver=${(e) => { e.preventDefault(); setOver(true); }} onDragLeave=${() => setOver(false)}>
    <summary>${custom ? t("web.model_pasted") : t("web.model_paste")}</summary>
    <textarea aria-label=${t("web.model_paste")} spellcheck="false" value=${custom ? JSON.stringify(custom, null, 1) : ""}
      onChange=${(e) => take(e.target.value)}></textarea>
    ${bad && html`<p class="problem" role="alert">${t("web.bad_file")}</p>`}
    ${custom && html`<button class="button" onClick=${() => set({ config: null, model: choices.value.default.model })}>${t("web.clear")}</button>`}
  </details>`;
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
      <${Paste} />
    </div>
    <div class="group pair">
      <${Field} label="web.gpus"><input type="number" min="1" max="1000000" value=${i.gpus} onInput=${number("gpus")} /><//>
      <${Field} label="web.device"><select value=${i.device} onChange=${choose("device")}><${Options} names=${c.devices} /></select><//>
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
