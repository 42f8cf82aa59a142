/** Figures as people read them. Each function returns a text; "–" if the value is not known. */

export const NONE = "–";
const isKnown = (value) => value !== null && value !== undefined && Number.isFinite(Number(value));
const digits = (value) => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2));

/** 1,234; from 100,000 on 3.12 M. The full number is the title of <Num>. */
export function count(value) {
  if (!isKnown(value)) return NONE;
  const size = Math.abs(value);
  if (size < 100_000) return grouped(value);
  for (const [unit, of] of [
    ["k", 1e3],
    ["M", 1e6],
    ["G", 1e9],
  ]) {
    if (size < of * 999.5 || unit === "G") return `${digits(value / of)} ${unit}`;
  }
}

/** All digits, in threes with commas. */
export const grouped = (value) =>
  isKnown(value) ? String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, ",") : NONE;

/** 61.2 MiB. */
export function bytes(value) {
  if (!isKnown(value)) return NONE;
  let size = Number(value);
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (Math.abs(size) < 1024 || unit === "TiB") return `${unit === "B" ? Math.round(size) : digits(size)} ${unit}`;
    size /= 1024;
  }
}

/** Events a second: 4,210/s, 3.98/s, 0/s. */
export function rate(value) {
  if (!isKnown(value)) return NONE;
  const n = Number(value);
  return `${n === 0 ? "0" : n >= 1000 ? count(n) : n < 0.01 ? "<0.01" : digits(n)}/s`;
}

/** How long, of seconds: 12 ms, 41 s, 2 h 14 m, 3 d 4 h. */
export function duration(seconds) {
  if (!isKnown(seconds)) return NONE;
  const s = Number(seconds);
  if (s < 1) return `${s === 0 ? 0 : s < 0.01 ? (s * 1000).toFixed(1) : Math.round(s * 1000)} ms`;
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  const [d, h, m] = [Math.floor(s / 86400), Math.floor(s / 3600) % 24, Math.floor(s / 60) % 60];
  return d ? `${d} d ${h} h` : h ? `${h} h ${m} m` : `${m} m ${Math.floor(s) % 60} s`;
}

const UNITS_S = { s: 1, m: 60, min: 60, h: 3600, d: 86_400, w: 604_800 };

/** The seconds of a time as the command line takes it: 90s, 1h30m, 7d. Throws an Error with what was expected. */
export function secondsOf(given) {
  const parts = [...given.matchAll(/\s*(\d+(?:\.\d+)?)\s*([a-z]+)/g)];
  const seconds = parts.reduce((sum, [, n, unit]) => sum + n * (UNITS_S[unit] ?? NaN), 0);
  if (!(seconds >= 1) || parts.map(([whole]) => whole).join("") !== given.trimEnd())
    throw new Error(`${given}: expected a time such as 90s, 1h30m or 7d, at least a second`);
  return Math.round(seconds);
}

/** Milliseconds. */
export const millis = (ms) => (isKnown(ms) ? duration(ms / 1000) : NONE);

/** 12:03:07, with the date if it is not today. time: Unix seconds, or a text that Date reads. */
export function clock(time) {
  const date = dateOf(time);
  if (date === null) return NONE;
  const hour = date.toLocaleTimeString("en-GB");
  return date.toDateString() === new Date().toDateString() ? hour : `${date.toLocaleDateString("sv-SE")} ${hour}`;
}

/** "3 m 2 s ago". */
export function ago(time) {
  const date = dateOf(time);
  return date === null ? NONE : `${duration(Math.max(0, Math.round((Date.now() - date) / 1000)))} ago`;
}

/** The Date of Unix seconds or of a text; null if there is none. */
export function dateOf(time) {
  if (time === null || time === undefined || time === "") return null;
  const date = new Date(typeof time === "number" ? time * 1000 : time);
  return Number.isNaN(date.getTime()) ? null : date;
}

/** Any value as a short text, for arguments and headers. */
export const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
