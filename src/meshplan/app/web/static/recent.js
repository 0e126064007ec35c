// What was looked at: every whole answer is a step of the browser's history and one line of a short list.
import { html, signal, useState } from "./vendor.js";
import * as s from "./state.js";
import { t } from "./state.js";

const KEY = "meshplan.recent", MOST = 12;
const read = () => { try { return JSON.parse(localStorage.getItem(KEY)) ?? []; } catch { return []; } };
const recent = signal(read());
let stood = "", before = ""; // the scenario that was answered last, and its address

// Called when an answer is whole.
export function remember() {
  const scenario = JSON.stringify(s.scenario.peek());
  const names = s.words.peek()?.names;
  if (scenario === stood || !names?.length) return;
  const i = s.input.peek(), link = s.address();
  if (stood) {
    // the address followed the inputs while they changed; it gets its own back
    s.writeAddress(before);
    s.pushAddress(link);
  }
  [stood, before] = [scenario, link];
  const line = { scenario, link, model: i.model, cluster: `${i.gpus}x${i.device}`, variant: i.variant, plan: names[0] };
  recent.value = [line, ...recent.peek().filter((x) => x.scenario !== scenario)].slice(0, MOST);
  try { localStorage.setItem(KEY, JSON.stringify(recent.value)); } catch { /* private windows keep none */ }
}

// Back and forward bring old inputs back, which are searched for as any others.
export function watchHistory(fallback, reword) {
  addEventListener("popstate", (event) => {
    const spoken = s.lang.peek();
    s.editing.value = null;
    s.readAddress(fallback, { returning: s.isOwn(event.state) });
    [stood, before] = [JSON.stringify(s.scenario.peek()), location.hash];
    if (s.lang.peek() !== spoken) reword();
  });
}

export function Recent({ open }) {
  const [shown, setShown] = useState(false);
  const lines = recent.value;
  if (!lines.length) return null;
  const go = (line) => { setShown(false); s.pushAddress(line.link); open(); };
  const close = (event) => { if (!event.currentTarget.contains(event.relatedTarget)) setShown(false); };
  return html`<div class="menu" onKeyDown=${(e) => e.key === "Escape" && setShown(false)} onFocusOut=${close}>
    <button class="button" id="recent" aria-expanded=${shown} onClick=${() => setShown(!shown)}>${t("web.recent")}</button>
    ${shown && html`<div class="wide">${lines.map((line) => html`<button onClick=${() => go(line)}><b>${line.model}</b> ${line.cluster}<small>${[line.plan, line.variant].filter(Boolean).join(" · ")}</small></button>`)}</div>`}</div>`;
}
