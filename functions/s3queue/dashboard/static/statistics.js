// What Spark computed from the archive. The columns are not known here: every list of rows with a time is drawn as a
// chart, and everything else is shown as a table.

import { get } from "./api.js";
import { barChart } from "./charts.js";
import { h } from "./dom.js";
import { clock } from "./words.js";

const TIMES = ["at", "hour", "day", "date", "minute", "time"];

export class StatisticsPage {
  constructor() {
    this.found = null;
  }

  seconds() {
    return 60;
  }

  async load(show) {
    this.found = await get("/api/statistics");
    show();
  }

  forget() {}

  render() {
    const { found } = this;
    if (!found) return [h("p", { class: "quiet" }, "Reading the statistics…")];
    const head = h("section", { class: "verdict slim", "data-key": "head" }, h("h1", {}, "Statistics"),
      h("p", { class: "reason" }, found.available ? `Computed ${clock(found.modified_at)}`
        : "No statistics yet: the Spark job that computes them has not run."));
    return [head, ...(found.available ? charts("", found.document) : [])];
  }
}

function charts(title, part) {
  if (Array.isArray(part)) return table(title, part.filter((row) => row && typeof row === "object"));
  if (!part || typeof part !== "object") return [];
  const plain = Object.entries(part).filter(([, value]) => value === null || typeof value !== "object");
  const nested = Object.entries(part).filter(([, value]) => value && typeof value === "object");
  return [
    plain.length > 0 && h("section", { class: "card" }, title && h("h2", {}, title), h("dl", { class: "facts" },
      plain.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value === null ? "–" : String(value)))))),
    ...nested.flatMap(([name, value]) => charts(title ? `${title} / ${name}` : name, value)),
  ].filter(Boolean);
}

function table(title, rows) {
  if (!rows.length) return [];
  const names = Object.keys(rows[0]);
  const time = names.find((name) => TIMES.includes(name));
  const numbers = names.filter((name) => name !== time && rows.every((row) => typeof row[name] === "number"));
  if (time && numbers.length && rows.length > 1) {
    const labels = rows.map((row) => String(row[time]));
    return [h("section", { class: "card" }, h("h2", {}, title),
      numbers.map((name) => barChart(name, labels, rows.map((row) => row[name]))))];
  }
  return [h("section", { class: "card" }, h("h2", {}, title), h("table", { class: "rows" },
    h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows.slice(0, 200).map((row) => h("tr", {}, names.map((name) =>
      h("td", { "data-label": name }, row[name] === null ? "–" : String(row[name]))))))))];
}
