// Requests. A new search stops the running one: the server sees the closed connection.
import { effect, batch } from "./vendor.js";
import * as s from "./state.js";
import { remember } from "./recent.js";

export const SHOWN = 8; // plans that the table can show

export async function post(path, body, signal, type = "application/json") {
  const response = await fetch(`api/${path}${path.includes("?") ? "&" : "?"}lang=${s.lang.value}`, {
    method: "POST", signal, body: type === "application/json" ? JSON.stringify(body) : body, headers: { "content-type": type },
  });
  if (response.ok) return response;
  const said = await response.json().catch(() => ({}));
  throw refusal(said);
}
const refusal = (said) => Object.assign(new Error("refused"), { problems: said.problems ?? [], fault: said.fault });
export const ask = async (path, body, signal) => (await post(path, body, signal)).json();
// Asks where a refusal is an answer too, such as a plan that is not legal any more.
export async function probe(verb, body, signal) {
  const said = await ask(`${verb}?soft=1`, body, signal);
  if (said.problems) throw refusal(said);
  return said;
}

// Lines of an answer as they come: how far it is, the answer, the whole answer.
export async function* readLines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pieces = []; // of a line that is not whole yet
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const [rest, ...fresh] = value.split("\n");
    pieces.push(rest);
    for (const next of fresh) {
      const said = JSON.parse(pieces.join(""));
      pieces = [next];
      if (said.problems || said.fault) throw refusal(said);
      yield said;
    }
  }
}

export async function* lines(body, signal) {
  yield* readLines(await post("search", body, signal));
}

let running = null;
let timer = 0;

export function cancel() {
  clearTimeout(timer);
  running?.abort();
  running = null;
  batch(() => {
    if (s.busy.value) s.note.value = "web.cancelled";
    s.busy.value = 0;
    s.rest.value = false;
  });
}

// Before the search is over: what the plan in hand gives under the new inputs.
async function atOnce(request, signal) {
  const now = s.entry.peek();
  if (!now) return;
  try {
    const body = { ...request, plan: s.fieldsOf(now.plan) };
    const found = await probe("glance", body, signal);
    const words = await ask("words/glance", body, signal);
    if (!signal.aborted && s.busy.peek()) batch(() => { s.asked.value = request; s.editing.value = { ...found.plans[0], words, waiting: true }; });
  } catch { /* not legal there; the search will say what is */ }
}

const says = (words) => words?.reasons?.some((r) => r.said.length);

// Reasons follow the plans by a moment: until then those of the answer before keep their place.
function show(said, request) {
  const before = s.words.peek();
  const words = said.result.plans.length && !says(said.words) && says(before) ? { ...said.words, reasons: before.reasons, old: true } : said.words;
  batch(() => {
    s.result.value = said.result;
    s.words.value = words;
    s.asked.value = request;
    s.problems.value = [];
  });
}

// The first answer: the plan in hand is kept while it stays legal, then all that is shown is new.
async function begin(said, request, signal) {
  batch(() => { s.editing.value = null; s.pinned.value = []; show(said, request); });
  if (s.picked.value) await adopt(s.picked.value, signal).catch((error) => { if (!signal.aborted) batch(() => { s.picked.value = null; s.notice.value = { code: "web.plan_gone", why: error.problems?.[0]?.message }; }); });
  if (!signal.aborted) batch(() => { s.busy.value = 0; s.rest.value = true; });
}

async function search(request) {
  running?.abort();
  const mine = (running = new AbortController());
  batch(() => { s.busy.value = performance.now(); s.share.value = 0; s.rest.value = false; s.note.value = ""; });
  atOnce(request, mine.signal);
  try {
    let first = true;
    for await (const said of lines({ ...request, top: SHOWN }, mine.signal)) {
      if (said.share) s.share.value = said.share;
      if (!said.result) continue;
      if (first) await begin(said, request, mine.signal);
      else show(said, request);
      first = false;
    }
    remember();
  } catch (error) {
    if (mine.signal.aborted) return;
    batch(() => {
      s.problems.value = error.problems ?? [];
      s.note.value = error.problems?.length ? "" : error.fault ? "web.fault" : "web.offline";
    });
  }
  if (running === mine) batch(() => { running = null; s.busy.value = 0; s.rest.value = false; });
}

// A plan that somebody made by hand or that a link names: judged as it is, where the table lacks it.
export async function adopt(fields, signal) {
  s.picked.value = fields;
  const known = s.result.value?.plans.some((p) => fields && s.isPlan(p.plan, fields));
  if (!fields || known) { s.editing.value = null; return; }
  const request = { ...s.asked.peek(), plan: s.fieldsOf(fields) };
  const found = await probe("glance", request, signal);
  const words = await ask("words/glance", request, signal);
  const mine = (s.editing.value = { ...found.plans[0], words });
  // what would make it fit takes a search
  if (mine.memory.verdict !== "fits") waysOut(mine, request, signal);
}

async function waysOut(entry, request, signal) {
  try {
    await probe("estimate", request, signal);
    const words = await ask("words/estimate", request, signal);
    if (s.editing.peek() === entry) s.editing.value = { ...entry, words };
  } catch { /* the plan itself is shown already */ }
}

export function watchInputs() {
  let last = "";
  effect(() => {
    const request = s.scenario.value;
    const key = JSON.stringify(request);
    if (!request || key === last) return;
    const wait = last ? 300 : 0; // a person who types is not searched for at every key
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
    s.words.value = await ask("words/plan", { ...request, top: SHOWN }).catch(() => s.words.peek());
    if (s.editing.peek()) await adopt(s.picked.peek()).catch(() => {});
  }
}

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
