// What the page knows: the person's inputs, the answer, the picture. The address holds all of it.
import { signal, computed } from "./vendor.js";

export const lang = signal("en");
export const theme = signal("light");
export const texts = signal({});
export const choices = signal(null);
export const page = signal("plan"); // plan, guide, or another page that main.js knows
export const chapter = signal({ id: "", at: "" }); // of the guide, and the heading to scroll to
export const input = signal(null); // {model, config, gpus, device, seq_len, global_batch, precision, framework, variant, profile, objective, tokens, deadline, price}
export const result = signal(null); // the JSON of `meshplan plan`
export const asked = signal(null); // the scenario that `result` answers, which inputs may have left behind
export const words = signal(null);
export const problems = signal([]);
export const busy = signal(0); // when the running search began, 0 for none
export const share = signal(0); // how much of it is done, 0 where it does not say
export const rest = signal(false); // the answer is there, what would change it is still worked out
export const note = signal("");
export const notice = signal(null); // {code, why}: why the plan asked for is not the one shown
export const picked = signal(null); // fields of a plan, null for the best
export const pinned = signal([]);
export const editing = signal(null); // entry of a plan made by hand
export const view = signal({ mechanism: "panorama", mode: "overview", words: "field" });
export const time = signal(0);
export const whatIf = signal({});

export const t = (code, values = {}) =>
  (texts.value[code] ?? code).replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");

// Where a figure comes from: titles of documents stay as they are.
export const sourced = (text) => texts.value[`source.${text.toLowerCase().replace(/[^\p{L}\p{N}_]+/gu, "_")}`] ?? text;

const shorthand = (gpus, device, price) => (price ? { base: `${gpus}x${device}`, usd_per_gpu_hour: +price } : `${gpus}x${device}`);

// The scenario as a request of the service; key order is fixed, so that equal inputs are equal text.
export const scenario = computed(() => {
  const i = input.value;
  if (!i) return null;
  const job = { seq_len: i.seq_len, global_batch: i.global_batch, precision: i.precision };
  if (i.tokens) job.total_tokens = i.tokens;
  if (+i.deadline) job.deadline_days = +i.deadline;
  return {
    model: i.config ? { config: i.config, name: i.model || "model" } : i.model,
    cluster: shorthand(i.gpus, i.device, i.price),
    job,
    frameworks: [i.framework],
    ...(i.variant ? { variant: i.variant } : {}),
    ...(i.profile ? { profile: i.profile } : {}),
    objective: i.objective,
  };
});

// The plan in hand: made by hand, picked in the table, or the best.
export const entry = computed(() => {
  if (editing.value) return editing.value;
  const plans = result.value?.plans ?? [];
  return (picked.value && plans.find((p) => isPlan(p.plan, picked.value))) ?? plans[0] ?? result.value?.closest ?? null;
});

// Whether what is shown answers older inputs.
export const stale = computed(() => busy.value > 0 && result.value !== null);

const FIELDS = ["framework", "tp", "sp", "pp", "vpp", "schedule", "cp", "cp_comm", "ep", "etp", "dp_replicate", "zero", "micro_batch", "recompute", "offload", "offload_layers", "split"];

export const fieldsOf = (plan) => Object.fromEntries(FIELDS.filter((f) => plan[f] != null).map((f) => [f, plan[f]]));
export const fieldsKey = (plan) => JSON.stringify(fieldsOf(plan));
// Whether fields name a plan; DP tells plans of several cluster sizes apart.
export const isPlan = (plan, fields) => fieldsKey(plan) === fieldsKey(fields) && (fields.dp == null || fields.dp === plan.dp);

// The request that an entry answers: an objective may have chosen fewer GPUs than were given.
export function withPlan(e) {
  const request = { ...asked.peek(), plan: fieldsOf(e.plan) };
  const resize = (text) => text.replace(/^\d+/, String(e.num_gpus));
  const { cluster } = request;
  if (typeof cluster === "string") request.cluster = resize(cluster);
  else if (cluster?.base) request.cluster = { ...cluster, base: resize(cluster.base) };
  return request;
}

// A link says in which language and colours it is shown; who goes back or forward keeps theirs.
export function readAddress(fallback, { returning = false } = {}) {
  const q = new URLSearchParams(location.hash.slice(1));
  const i = { ...fallback };
  for (const key of Object.keys(i)) if (q.has(key)) i[key] = typeof i[key] === "number" ? +q.get(key) || i[key] : q.get(key);
  const json = (key) => { try { return q.has(key) ? JSON.parse(q.get(key)) : null; } catch { return null; } };
  i.config = json("config");
  const named = json("plan");
  picked.value = named && typeof named === "object" && Object.keys(fieldsOf(named)).length ? named : null;
  notice.value = q.has("plan") && !picked.value ? { code: "web.link_unread" } : null;
  page.value = q.get("page") ?? "plan";
  chapter.value = { id: q.get("chapter") ?? "", at: q.get("at") ?? "" };
  view.value = { mechanism: q.get("see") ?? "panorama", mode: q.get("mode") ?? "overview", words: q.get("words") ?? "field" };
  whatIf.value = json("if") ?? {};
  time.value = +q.get("t") || 0;
  input.value = i;
  if (returning) return;
  lang.value = q.get("lang") ?? (navigator.language.startsWith("zh") ? "zh" : "en");
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  theme.value = q.get("theme") ?? (dark ? "dark" : "light");
}

export function address() {
  const q = new URLSearchParams();
  const { config, ...plain } = input.value ?? {};
  for (const [key, value] of Object.entries(plain)) if (value !== "") q.set(key, value);
  if (config) q.set("config", JSON.stringify(config));
  if (picked.value) q.set("plan", JSON.stringify(picked.value));
  if (page.value !== "plan") q.set("page", page.value);
  if (chapter.value.id) q.set("chapter", chapter.value.id);
  if (chapter.value.at) q.set("at", chapter.value.at);
  q.set("see", view.value.mechanism);
  q.set("mode", view.value.mode);
  q.set("words", view.value.words);
  if (Object.keys(whatIf.value).length) q.set("if", JSON.stringify(whatIf.value));
  if (time.value) q.set("t", time.value.toFixed(2));
  q.set("lang", lang.value);
  q.set("theme", theme.value);
  return `#${q}`;
}
const OWN = "meshplan"; // marks steps of the history that are ours, which a typed or pasted link is not
export const isOwn = (state) => state === OWN;
export const writeAddress = (link = address()) => history.replaceState(OWN, "", link);
export const pushAddress = (link = address()) => history.pushState(OWN, "", link);
// Another page or chapter is a step of the browser's history; what is turned on a page is none.
export function visit(change) {
  writeAddress();
  change();
  if (address() !== location.hash) pushAddress();
  scrollTo(0, 0);
}
