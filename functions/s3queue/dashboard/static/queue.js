// The page of a queue: its numbers, the last hour, its messages by state, its dead letters, workers, runs and settings.

import { get, queueUrl } from "./api.js";
import { flowChart } from "./charts.js";
import { h } from "./dom.js";
import { drains, lifeLink } from "./overview.js";
import { RUN_TITLES, noRuns, runCells } from "./runs.js";
import { HEALTH, PARTITION_STATES, STATES, age, ago, bytes, clock, count, plural } from "./words.js";

const SLOW_SECONDS = 30;

export class QueuePage {
  constructor(name, tab) {
    this.name = name;
    this.tab = STATES[tab] ? tab : "pending";
    this.prefix = "";
    this.rows = null;
    this.cursor = null;
    this.pages = 1;
    this.flow = null;
    this.flowAt = 0;
  }

  seconds() {
    return 5;
  }

  async load(show) {
    const [view, rows] = await Promise.all([get(queueUrl(this.name)), this.list()]);
    Object.assign(this, { view, rows });
    show();
    if (Date.now() - this.flowAt > SLOW_SECONDS * 1000) {
      this.flowAt = Date.now();
      this.flow = await get(queueUrl(this.name, "/flow"));
      show();
    }
  }

  forget() {
    this.flowAt = 0;
  }

  // Every page of rows that the operator has opened is read again, so that rows that left the list disappear.
  async list() {
    if (["workers", "runs", "schedules"].includes(this.tab)) return (await get(queueUrl(this.name, `/${this.tab}`)))[this.tab];
    if (this.tab === "settings") return [];
    const rows = [];
    let cursor = "";
    for (let page = 0; page < this.pages && cursor !== null; page += 1) {
      const answer = this.tab === "dead" || this.tab === "partitions"
        ? await get(queueUrl(this.name, `/${this.tab}`, { cursor }))
        : await get(queueUrl(this.name, "/messages", { state: this.tab, prefix: this.prefix, cursor,
          newest: this.tab === "completed" && !this.prefix ? 1 : null }));
      rows.push(...(answer.letters ?? answer.partitions ?? answer.messages));
      cursor = answer.next_cursor;
    }
    this.cursor = cursor;
    return rows;
  }

  render() {
    const { view } = this;
    if (!view) return [h("p", { class: "quiet" }, `Reading ${this.name}…`)];
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
          `“in” does not count ${plural(this.flow.unknown_entries, "finished message")}: the names do not show when they came.`)),
      h("section", { class: "card", "data-key": "list", "aria-label": "Messages" }, this.tabs(), this.search(), this.table()),
    ];
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
    const facts = [["Oldest", age(stats.oldest_seconds)], ["Pending", count(stats.pending, stats.exact)],
      ["Delayed", count(stats.delayed)], ["Processing", count(stats.processing)], ["Waiting for a retry", count(stats.failed)],
      ["Completed", count(stats.completed, stats.exact)], ["Dead", count(stats.dead, stats.exact)],
      ["Drains in", drains(this.view, this.flow)], ["Last sweep", ago(this.view.swept_at, stats.at)]];
    if (this.view.breaker !== "closed" || this.view.settings?.breaker) facts.push(["Breaker", this.view.breaker]);
    return h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
  }

  tabs() {
    // Most queues have no partitions, and need no place for them.
    const shown = Object.entries(STATES).filter(([state]) => state !== "partitions" || this.view.has_partitions || this.tab === state);
    return h("nav", { class: "tabs", "aria-label": "Messages by state" }, shown.map(([state, words]) =>
      h("a", { href: `#/queue/${encodeURIComponent(this.name)}/${state}`, "aria-current": state === this.tab ? "page" : null },
        words)));
  }

  search() {
    if (["partitions", "workers", "runs", "schedules", "settings", "dead"].includes(this.tab)) return null;
    return h("form", { class: "search", role: "search", "data-form": "search" },
      h("input", { type: "search", name: "prefix", placeholder: "messages/…  the beginning of the path",
        "aria-label": "The beginning of the path" }),
      h("button", { type: "submit", class: "button small" }, "Search"),
      h("span", { class: "quiet" }, this.prefix ? `Paths that start with ${this.prefix}`
        : this.tab === "completed" ? "Finished within the last hour, newest first" : "In the order of their paths"));
  }

  table() {
    const { tab, rows } = this;
    if (tab === "settings") return this.settings();
    if (!rows) return h("p", { class: "quiet" }, "Reading…");
    if (!rows.length && tab === "runs") return noRuns(this.view.settings);
    if (!rows.length) return h("p", { class: "quiet" }, "None.", this.cursor && " There is more to read.", this.more());
    const [titles, cells] = {
      workers: [["Worker", "Alive", "Holds", "Done"], (row) => [row.id, row.is_fresh ? "yes" : `no heartbeat since ${clock(row.seen_at)}`,
        count(row.holds.length), Object.entries(row.stats).map(([name, value]) => `${name} ${value}`).join(", ")]],
      partitions: [["Partition", "Messages", "Oldest", "State", "Waiting retries"], (row) => [row.group ?? `share ${row.partition.slice(2)}`,
        count(row.messages, row.exact), row.first_at ? clock(row.first_at) : "–", this.held(row),
        row.waiting ? h("span", {}, `${count(row.waiting)}${row.next_at ? `, next try ${clock(row.next_at)}` : ""}`,
          row.failure && h("div", { class: "example" }, `${row.failure.type}: ${row.failure.message}`),
          row.next_path && h("div", {}, this.link(row.next_path))) : "–"]],
      runs: [RUN_TITLES, (row) => runCells(this.name, row)],
      schedules: [["Schedule", "Cron", "Next five times", "If missed", ""], (row) => [row.name,
        h("span", {}, h("code", {}, row.cron), h("div", { class: "example" }, row.tz)), row.paused ? "paused"
          : row.problem || h("ol", { class: "times" }, row.next_at.map((at) => h("li", {}, clock(at)))), row.missed,
        h("span", { class: "act" }, this.schedule(row.paused ? "resume-schedule" : "pause-schedule", row))]],
      dead: [["Path", "Error", "Died", "Attempts", ""], (row) => [this.link(row.path),
        h("span", {}, h("b", {}, row.error_type), h("div", { class: "example" }, row.error)), clock(row.died_at), row.attempts,
        h("span", { class: "act" }, this.button("replay-one", "Replay", row.path), this.button("delete-one", "Delete", row.path))]],
    }[tab] ?? [["Path", "Since", "Priority", "Size", ""], (row) => [this.link(row.path), clock(row.since), row.priority,
      bytes(row.size), [row.attempt ? `attempt ${row.attempt} ` : "", row.due_at ? `due ${clock(row.due_at)} ` : "",
        row.error && h("div", { class: "example" }, row.error)]]];
    return h("div", {},
      h("table", { class: "rows" },
        h("thead", {}, h("tr", {}, titles.map((title) => h("th", { scope: "col" }, title || h("span", { class: "hidden" }, "More"))))),
        h("tbody", {}, rows.map((row) => h("tr", { "data-key": row.path ?? row.id ?? row.partition ?? row.name },
          cells(row).map((cell, index) => h("td", { "data-label": titles[index], class: index ? null : "path" }, cell)))))),
      this.more());
  }

  held(row) {
    const words = {
      held: `${row.worker}, until ${clock(row.until)}, ${count(row.taken)} taken`,
      overdue: `${row.worker} has not renewed it since ${clock(row.written_at)}`,
      corrupt: row.problem,
    }[row.state];
    return h("span", {}, h("b", {}, PARTITION_STATES[row.state]), words && h("div", { class: "example" }, words));
  }

  settings() {
    const { settings, overrides } = this.view;
    return h("table", { class: "rows" }, h("tbody", {}, Object.entries(settings).map(([name, value]) => {
      const isChanged = name in overrides || name.replace(/_seconds$/, "") in overrides;
      return h("tr", {}, h("th", { scope: "row" }, name),
        h("td", {}, value === null ? "–" : String(value), isChanged && h("span", { class: "tag" }, "changed at run time")));
    })));
  }

  more() {
    return this.cursor && h("button", { type: "button", class: "button small", "data-action": "more" }, "More");
  }

  link(path) {
    return h("a", { href: lifeLink(this.name, path) }, path);
  }

  schedule(action, { name }) {
    const words = action === "pause-schedule" ? "Pause" : "Resume";
    return h("button", { type: "button", class: "button small", "data-action": action, "data-queue": this.name,
      "data-name": name, "aria-label": `${words} ${name}` }, words);
  }

  button(action, words, path) {
    return h("button", { type: "button", class: "button small", "data-action": action, "data-queue": this.name,
      "data-path": path, "aria-label": `${words} ${path}` }, words);
  }
}
