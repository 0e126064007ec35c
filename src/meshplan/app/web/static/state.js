// What the page knows: the person's inputs, the answer, the picture. The address holds all of it.
import { signal, computed } from "./vendor.js";

export const lang = signal("en");
export const theme = signal("light");
export const texts = signal({});
export const choices = signal(null);
export const input = signal(null); // {model, config, gpus, device, seq_len, global_batch, precision, framework, objective}
export const result = signal(null); // the JSON of `meshplan plan`
export const asked = signal(null); // the scenario that `result` answers, which inputs may have left behind
export const words = signal(null);
export const problems = signal([]);
export const busy = signal(0); // when the running search began, 0 for none
export const note = signal("");
export const picked = signal(null); // fields of a plan, null for the best
export const pinned = signal([]);
export const editing = signal(null); // entry of a plan made by hand
export const view = signal({ mechanism: "panorama", mode: "overview", words: "field" });
export const time = signal(0);
export const whatIf = signal({});

export const t = (code, values = {}) =>
  (texts.value[code] ?? code).replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");

// The scenario as a request of the service; key order is fixed, so that equal inputs are equal text.
export const scenario = computed(() => {
  const i = input.value;
  if (!i) return null;
  return {
    model: i.config ? { config: i.config, name: i.model || "model" } : i.model,
    cluster: `${i.gpus}x${i.device}`,
    job: { seq_len: i.seq_len, global_batch: i.global_batch, precision: i.precision },
    frameworks: [i.framework],
    objective: i.objective,
  };
});

// The plan in hand: made by hand, picked in the table, or the best.
export const entry = computed(() => {
  if (editing.value) return editing.value;
  const plans = result.value?.plans ?? [];
  const key = picked.value && fieldsKey(picked.value);
  return plans.find((p) => fieldsKey(p.plan) === key) ?? plans[0] ?? result.value?.closest ?? null;
});

const FIELDS = ["framework", "tp", "sp", "pp", "vpp", "schedule", "cp", "cp_comm", "ep", "etp", "dp_replicate", "zero", "micro_batch", "recompute", "offload", "split"];

export const fieldsOf = (plan) => Object.fromEntries(FIELDS.filter((f) => plan[f] != null).map((f) => [f, plan[f]]));
export const fieldsKey = (plan) => JSON.stringify(fieldsOf(plan));

export function readAddress(fallback) {
  const q = new URLSearchParams(location.hash.slice(1));
  const i = { ...fallback };
  for (const key of Object.keys(i)) if (q.has(key)) i[key] = typeof i[key] === "number" ? +q.get(key) || i[key] : q.get(key);
  try { i.config = q.has("config") ? JSON.parse(q.get("config")) : null; } catch { i.config = null; }
  try { picked.value = q.has("plan") ? JSON.parse(q.get("plan")) : null; } catch { picked.value = null; }
  view.value = { mechanism: q.get("see") ?? "panorama", mode: q.get("mode") ?? "overview", words: q.get("words") ?? "field" };
  time.value = +q.get("t") || 0;
  lang.value = q.get("lang") ?? (navigator.language.startsWith("zh") ? "zh" : "en");
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  theme.value = q.get("theme") ?? (dark ? "dark" : "light");
  input.value = i;
}

export function writeAddress() {
  const q = new URLSearchParams();
  const { config, ...rest } = input.value ?? {};
  for (const [key, value] of Object.entries(rest)) q.set(key, value);
  if (config) q.set("config", JSON.stringify(config));
  if (picked.value) q.set("plan", JSON.stringify(picked.value));
  q.set("see", view.value.mechanism);
  q.set("mode", view.value.mode);
  q.set("words", view.value.words);
  if (time.value) q.set("t", time.value.toFixed(2));
  q.set("lang", lang.value);
  q.set("theme", theme.value);
  history.replaceState(null, "", `#${q}`);
}
