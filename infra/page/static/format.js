// Numbers and instants as people read them. Event time is UTC everywhere.

export const MARKS = { up: "▲", down: "▼", hold: "=", retired: "×" };

export function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 10000) return Math.round(value).toLocaleString("en");
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return String(Number(value.toFixed(1)));
  return String(Number(value.toPrecision(3)));
}

/** Of things that are counted. */
export const count = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));

/** A line never ends between a number and its unit. */
export const together = (words) => words.replace(/(\d) (?=(%|ms|s|min|h)(?!\w))/g, "$1\u00a0");

export function percent(ratio, digits = 2) {
  if (ratio === null || ratio === undefined) return "–";
  const value = 100 * ratio;
  if (value !== 0 && value < 0.01) return "<\u00a00.01\u00a0%";
  // Never rounded up to a perfect score.
  if (ratio < 1 && value > 99.99) return ">\u00a099.99\u00a0%";
  return `${Number(value.toFixed(value < 1 ? 2 : digits))}\u00a0%`;
}

/** A share that is promised: rounded down, so that one that is short never looks kept. */
export const attained = (ratio) => percent(ratio > 0.9 && ratio < 0.9999 ? Math.floor(ratio * 1e4 + 1e-6) / 1e4 : ratio);

/** The marks of an axis, all with as many digits as their step has. */
export function marks(values, step) {
  let digits = 0;
  while (digits < 9 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6) digits += 1;
  return values.map((value) => value.toFixed(digits));
}

/** A probability read from draws: none of them missed, which does not say that none can. */
export const chance = (p) => (p === 0 ? "≈\u00a00\u00a0%" : percent(p));

const pad = (n) => String(n).padStart(2, "0");

export function clock(ts) {
  const d = new Date(ts);
  return `${pad(d.getUTCHours())}:${pad(d.getUTCMinutes())}:${pad(d.getUTCSeconds())}`;
}

export const day = (ts) => new Date(ts).toISOString().slice(0, 10);
export const instant = (ts) => `${day(ts)} ${clock(ts)} UTC`;

export function span(seconds) {
  if (seconds < 1) return `${Number((seconds * 1000).toFixed(0))}\u00a0ms`;
  if (seconds < 120) return `${Number(seconds.toFixed(seconds < 10 ? 1 : 0))}\u00a0s`;
  if (seconds < 7200) return `${Number((seconds / 60).toFixed(1))}\u00a0min`;
  return `${Number((seconds / 3600).toFixed(1))}\u00a0h`;
}

export const shorten = (value, limit) => (value.length > limit ? `${value.slice(0, limit - 1)}…` : value);

/** Address of a workload's view; an id too long for an address goes by its key. */
export const link = (row) => `#/w/${row.id.length > 200 ? `~${row.key}` : encodeURIComponent(row.id)}`;
