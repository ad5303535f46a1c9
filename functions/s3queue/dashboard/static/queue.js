// The page of a queue: its numbers, the last hour, its messages by state, its dead letters, workers, runs and settings.

import { get, queueUrl } from "./api.js";
import { flowChart } from "./charts.js";
import { h } from "./dom.js";
import { drains } from "./overview.js";
import { noRuns } from "./runs.js";
import { Search } from "./search.js";
import { Selection } from "./selection.js";
import { table } from "./tables.js";
import { Tail } from "./tail.js";
import { HEALTH, STATES, TABS, age, ago, clock, counted, plural } from "./words.js";

const SLOW_SECONDS = 30;
const TAIL_SECONDS = 2;
// Tab → the count that it shows; of the others, nobody knows one without reading them.
const COUNTS = {
  pending: "pending", delayed: "delayed", processing: "processing", waiting: "failed", completed: "completed", dead: "dead",
};

export class QueuePage {
  constructor(name, tab, { error = "", message = "" } = {}) {
    this.name = name;
    // The dead letters of one group only.
    this.group = tab === "dead" && error ? { error_type: error, message } : null;
    this.view = null;
    this.rows = null;
    this.cursor = null;
    this.pages = 1;
    this.flow = null;
    this.flowAt = 0;
    this.open(TABS[tab] ? tab : null);
  }

  open(tab) {
    this.tab = tab;
    this.search = new Search(this.name, tab);
    this.selection = new Selection(this.name, tab);
    this.tail = tab === "tail" ? new Tail(this.name) : null;
  }

  seconds() {
    return this.tail ? TAIL_SECONDS : 5;
  }

  async load(show) {
    // Whoever names no tab sees the one that matters, and stays there.
    if (!this.tab) {
      this.view ??= await get(queueUrl(this.name));
      this.open(matters(this.view));
    }
    const [view, rows] = await Promise.all([get(queueUrl(this.name)), this.list()]);
    Object.assign(this, { view, rows });
    this.selection.keep(rows);
    show();
    if (Date.now() - this.flowAt > SLOW_SECONDS * 1000) {
      this.flowAt = Date.now();
      this.flow = await get(queueUrl(this.name, "/flow"));
      show();
    }
  }

  forget() {
    this.flowAt = 0;
    this.search.found = null;
  }

  after(main) {
    this.selection.show(main);
  }

  // Every page of rows that the operator has opened is read again, so that rows that left the list disappear.
  async list() {
    if (this.tail) return this.tail.read();
    if (["workers", "runs", "schedules"].includes(this.tab)) return (await get(queueUrl(this.name, `/${this.tab}`)))[this.tab];
    if (this.tab === "settings") return [];
    const { search } = this;
    if (search.isDeep) {
      const rows = await search.read(this.pages);
      this.cursor = search.found.cursor;
      return rows;
    }
    const rows = [];
    let cursor = "";
    for (let page = 0; page < this.pages && cursor !== null; page += 1) {
      const answer = this.tab === "dead" || this.tab === "partitions"
        ? await get(queueUrl(this.name, `/${this.tab}`, { cursor, ...this.group }))
        : await get(queueUrl(this.name, "/messages", { state: this.tab, prefix: search.prefix, cursor,
          newest: this.tab === "completed" && !search.prefix ? 1 : null }));
      rows.push(...(answer.letters ?? answer.partitions ?? answer.messages));
      cursor = answer.next_cursor;
    }
    this.cursor = cursor;
    return rows;
  }

  render() {
    const { view } = this;
    if (!view || !this.tab) return [h("p", { class: "quiet" }, `Reading ${this.name}…`)];
    return [
      h("section", { class: "verdict slim", "data-health": view.health, "data-key": "head" },
        h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Overview")),
        h("div", { class: "head" },
          h("h1", {}, h("span", { class: "lamp", "aria-hidden": "true" }), view.name),
          this.breaker(),
          h("button", { type: "button", class: "button", "data-queue": view.name,
            "data-action": view.paused ? "resume" : "pause" }, view.paused ? "Resume" : "Pause")),
        h("p", { class: "reason" }, `${HEALTH[view.health]}: ${view.reason}`), this.facts()),
      h("section", { class: "card", "data-key": "flow", "aria-label": "The last hour" },
        this.flow ? flowChart(this.flow) : h("p", { class: "quiet" }, "Reading the last hour…"),
        this.flow?.unknown_entries > 0 && h("p", { class: "why" },
          `“in” counts ${plural(this.flow.unknown_entries, "message")} when they finished: the names do not show when they came.`)),
      h("section", { class: "card", "data-key": "list", "aria-label": "Messages" }, this.tabs(), this.grouped() ?? this.search.render(),
        this.selection.bar(this.rows), this.content()),
    ];
  }

  grouped() {
    if (!this.group || this.tab !== "dead") return null;
    const { error_type: error, message } = this.group;
    const button = (action, words) => h("button", { type: "button", class: "button small", "data-action": action,
      "data-queue": this.name, "data-error": error, "data-message": message || null }, words);
    return h("div", { class: "group", "data-key": "group" },
      h("p", {}, "Only ", h("b", {}, error), message && h("span", { class: "example" }, ` ${message}`)),
      h("p", { class: "act" }, button("replay-group", "Replay this group"), button("acknowledge-group", "Acknowledge"),
        button("delete-group", "Delete this group"),
        h("a", { href: `#/queue/${encodeURIComponent(this.name)}/dead` }, "Show all dead letters")));
  }

  // Only where there is one: a queue without a breaker has nothing to open.
  breaker() {
    const { breaker, name, settings } = this.view;
    const isClosed = breaker === "closed";
    if (isClosed && !settings?.breaker) return null;
    return h("button", { type: "button", class: "button", "data-queue": name,
      "data-action": isClosed ? "breaker-open" : "breaker-auto" }, isClosed ? "Open breaker" : "Close breaker");
  }

  facts() {
    const { stats } = this.view;
    if (!stats) return null;
    const facts = [["Oldest", age(stats.oldest_seconds)], ...Object.entries(COUNTS).map(([tab, name]) => [STATES[tab], counted(stats, name)]),
      ["Drains in", drains(this.view, this.flow)], ["Last sweep", ago(this.view.swept_at, stats.at)]];
    if (this.view.breaker !== "closed" || this.view.settings?.breaker) facts.push(["Breaker", this.view.breaker]);
    return h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
  }

  tabs() {
    // Most queues have no partitions, and need no place for them.
    const shown = Object.entries(TABS).filter(([tab]) => tab !== "partitions" || this.view.has_partitions || this.tab === tab);
    const { stats } = this.view;
    return h("nav", { class: "tabs", "aria-label": "Messages by state" }, shown.map(([tab, words]) =>
      h("a", { href: `#/queue/${encodeURIComponent(this.name)}/${tab}`, "aria-current": tab === this.tab ? "page" : null },
        words, stats && COUNTS[tab] && h("span", { class: stats[COUNTS[tab]] ? `count ${tab}` : "count none" },
          counted(stats, COUNTS[tab])))));
  }

  content() {
    const { tab, rows } = this;
    if (tab === "settings") return this.settings();
    if (!rows) return h("p", { class: "quiet" }, "Reading…");
    if (this.tail) return this.tail.render();
    if (!rows.length && tab === "runs") return noRuns(this.view.settings);
    if (!rows.length && this.hasOlder()) {
      return h("p", { class: "quiet" }, "None within the last hour. Older ones are found by the beginning of their path, such as messages/.");
    }
    if (!rows.length) return h("p", { class: "quiet" }, "None.", this.cursor && " There is more to read. ", this.more());
    return h("div", {}, table(tab, this.name, rows, this.selection), this.more());
  }

  hasOlder() {
    return this.tab === "completed" && !this.search.prefix && !this.search.isDeep && this.view.stats?.completed > 0;
  }

  settings() {
    const { settings, overrides, effective, published_settings: source } = this.view;
    const said = source ? `As the ${source.by} published them at ${clock(source.at)}.`
      : "No deployment or worker has published this queue's settings: what it does not say in queue.json is assumed to be the default.";
    const rows = effective ? effective.map(({ name, shown, origin }) => [name, shown, origin === "default" ? null : origin])
      : Object.entries(settings).map(([name, value]) => {
        const isChanged = name in overrides || name.replace(/_seconds$/, "") in overrides;
        return [name, value === null ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value),
          isChanged && "changed at run time"];
      });
    return h("div", {}, h("p", { class: "quiet" }, said),
      h("table", { class: "rows" }, h("tbody", {}, rows.map(([name, shown, origin]) => h("tr", { "data-key": name },
        h("th", { scope: "row" }, name), h("td", {}, shown, origin && h("span", { class: "tag" }, origin)))))));
  }

  more() {
    return this.cursor && h("button", { type: "button", class: "button small", "data-action": "more" },
      this.search.isDeep ? "Search on" : "More");
  }
}

// What an operator came for: messages that do not move, then those that failed, then those at work.
function matters({ health, stats }) {
  if (!stats) return "settings";
  const stands = ["stuck", "behind", "unswept", "paused"].includes(health);
  if (stands && stats.pending) return "pending";
  if (stats.dead - (stats.acknowledged ?? 0) > 0) return "dead";
  if (stats.failed) return "waiting";
  return ["pending", "processing", "delayed", "completed"].find((state) => stats[state]) ?? "pending";
}
