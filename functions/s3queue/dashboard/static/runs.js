// The Spark runs of a queue: state, counts, duration, messages and logs of each.

import { h, logs } from "./dom.js";
import { lifeLink } from "./overview.js";
import { age, bytes, clock, count, plural, seconds } from "./words.js";

export const RUN_TITLES = ["Run", "State", "Started", "Duration", "Messages", "Logs"];

export function runCells(queue, row) {
  return [named(row), state(row), row.started_at ? h("time", { datetime: row.started_at }, clock(row.started_at)) : "–",
    row.duration_seconds === null ? "–" : h("span", { class: "number" }, seconds(row.duration_seconds)),
    messages(queue, row), logs(row.logs) ?? h("span", { class: "quiet" }, row.kind === "slot" ? "–" : "in the runs' log group")];
}

function named(row) {
  return h("span", {}, row.kind === "slot" ? `Slot ${row.name.replace("slot-", "")}` : row.run || row.name,
    row.job && h("div", { class: "why" }, `EMR job ${row.job}`),
    row.kind === "slot" && row.run && h("div", { class: "why" }, `of ${row.run}`));
}

function state(row) {
  const tone = row.is_silent ? "waiting" : { closed: "completed", failed: "dead", cooling: "waiting" }[row.state] ?? "running";
  return h("span", {}, h("span", { class: "pill", "data-state": tone }, row.shown || row.state),
    row.is_silent && h("div", { class: "why" }, `no sign of life for ${age(row.age_seconds)}: the sweeper gives its messages back`),
    row.note && h("div", { class: "example" }, row.note));
}

function messages(queue, row) {
  if (row.kind === "slot") return h("span", { class: "quiet" }, `changed ${age(row.age_seconds)} ago`);
  if (row.kind === "other") {
    return h("details", {}, h("summary", {}, `${bytes(row.size)}, not a run`), h("pre", {}, JSON.stringify(row.document, null, 2)));
  }
  const done = Object.entries(row.counts);
  return h("span", {}, done.length ? done.map(([name, many]) => `${count(many)} ${name}`).join(", ") : "none finished",
    h("div", { class: "why" }, plural(row.rounds, "round"), row.claimed > 0 && `, holds ${count(row.claimed)}, ${count(row.begun)} begun`),
    row.paths.length > 0 && h("details", {}, h("summary", {}, "Messages it holds"), h("ul", { class: "paths" },
      row.paths.map((path) => h("li", {}, h("a", { href: lifeLink(queue, path) }, path))),
      row.claimed > row.paths.length && h("li", { class: "quiet" }, `and ${count(row.claimed - row.paths.length)} more`))));
}

export function noRuns(settings) {
  const isHeavy = settings?.engine === "spark" || settings?.heavy_above;
  return h("p", { class: "quiet" }, isHeavy
    ? "No run yet. The worker function starts one as soon as a heavy message comes; if messages wait and none comes, " +
      "look for slots that are cooling, and at the function's log."
    : "This queue uses no Spark. define(…, engine=\"spark\") sends its messages there, heavy_above=\"64 MiB\" the large ones.");
}
