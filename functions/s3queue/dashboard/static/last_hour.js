// The last hour, which the sweeper counted while it looked after the queues: no Spark is needed for it.

import { h } from "./dom.js";
import { ago, clock, count, percent, seconds } from "./words.js";

const about = (value) => (typeof value === "number" ? count(Math.round(value)) : "–");
const time = (value) => (typeof value === "number" ? seconds(value) : "–");

export function lastHour(found, chosen) {
  const rows = (found?.queues ?? []).filter((row) => !chosen || row.queue === chosen);
  if (!rows.length) return null;
  const titles = ["Queue", "Messages", "Success", "Wait 50 / 95 / 99 %", "Run 50 / 95 / 99 %", "Retried", "Counted"];
  const sampled = rows.filter((row) => row.sampled);
  return h("section", { class: "card", "data-key": "last-hour", "aria-labelledby": "last-hour-title" },
    h("div", { class: "head" }, h("h2", { id: "last-hour-title" }, "The last hour"),
      h("span", { class: "quiet" }, "as the sweeper counted it")),
    h("table", { class: "rows" },
      h("thead", {}, h("tr", {}, titles.map((title) => h("th", { scope: "col" }, title)))),
      h("tbody", {}, rows.map((row) => h("tr", { "data-key": row.queue },
        h("th", { scope: "row" }, h("a", { href: `#/queue/${encodeURIComponent(row.queue)}` }, row.queue)),
        row.available ? cells(row).map((cell, index) => h("td", { "data-label": titles[index + 1] }, cell))
          : h("td", { colspan: 6, class: "quiet" }, row.reason || "No sweeper has counted yet."))))),
    sampled.length > 0 && h("p", { class: "why" }, `Of ${sampled.map((row) => row.queue).join(", ")}, a part of the records was ` +
      `read (${sampled.map((row) => count(row.read)).join(", ")}): a 95 % value may really be anything between the ` +
      `${rank(sampled, -1)} % and the ${rank(sampled, 1)} % value.`));
}

const rank = (rows, sign) => Math.min(100, Math.round((0.95 + sign * Math.max(...rows.map((row) => row.rank_error ?? 0))) * 100));

function cells(row) {
  return [
    [row.complete ? "" : "≥ ", about(row.messages), row.dead > 0 && h("div", { class: "why" }, `${about(row.dead)} died`)],
    row.success_rate === null ? "–" : percent(row.success_rate),
    `${time(row.wait_p50_seconds)} / ${time(row.wait_p95_seconds)} / ${time(row.wait_p99_seconds)}`,
    `${time(row.run_p50_seconds)} / ${time(row.run_p95_seconds)} / ${time(row.run_p99_seconds)}`,
    about(row.retried),
    row.counted_at ? h("time", { datetime: row.counted_at, title: clock(row.counted_at) }, ago(row.counted_at, new Date().toISOString())) : "never",
  ];
}
