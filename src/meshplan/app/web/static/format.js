// Numbers in words; units as everywhere in meshplan.
export const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(1)} GiB`;
export const percent = (share, digits = 1) => `${(share * 100).toFixed(digits)}%`;
export const whole = (n) => Math.round(n).toLocaleString("en-US");
export function seconds(s) {
  const a = Math.abs(s);
  if (a >= 1) return `${s.toPrecision(4)} s`;
  return a >= 1e-3 ? `${(s * 1e3).toPrecision(3)} ms` : `${(s * 1e6).toPrecision(3)} µs`;
}
