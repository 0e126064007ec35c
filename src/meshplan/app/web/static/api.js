// Requests. A new search stops the running one: the server sees the closed connection.
import { effect, batch } from "./vendor.js";
import * as s from "./state.js";

export async function post(path, body, signal) {
  const response = await fetch(`api/${path}${path.includes("?") ? "&" : "?"}lang=${s.lang.value}`, {
    method: "POST", signal, body: JSON.stringify(body), headers: { "content-type": "application/json" },
  });
  if (response.ok) return response;
  const said = await response.json().catch(() => ({}));
  throw Object.assign(new Error("refused"), { problems: said.problems ?? [], fault: said.fault });
}
export const ask = async (path, body, signal) => (await post(path, body, signal)).json();
// Asks where a refusal is an answer too, such as a plan that is not legal any more.
async function probe(verb, body, signal) {
  const said = await ask(`${verb}?soft=1`, body, signal);
  if (said.problems) throw Object.assign(new Error("refused"), { problems: said.problems });
  return said;
}

let running = null;
let timer = 0;

export function cancel() {
  clearTimeout(timer);
  running?.abort();
  running = null;
  if (s.busy.value) s.note.value = "web.cancelled";
  s.busy.value = 0;
}

// Before the search is over: what the plan in hand gives under the new inputs.
async function atOnce(request, signal) {
  const now = s.entry.peek();
  if (!now) return;
  const body = { ...request, plan: s.fieldsOf(now.plan) };
  try {
    const found = await probe("estimate", body, signal);
    const words = await ask("words/estimate", body, signal);
    if (!signal.aborted && s.busy.peek()) batch(() => { s.asked.value = request; s.editing.value = { ...found.plans[0], words, waiting: true }; });
  } catch { /* not legal there; the search will say what is */ }
}

async function search(request) {
  running?.abort();
  const mine = (running = new AbortController());
  batch(() => { s.busy.value = performance.now(); s.note.value = ""; });
  const asked = { ...request, top: 16 };
  atOnce(request, mine.signal);
  try {
    const found = await ask("plan", asked, mine.signal);
    const said = await ask("words/plan", asked, mine.signal);
    batch(() => {
      s.result.value = found; s.asked.value = request; s.words.value = said; s.problems.value = []; s.editing.value = null; s.pinned.value = [];
    });
    // a plan made by hand is kept while it stays legal
    if (s.picked.value) await adopt(s.picked.value, mine.signal).catch(() => { if (!mine.signal.aborted) s.picked.value = null; });
  } catch (error) {
    if (mine.signal.aborted) return;
    batch(() => {
      s.problems.value = error.problems ?? [];
      s.note.value = error.problems?.length ? "" : error.fault ? "web.fault" : "web.offline";
    });
  }
  if (running === mine) { running = null; s.busy.value = 0; }
}

// A plan that somebody made by hand or that a link names: judged as it is, where the table lacks it.
export async function adopt(fields, signal) {
  s.picked.value = fields;
  const known = s.result.value?.plans.some((p) => s.fieldsKey(p.plan) === s.fieldsKey(fields));
  if (!fields || known) { s.editing.value = null; return; }
  const request = { ...s.asked.peek(), plan: fields };
  const found = await probe("estimate", request, signal);
  const words = await ask("words/estimate", request, signal);
  s.editing.value = { ...found.plans[0], words };
}

export function watchInputs() {
  let last = "";
  effect(() => {
    const request = s.scenario.value;
    const key = JSON.stringify(request);
    if (!request || key === last) return;
    const wait = last ? 300 : 0;
    last = key;
    clearTimeout(timer);
    timer = setTimeout(() => search(request), wait);
  });
}
export const again = () => search(s.scenario.peek());

export async function loadTexts() {
  const response = await fetch(`api/texts?lang=${s.lang.value}`);
  s.texts.value = await response.json();
  document.documentElement.lang = s.lang.value;
  document.title = s.t("web.title");
}

// Words of the answer in another language: the result is still in the server's memory.
export async function reword() {
  await loadTexts();
  const request = s.asked.peek();
  if (request) {
    s.words.value = await ask("words/plan", { ...request, top: 16 }).catch(() => s.words.peek());
    if (s.editing.peek()) await adopt(s.picked.peek()).catch(() => {});
  }
}

export const withPlan = (plan) => ({ ...s.asked.peek(), plan: s.fieldsOf(plan) });

export async function save(kind, name, body) {
  const response = await post(`export/${kind}`, body);
  download(await response.blob(), name);
}
export function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
