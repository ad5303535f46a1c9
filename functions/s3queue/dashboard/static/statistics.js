// How each queue did, hour by hour: what Spark computed from the records, and the last hour as the sweeper counted it.

import { ApiError, get } from "./api.js";
import { h } from "./dom.js";
import { lastHour } from "./last_hour.js";
import { draw, figure } from "./plot.js";
import { chartsOf, costOf, hoursOf, sumOf } from "./statistics_figures.js";
import { age, clock, count, money, percent, seconds } from "./words.js";

const RANGES = { "6h": 6, "24h": 24, "3d": 72, "7d": 168 };
const HOUR = 3600;
// The job runs every hour; after three nobody should trust the page without being told.
const OLD_SECONDS = 3 * HOUR;

export class StatisticsPage {
  constructor(range, queue) {
    this.range = RANGES[range] ? range : "24h";
    this.queue = queue || "";
    this.found = null;
    this.recent = null;
  }

  seconds() {
    return 60;
  }

  async load(show) {
    [this.found, this.recent] = await Promise.all([get("/api/statistics"), this.hour()]);
    show();
  }

  async hour() {
    try {
      return await get("/api/last-hour");
    } catch (error) {
      // A deployed API of an older version has no such figures.
      if (error instanceof ApiError && error.status === 404) return null;
      throw error;
    }
  }

  forget() {}

  after(main) {
    if (this.specs) draw(main, this.specs);
  }

  render() {
    const { found } = this;
    this.specs = null;
    if (!found) return [h("p", { class: "quiet" }, "Reading the statistics…")];
    const queues = isObject(found.document?.queues) ? found.document.queues : null;
    const names = queues ? Object.keys(queues).filter((name) => isObject(queues[name])).sort() : [];
    const chosen = names.includes(this.queue) ? [this.queue] : names;
    const rest = [];
    if (queues && names.length) rest.push(...this.figures(queues, names, chosen));
    else if (found.available) rest.push(unreadable(found));
    return [this.head(names), lastHour(this.recent, this.queue), ...rest, !found.available && notYet()].filter(Boolean);
  }

  head(names) {
    const { found, queue } = this;
    const computed = found.document?.computed_at ?? found.modified_at;
    const old = computed ? (Date.now() - Date.parse(computed)) / 1000 : 0;
    const isOld = found.available && old > OLD_SECONDS;
    return h("section", { class: "verdict slim", "data-key": "head", "data-health": isOld ? "unswept" : "" },
      h("h1", {}, "Statistics", queue && names.includes(queue) && h("span", { class: "quiet" }, ` of ${queue}`)),
      h("p", { class: "reason" }, found.available ? ["Computed ", clock(computed), `, ${age(old)} ago`]
        : "The job that computes them has not run yet."),
      isOld && h("p", { class: "why" }, `It runs every hour, and has not for ${age(old)}: look at the alarms RunFailed and `,
        "PipelineNotStarted, and at the log of its last run on EMR Serverless."));
  }

  figures(queues, names, chosen) {
    const { document } = this.found;
    const end = Math.floor(Date.parse(document.computed_at) / 1000 / HOUR) * HOUR || Math.floor(Date.now() / 3600000) * HOUR;
    const times = Array.from({ length: RANGES[this.range] }, (_, index) => end - (RANGES[this.range] - 1 - index) * HOUR);
    const hours = new Map(chosen.map((name) => [name, hoursOf(queues[name], times)]));
    this.specs = chartsOf(hours, times, this.found.prices);
    const whole = sumOf([...hours.values()].flat());
    return [
      h("section", { class: "card", "data-key": "summary", "aria-label": "Sums" }, this.pickers(names),
        h("dl", { class: "facts tiles" }, this.tiles(whole, hours).map(([name, value, why]) =>
          h("div", {}, h("dt", {}, name), h("dd", {}, value), why && h("dd", { class: "why" }, why))))),
      h("section", { class: "card plots", "data-key": "plots", "aria-label": "Charts" }, this.specs.map(figure)),
      chosen.length > 1 && this.perQueue(hours),
      this.errors(chosen.map((name) => [name, queues[name]])),
      this.workers(chosen.map((name) => [name, queues[name]])),
    ].filter(Boolean);
  }

  pickers(names) {
    const link = (range, queue, words) => h("a", { href: `#/statistics/${range}${queue ? `/${encodeURIComponent(queue)}` : ""}`,
      "aria-current": range === this.range && queue === this.queue ? "page" : null }, words);
    return h("div", { class: "pickers" },
      h("nav", { class: "tabs", "aria-label": "Time range" },
        Object.entries({ "6h": "6 hours", "24h": "24 hours", "3d": "3 days", "7d": "7 days" }).map(([range, words]) =>
          link(range, this.queue, words))),
      names.length > 1 && h("nav", { class: "tabs", "aria-label": "Queue" }, link(this.range, "", "All queues"),
        names.map((name) => link(this.range, name, name))));
  }

  tiles(whole, hours) {
    const worst = (name) => Math.max(-1, ...[...hours.values()].flat().map((hour) => hour[name] ?? -1));
    const shown = (found) => (found < 0 ? "–" : seconds(found));
    return [
      ["Messages", count(whole.messages), `${count(whole.completed)} completed`],
      ["Success", whole.rate === null ? "–" : percent(whole.rate), `${count(whole.dead)} died`],
      ["Wait, 95 %", shown(worst("wait_p95_seconds")), "in the slowest hour"],
      ["Run, 95 %", shown(worst("run_p95_seconds")), "in the slowest hour"],
      ["Retried", count(whole.retried), "objects that needed more than one attempt"],
      ["Cost", money(costOf(whole, this.found.prices)), "S3 requests, at least"],
    ];
  }

  perQueue(hours) {
    const rows = [...hours].map(([name, found]) => ({ name, ...sumOf(found), worst: Math.max(-1, ...found.map((hour) => hour.wait_p95_seconds ?? -1)) }))
      .sort((one, other) => other.messages - one.messages);
    const cells = ["Messages", "Success", "Dead", "Retried", "Wait, 95 %", "Cost"];
    return h("section", { class: "card", "data-key": "queues", "aria-labelledby": "per-queue" },
      h("h2", { id: "per-queue" }, "Per queue"),
      table(["Queue", ...cells], rows.map((row) => [row.name, [
        h("a", { href: `#/statistics/${this.range}/${encodeURIComponent(row.name)}` }, row.name),
        count(row.messages), row.rate === null ? "–" : percent(row.rate), count(row.dead), count(row.retried),
        row.worst < 0 ? "–" : seconds(row.worst), money(costOf(row, this.found.prices))]])));
  }

  errors(chosen) {
    const rows = chosen.flatMap(([name, found]) => (Array.isArray(found.errors) ? found.errors : []).filter(isObject)
      .map((error) => ({ name, ...error }))).sort((one, other) => (other.dead ?? 0) - (one.dead ?? 0)
      || (other.failed_attempts ?? 0) - (one.failed_attempts ?? 0)).slice(0, 20);
    return h("section", { class: "card", "data-key": "errors", "aria-labelledby": "errors-title" },
      h("h2", { id: "errors-title" }, "Errors ", h("span", { class: "quiet" }, "of all days that were computed")),
      rows.length ? table(["Error", "Queue", "Dead", "Failed attempts"], rows.map((row) => [`${row.name} ${row.error_type}`,
        [h("b", {}, String(row.error_type)), h("a", { href: `#/queue/${encodeURIComponent(row.name)}/dead` }, row.name),
          number(row.dead), number(row.failed_attempts)]])) : h("p", { class: "quiet" }, "Nothing has failed."));
  }

  workers(chosen) {
    const rows = chosen.flatMap(([name, found]) => (Array.isArray(found.busiest_workers) ? found.busiest_workers : [])
      .filter(isObject).map((worker) => ({ name, ...worker })))
      .sort((one, other) => (other.messages ?? 0) - (one.messages ?? 0)).slice(0, 10);
    if (!rows.length) return null;
    return h("section", { class: "card", "data-key": "workers", "aria-labelledby": "busiest" },
      h("h2", { id: "busiest" }, "Busiest workers"),
      table(["Worker", "Queue", "Messages"], rows.map((row) => [`${row.name} ${row.worker}`,
        [h("span", { class: "path" }, String(row.worker)), row.name, number(row.messages)]])));
  }
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const number = (value) => (typeof value === "number" ? count(Math.round(value)) : "–");

function table(titles, rows) {
  return h("table", { class: "rows" },
    h("thead", {}, h("tr", {}, titles.map((title) => h("th", { scope: "col" }, title)))),
    h("tbody", {}, rows.map(([key, cells]) => h("tr", { "data-key": key }, cells.map((cell, index) => (index
      ? h("td", { "data-label": titles[index] }, cell) : h("th", { scope: "row" }, cell)))))));
}

function unreadable(found) {
  return h("section", { class: "card", "data-key": "unreadable" }, h("h2", {}, "analytics/latest.json is not a statistics document"),
    h("p", {}, "Run the statistics job again: it replaces the file."),
    h("details", {}, h("summary", {}, "What it holds"), h("pre", {}, JSON.stringify(found.document, null, 2).slice(0, 4000))));
}

function notYet() {
  return h("section", { class: "card welcome", "data-key": "not-yet" },
    h("h2", {}, "Let the job run every hour"),
    h("p", {}, "A Spark job computes throughput, success, waiting and running times, errors, workers and cost of every hour. " +
      "It is part of the stack, and off until you ask for it:"),
    h("pre", {}, "cdk deploy -c schedule_pipeline=true"),
    h("p", {}, "Or run it once, where Spark is installed:"),
    h("pre", {}, "spark-submit spark/statistics.py --bucket my-bucket"),
    h("p", { class: "quiet" }, "Until then, the page of each queue shows its last hour, and the overview all of them."));
}
