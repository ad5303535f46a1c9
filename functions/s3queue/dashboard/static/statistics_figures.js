// Numbers of the statistics: rows of one hour each, put together for charts and sums. Nothing here touches the page.

import { count, money, percent, seconds } from "./words.js";

const HOUR = 3600;
const SUMMED = ["messages", "objects", "completed", "dead", "attempts", "retried", "workers"];
const TONES = ["accent", "good", "warn", "bad", "violet", "soft"];
const MOST_LINES = TONES.length;
// Between the numbers of an axis that tells times: whole seconds, minutes, hours or days.
const STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200,
  21600, 43200, 86400, 604800];

// One row for each of the times, in seconds; an hour in which nothing finished has zeros, and no percentile.
export function hoursOf(queue, times) {
  const rows = new Map();
  for (const row of Array.isArray(queue.hours) ? queue.hours : []) {
    const at = Date.parse(row?.hour) / 1000;
    if (Number.isFinite(at)) rows.set(Math.floor(at / HOUR) * HOUR, row);
  }
  return times.map((time) => {
    const row = rows.get(time) ?? {};
    const known = Object.fromEntries(SUMMED.map((name) => [name, whole(row[name])]));
    for (const what of ["wait", "run"]) {
      for (const part of ["p50", "p95", "p99"]) {
        const value = row[`${what}_${part}_seconds`];
        known[`${what}_${part}_seconds`] = typeof value === "number" && value >= 0 ? value : null;
      }
    }
    return known;
  });
}

const whole = (value) => (typeof value === "number" && Number.isFinite(value) && value > 0 ? value : 0);

export function sumOf(rows) {
  const sums = Object.fromEntries(SUMMED.map((name) => [name, rows.reduce((sum, row) => sum + row[name], 0)]));
  const ended = sums.completed + sums.dead;
  return { ...sums, rate: ended ? sums.completed / ended : null };
}

// Each object is written, claimed and recorded, and read once; every further attempt is noted and claimed again.
export function costOf({ objects, attempts }, prices) {
  if (!prices) return null;
  const again = Math.max(0, attempts - objects);
  return ((3 * objects + 2 * again) * prices.put + (objects + again) * prices.get) / 1e6;
}

export function chartsOf(hours, times, prices) {
  const all = times.map((_, index) => sumOf([...hours.values()].map((rows) => rows[index])));
  const lines = hours.size === 1 ? ofOne : ofMany;
  return [
    { key: "throughput", title: "Messages per hour", times, format: (value) => count(round(value)),
      series: [{ name: "Dead", tone: "bad", bars: true, values: all.map((hour) => hour.dead) },
        { name: "Completed", tone: "good", bars: true, values: all.map((hour) => hour.completed) }] },
    { key: "success", title: "Success rate", note: "completed, of all that ended", times, format: percent, most: 1,
      series: [{ name: "Success", tone: "good", values: all.map((hour) => hour.rate) }] },
    { key: "wait", title: "Waiting", note: "until the first attempt starts", times, format: seconds, steps: STEPS, series: lines(hours, "wait") },
    { key: "run", title: "Running", note: "of the attempt that decided", times, format: seconds, steps: STEPS, series: lines(hours, "run") },
    { key: "trouble", title: "Retried and dead per hour", times, format: (value) => count(round(value)),
      series: [{ name: "Retried", tone: "warn", values: all.map((hour) => hour.retried) },
        { name: "Dead", tone: "bad", values: all.map((hour) => hour.dead) }] },
    { key: "workers", title: "Workers per hour", note: "execution environments count as one each", times, format: (value) => count(round(value)),
      series: [{ name: "Workers", tone: "accent", bars: true, values: all.map((hour) => hour.workers) }] },
    prices && { key: "cost", title: "Cost per hour", note: "S3 requests, at least", times, format: money,
      series: [{ name: "Cost", tone: "violet", bars: true, values: all.map((hour) => costOf(hour, prices)) }] },
  ].filter(Boolean);
}

const round = (value) => (Number.isInteger(value) ? value : Math.round(value * 10) / 10);

function ofOne(hours, what) {
  const [rows] = hours.values();
  return [["p50", "50 %", "good"], ["p95", "95 %", "accent"], ["p99", "99 %", "warn"]].map(([part, name, tone]) =>
    ({ name, tone, values: rows.map((hour) => hour[`${what}_${part}_seconds`]) }));
}

// Percentiles of several queues cannot be put together: each of the busiest has a line of its own.
function ofMany(hours, what) {
  const busiest = [...hours].sort(([, one], [, other]) => sumOf(other).messages - sumOf(one).messages).slice(0, MOST_LINES);
  return busiest.map(([name, rows], index) =>
    ({ name: `${name}, 95 %`, tone: TONES[index], values: rows.map((hour) => hour[`${what}_p95_seconds`]) }));
}
