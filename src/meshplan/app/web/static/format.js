// Numbers in words; units as everywhere in meshplan.
import { html } from "./vendor.js";
// GiB, and MiB where no digit of it would be left.
export const gib = (bytes) => (bytes && bytes < 0.05 * 2 ** 30 ? `${+(bytes / 2 ** 20).toPrecision(2)} MiB` : `${(bytes / 2 ** 30).toFixed(1)} GiB`);
// A minus of its own length and the letter of micro, in sentences that were made for terminals;
// names of plans that have a hyphen stay on one line.
const typed = (text) => text.replace(/(^|[\s（(])-(?=\d)/g, "$1−").replace(/(\d) us\b/g, "$1 µs");
export const told = (text) => typed(text).split(/(\b[A-Za-z]+-\d+\b|\bmicro-batch\b)/).map((piece, i) => (i % 2 ? html`<bdi class="keep">${piece}</bdi>` : piece));
export const percent = (share, digits = 1) => `${(share * 100).toFixed(digits)}%`;
// A part of a whole: what is there but too small for a digit is not nothing.
export const part = (share) => (share > 0 && share < 5e-4 ? "<0.1%" : percent(share));
export const whole = (n) => Math.round(n).toLocaleString("en-US");
export const usd = (n) => `$${whole(n)}`;
export const days = (n) => (n >= 10 ? n.toFixed(0) : n.toPrecision(2));
export function seconds(s, digits = 4) {
  const a = Math.abs(s);
  if (!a) return "0 s";
  if (a >= Math.min(10 ** digits, 1000)) return `${whole(s)} s`;
  if (a >= 1) return `${s.toPrecision(digits)} s`;
  return a >= 1e-3 ? `${(s * 1e3).toPrecision(3)} ms` : `${(s * 1e6).toPrecision(3)} µs`;
}
const raised = (text) => [...text].map((c) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[c] ?? "⁻").join("");
const power = (n, digits) => n.toExponential(digits - 1).replace(/\.?0*e\+?(-?\d+)$/, (_, e) => `×10${raised(e)}`);
const short = (n) => (n !== 0 && (Math.abs(n) >= 1e7 || Math.abs(n) < 1e-4) ? power(n, 5) : (+n.toPrecision(7)).toLocaleString("en-US", { maximumSignificantDigits: 7 }));
// A value of a formula in the unit that people use for it.
export function amount(value, unit) {
  if (unit === "bytes") return Math.abs(value) >= 2 ** 27 ? `${(value / 2 ** 30).toFixed(2)} GiB` : `${+(value / 2 ** 20).toPrecision(4)} MiB`;
  if (unit === "bytes/s") return `${+(value / 1e9).toPrecision(4)} GB/s`;
  if (unit === "flop/s") return `${+(value / 1e12).toPrecision(4)} TFLOP/s`;
  if (unit === "s") return seconds(value);
  if (unit === "1") return percent(value);
  if (unit === "flop") return `${power(value, 4)} FLOP`;
  return `${short(value)} ${unit}`.trim();
}
// The expression with numbers in place of its symbols; names of functions stay.
export function filled(formula) {
  const numbers = Object.fromEntries(formula.values.map((v) => [v.symbol, short(v.value)]));
  return formula.expression.replace(/[A-Za-z_]\w*/g, (name) => numbers[name] ?? name);
}
export const typeset = (expression) => expression.replace(/ \*\* (\d+)/g, (_, n) => raised(n)).replaceAll(" * ", " × ").replaceAll(" - ", " − ");
