// The first page: a verdict, the queues, the failures, what is stuck, sweeper and workers, the cost.

import { get, queueUrl } from "./api.js";
import { sparkline, flowWords } from "./charts.js";
import { h } from "./dom.js";
import { HEALTH, age, ago, clock, count, isExact, money, plural, rate } from "./words.js";

const SEVERITY = ["stuck", "unknown", "behind", "unswept", "failing", "paused", "healthy", "idle"];
// The chart of an hour changes slowly, and errors and leases cost a request each: both are read less often than counts.
const SLOW_SECONDS = 30;
const MOST_DETAILS = 12;

export class Overview {
  constructor() {
    this.data = null;
    this.filter = "";
    this.flows = new Map();
    this.errors = new Map();
    this.stuck = new Map();
    this.workers = new Map();
    this.read = new Map();
  }

  seconds() {
    return Math.max(5, 0.3 * (this.data?.queues.length ?? 0));
  }

  async load(show) {
    this.data = await get("/api/queues");
    show();
    const due = (name) => Date.now() - (this.read.get(name) ?? 0) > SLOW_SECONDS * 1000;
    const wanted = this.sorted().filter((queue) => queue.stats && queue.stats.total > 0 && due(queue.name));
    for (const queue of wanted.slice(0, MOST_DETAILS)) {
      this.read.set(queue.name, Date.now());
      await Promise.all([
        this.fill(this.flows, queue.name, "/flow"),
        this.fill(this.stuck, queue.name, "/stuck"),
        this.fill(this.workers, queue.name, "/workers"),
        queue.stats.dead ? this.fill(this.errors, queue.name, "/dead/errors") : this.errors.delete(queue.name),
      ]);
      show();
    }
  }

  async fill(map, name, rest) {
    try {
      map.set(name, await get(queueUrl(name, rest)));
    } catch (error) {
      // The verdict of a queue shows its error; the other queues are read all the same.
      if (error.status !== 404) map.delete(name);
    }
  }

  forget() {
    this.read.clear();
  }

  sorted() {
    return [...this.data.queues].sort((one, other) =>
      SEVERITY.indexOf(one.health) - SEVERITY.indexOf(other.health) || one.name.localeCompare(other.name));
  }

  render() {
    const { data } = this;
    if (!data) return [h("p", { class: "quiet" }, "Reading the bucket…")];
    if (!data.queues.length) return [this.verdict(), this.empty()];
    return [
      this.verdict(), this.queues(), this.failures(), this.stuckParts(),
      h("div", { class: "pair", "data-key": "pair" }, this.machinery(), this.cost()),
    ];
  }

  verdict() {
    const { verdict, totals } = this.data;
    const exact = (name) => this.data.queues.every(({ stats }) => !stats || isExact(stats, name));
    const parts = [["pending", "pending"], ["delayed", "delayed"], ["processing", "processing"],
      ["failed", "waiting for a retry"], ["completed", "completed"], ["dead", "dead"]];
    return h("section", { class: "verdict", "data-health": verdict.health, "data-key": "verdict" },
      h("h1", {}, h("span", { class: "lamp", "aria-hidden": "true" }), HEALTH[verdict.health]),
      h("p", { class: "reason" }, verdict.reason),
      h("ul", { class: "totals" }, parts.map(([name, words]) =>
        h("li", { class: totals[name] ? "" : "none" }, h("b", {}, count(totals[name], exact(name))), " ", words))));
  }

  empty() {
    return h("section", { class: "card welcome", "data-key": "empty" },
      h("h2", {}, "Nothing here yet"),
      h("p", {}, "A queue exists as soon as it has a message:"),
      h("pre", {}, "s3queue send orders 'hello'"),
      h("p", {}, "or, with the AWS command line only:"),
      h("pre", {}, `echo hello | aws s3 cp - ${this.data.bucket}/orders/messages/first`),
      h("p", { class: "quiet" }, "This page shows it within seconds."));
  }

  queues() {
    const all = this.sorted();
    const shown = all.filter((queue) => queue.name.includes(this.filter));
    return h("section", { class: "card", "data-key": "queues", "aria-labelledby": "queues-title" },
      h("div", { class: "head" },
        h("h2", { id: "queues-title" }, "Queues ", h("span", { class: "quiet" }, count(all.length))),
        all.length > 8 && h("input", { type: "search", class: "filter", placeholder: "Filter by name",
          "aria-label": "Filter the queues by name", "data-filter": "queues" }),
        h("span", { class: "legend" }, h("span", { class: "key in" }, "in"), h("span", { class: "key out" }, "out"),
          h("span", { class: "key died" }, "died"))),
      h("table", { class: "rows queues" },
        h("thead", {}, h("tr", {}, ["Queue", "Oldest", "Depth", "Last hour", "Per minute", "Drains in", ""].map((title) =>
          h("th", { scope: "col" }, title || h("span", { class: "hidden" }, "Actions"))))),
        h("tbody", {}, shown.map((queue) => this.row(queue)),
          !shown.length && h("tr", {}, h("td", { colspan: 7, class: "quiet" }, "No queue has a name like this.")))));
  }

  row(queue) {
    const { name, stats, published } = queue;
    const flow = this.flows.get(name);
    const depth = stats ? stats.pending + stats.failed : null;
    return h("tr", { "data-key": name },
      h("th", { scope: "row" },
        h("a", { href: `#/queue/${encodeURIComponent(name)}` }, name), " ",
        h("span", { class: "pill", "data-health": queue.health }, HEALTH[queue.health]),
        h("div", { class: "why" }, queue.reason)),
      h("td", { "data-label": "Oldest", class: stats?.oldest_seconds > 300 ? "number warn" : "number" },
        age(stats?.oldest_seconds)),
      h("td", { "data-label": "Depth", class: "number" }, stats ? count(depth, isExact(stats, "pending", "failed")) : "–",
        published && published.pending > depth && h("div", { class: "why" }, `${count(published.pending)} at the last sweep`)),
      h("td", { "data-label": "Last hour", class: "wide" }, sparkline(flow)),
      h("td", { "data-label": "Per minute", class: "number", title: flow ? flowWords(flow) : null },
        flow ? [rate(flow.entered_per_minute), " in", h("br"), rate(flow.finished_per_minute), " out"] : "–"),
      h("td", { "data-label": "Drains in", class: "number" }, drains(queue, flow)),
      h("td", { class: "act" }, h("button", { type: "button", class: "button small", "data-queue": name,
        "data-action": queue.paused ? "resume" : "pause", "aria-label": `${queue.paused ? "Resume" : "Pause"} ${name}` },
      queue.paused ? "Resume" : "Pause")));
  }

  failures() {
    const rows = [];
    let exact = true;
    for (const [queue, errors] of this.errors) {
      exact = exact && errors.exact;
      // What was acknowledged waits on the queue's own page.
      for (const group of errors.groups) if (group.count > group.acknowledged) rows.push({ queue, ...group });
    }
    const retries = this.data.totals.failed;
    const calm = retries ? `Nothing has died; ${plural(retries, "message")} ${retries === 1 ? "waits" : "wait"} for a retry.`
      : "Nothing has died.";
    rows.sort((one, other) => other.count - one.count);
    return h("section", { class: "card", "data-key": "failures", "aria-labelledby": "failures-title" },
      h("div", { class: "head" }, h("h2", { id: "failures-title" }, "Failures"),
        !exact && h("span", { class: "quiet" }, "of the first 1,000 dead letters of each queue")),
      rows.length ? h("ul", { class: "groups" }, rows.slice(0, 20).map((group) =>
        h("li", { "data-key": `${group.queue} ${group.error_type} ${group.message}` },
          h("div", { class: "many" }, count(group.count - group.acknowledged)),
          h("div", { class: "what" },
            h("div", {}, h("b", {}, group.error_type), " in ",
              h("a", { href: `#/queue/${encodeURIComponent(group.queue)}/dead` }, group.queue)),
            h("a", { class: "example", title: group.example, href: groupLink(group) }, group.message || "no text"),
            h("div", { class: "why" }, `last ${ago(group.newest_at, this.data.at)}, first ${ago(group.oldest_at, this.data.at)}`)),
          h("div", { class: "buttons" },
            h("button", { type: "button", class: "button small", "data-action": "replay-group", "data-queue": group.queue,
              "data-error": group.error_type, "data-message": group.message }, "Replay this group"),
            h("button", { type: "button", class: "button small", "data-action": "acknowledge-group", "data-queue": group.queue,
              "data-error": group.error_type, "data-message": group.message }, "Acknowledge")))))
        : h("p", { class: "quiet" }, this.isReading() ? "Reading the dead letters…"
          : this.data.totals.dead ? "All dead letters are acknowledged." : calm));
  }

  isReading() {
    return this.data.queues.some((queue) => queue.stats?.dead && !this.errors.has(queue.name));
  }

  stuckParts() {
    const items = this.sorted().filter((queue) => ["stuck", "unknown", "behind"].includes(queue.health)).map((queue) =>
      ["queue", h("a", { href: `#/queue/${encodeURIComponent(queue.name)}` }, queue.name), queue.reason]);
    for (const [queue, found] of this.stuck) {
      const link = h("a", { href: `#/queue/${encodeURIComponent(queue)}` }, queue);
      for (const lease of found.leases) {
        // A partition has no page of its own, and no attempt before a message of it has failed.
        const isPartition = lease.path.endsWith("/");
        const where = isPartition ? `#/queue/${encodeURIComponent(queue)}/partitions` : lifeLink(queue, lease.path);
        const who = `${lease.attempt ? `attempt ${lease.attempt} by ` : "held by "}${lease.owner || "an unknown worker"}`;
        items.push([isPartition ? "partition" : "lease", [h("a", { href: where }, lease.path), " in ", link.cloneNode(true)],
          `${lease.reason}; ${who}, ${age(lease.age_seconds)} ago`]);
      }
      for (const worker of found.silent_workers) {
        items.push(["worker", [worker.id, " of ", link.cloneNode(true)],
          `no heartbeat since ${clock(worker.seen_at)}, holds ${plural(worker.holds.length, "message")}`]);
      }
      for (const run of found.stale_runs) {
        items.push(["run", [run.name, " of ", link.cloneNode(true)], `no heartbeat for ${age(run.age_seconds)}`]);
      }
      if (found.oldest_dead_seconds > 86400) {
        items.push(["dead", ["Dead letters of ", link.cloneNode(true)],
          `the oldest has waited for a decision for ${age(found.oldest_dead_seconds)}`]);
      }
    }
    return h("section", { class: "card", "data-key": "stuck", "aria-labelledby": "stuck-title" },
      h("div", { class: "head" }, h("h2", { id: "stuck-title" }, "Stuck")),
      items.length ? h("ul", { class: "plain" }, items.slice(0, 30).map(([kind, what, why]) =>
        h("li", {}, h("span", { class: "tag" }, kind), h("div", {}, h("div", { class: "path" }, what), h("div", { class: "why" }, why)))))
        : h("p", { class: "quiet" }, "No message, lease, worker or run is stuck."));
  }

  machinery() {
    const { queues, at } = this.data;
    const swept = queues.filter((queue) => queue.swept_at).map((queue) => queue.swept_at).sort();
    const never = queues.filter((queue) => !queue.swept_at).map((queue) => queue.name);
    const workers = [...this.workers.values()].flatMap((found) => found.workers);
    const fresh = workers.filter((worker) => worker.is_fresh);
    const told = queues.filter((queue) => typeof queue.stats?.rescued === "number");
    const rescued = told.reduce((sum, queue) => sum + queue.stats.rescued, 0);
    const inCloudWatch = (name) => h("span", { class: "quiet" }, `see the CloudWatch metric s3queue/${name}`);
    return h("section", { class: "card", "data-key": "machinery", "aria-labelledby": "machinery-title" },
      h("h2", { id: "machinery-title" }, "Sweeper and workers"),
      h("dl", {},
        h("dt", {}, "Last sweep"), h("dd", {}, swept.length ? ago(swept[swept.length - 1], at) : "never",
          never.length > 0 && h("div", { class: "why" }, `never: ${never.slice(0, 5).join(", ")}${never.length > 5 ? " …" : ""}`)),
        h("dt", {}, "Pull workers"), h("dd", {}, workers.length
          ? `${count(fresh.length)} alive, ${count(workers.length - fresh.length)} without a heartbeat`
          : "none; Lambda functions have no heartbeat"),
        h("dt", {}, "Rescued by the sweeper"), h("dd", {}, told.length
          ? `${count(rescued)} in the hour before the last sweep` : "unknown: no sweeper has counted yet",
          rescued > 0 && h("div", { class: "why" }, "their events were lost, late or throttled")),
        h("dt", {}, "Claim conflicts"), h("dd", {}, inCloudWatch("ClaimConflicts")),
        h("dt", {}, "Throttles"), h("dd", {}, h("span", { class: "quiet" }, "see the CloudWatch metric AWS/Lambda Throttles"))));
  }

  cost() {
    const { cost } = this.data;
    return h("section", { class: "card", "data-key": "cost", "aria-labelledby": "cost-title" },
      h("h2", { id: "cost-title" }, "Cost so far"),
      h("p", { class: "big" }, money(cost.dollars)),
      h("p", { class: "quiet" }, "at least: the S3 requests of the messages that are still on record"),
      h("details", {}, h("summary", {}, "How this is computed"), h("p", {}, cost.formula)));
  }
}

export function drains(queue, flow) {
  if (!queue.stats) return "–";
  if (!queue.stats.pending) return "empty";
  if (queue.paused) return "paused";
  if (!flow) return "–";
  return flow.drain_seconds === null ? "not draining" : age(flow.drain_seconds);
}

// The dead letters of one group; without a text, those of its error.
function groupLink({ queue, error_type: error, message }) {
  return `#/queue/${encodeURIComponent(queue)}/dead/${encodeURIComponent(error)}/${encodeURIComponent(message)}`;
}

export function lifeLink(queue, path) {
  return `#/queue/${encodeURIComponent(queue)}/message/${encodeURIComponent(path)}`;
}
