// The columns of each list of a queue's page.

import { h } from "./dom.js";
import { lifeLink } from "./overview.js";
import { RUN_TITLES, runCells } from "./runs.js";
import { PARTITION_STATES, bytes, clock, count, diedLines, plural } from "./words.js";

export function time(instant) {
  return instant ? h("time", { datetime: instant }, clock(instant)) : "–";
}

const button = (action, words, queue, path, more = {}) => h("button", { type: "button", class: "button small",
  "data-action": action, "data-queue": queue, "data-path": path, "aria-label": `${words} ${path}`, ...more }, words);

function link(queue, row) {
  return [h("a", { href: lifeLink(queue, row.path) }, row.path),
    row.dead_lines > 0 ? h("span", { class: "tag bad" }, diedLines(row.dead_lines, row.lines))
      : row.lines > 0 && h("span", { class: "tag" }, plural(row.lines, "line"))];
}

function failure(type, text) {
  return h("span", {}, h("b", {}, type), h("div", { class: "example" }, text));
}

// "TypeError: no" → its name and its text; other texts have no name.
function split(error) {
  const found = /^([^\s:]{1,100}): ([\s\S]*)$/.exec(error ?? "");
  return found ? failure(found[1], found[2]) : error ? h("div", { class: "example" }, error) : "–";
}

function held(row) {
  const words = {
    held: `${row.worker}, until ${clock(row.until)}, ${count(row.taken)} taken`,
    overdue: `${row.worker} has not renewed it since ${clock(row.written_at)}`,
    corrupt: row.problem,
  }[row.state];
  return h("span", {}, h("b", {}, PARTITION_STATES[row.state]), words && h("div", { class: "example" }, words));
}

// What a worker's heartbeat counts, in the words of the states; zeros say nothing.
const DONE = { succeeded: "completed", retried: "retried", dead: "dead", released: "released", lost: "lost" };

function done(stats) {
  return Object.entries(DONE).filter(([name]) => stats[name] > 0).map(([name, words]) => `${count(stats[name])} ${words}`).join(", ")
    || "nothing yet";
}

const nothing = h("span", { class: "hidden" }, "Actions");
const priority = (row) => (row.priority ? h("span", { class: "tag" }, `priority ${row.priority}`) : null);

// Tab → titles, and the cells of a row; the first cell names it.
export const TABLES = {
  pending: [["Path", "Enqueued", "Size"], (queue, row) => [[link(queue, row), priority(row)], time(row.since), bytes(row.size)]],
  delayed: [["Path", "Enqueued", "Due", "Size"], (queue, row) => [[link(queue, row), priority(row)], time(row.since), time(row.due_at),
    bytes(row.size)]],
  processing: [["Path", "Claimed", "Attempt", "Worker", ""], (queue, row) => [link(queue, row), time(row.since), row.attempt ?? "–",
    [h("span", { class: "path" }, row.worker ?? "–"), row.error && h("div", { class: "example" }, row.error)],
    h("span", { class: "act" }, button("release-one", "Release", queue, row.path, { "data-worker": row.worker }))]],
  waiting: [["Path", "Error", "Failed", "Next attempt", ""], (queue, row) => [
    [link(queue, row), row.attempt && h("div", { class: "why" }, `attempt ${row.attempt} failed`)],
    split(row.error), time(row.since), time(row.due_at),
    h("span", { class: "act" }, button("retry-one", "Retry now", queue, row.path), button("cancel-one", "Cancel", queue, row.path))]],
  completed: [["Path", "Completed", "Attempt", "Worker", "Size"], (queue, row) => [link(queue, row), time(row.since), row.attempt ?? "–",
    h("span", { class: "path" }, row.worker ?? "–"), bytes(row.size)]],
  cancelled: [["Path", "Cancelled", "Size"], (queue, row) => [link(queue, row), time(row.since), bytes(row.size)]],
  dead: [["Path", "Error", "Died", "Attempts", ""], (queue, row) => [
    [link(queue, row), row.acknowledged && h("span", { class: "tag" }, "acknowledged")],
    row.error_type ? failure(row.error_type, row.error) : split(row.error), time(row.died_at ?? row.since), row.attempts ?? row.attempt ?? "–",
    h("span", { class: "act" }, button("replay-one", "Replay", queue, row.path),
      !row.lines && button("edit-one", "Edit", queue, row.path), button("delete-one", "Delete", queue, row.path))]],
  workers: [["Worker", "Alive", "Started", "Holds", "Done"], (queue, row) => [row.id,
    row.is_fresh ? "yes" : ["no heartbeat since ", time(row.seen_at)], time(row.started_at),
    row.holds.length ? h("details", {}, h("summary", {}, plural(row.holds.length, "message")), h("ul", { class: "paths" },
      row.holds.slice(0, 50).map((path) => h("li", {}, h("a", { href: lifeLink(queue, path) }, path))))) : "nothing",
    done(row.stats)]],
  partitions: [["Partition", "Messages", "Oldest", "State", "Waiting retries"], (queue, row) => [
    row.group ?? `share ${row.partition.slice(2)}`, count(row.messages, row.exact), time(row.first_at), held(row),
    row.waiting ? h("span", {}, `${count(row.waiting)}${row.next_at ? `, next try ${clock(row.next_at)}` : ""}`,
      row.failure && h("div", { class: "example" }, `${row.failure.type}: ${row.failure.message}`),
      row.next_path && h("div", {}, h("a", { href: lifeLink(queue, row.next_path) }, row.next_path))) : "–"]],
  runs: [RUN_TITLES, runCells],
  schedules: [["Schedule", "Cron", "Next five times", "If missed", ""], (queue, row) => [row.name,
    h("span", {}, h("code", {}, row.cron), h("div", { class: "example" }, row.tz)), row.paused ? "paused"
      : row.problem || h("ol", { class: "times" }, row.next_at.map((at) => h("li", {}, clock(at)))), row.missed,
    h("span", { class: "act" }, scheduleButton(queue, row))]],
};

function scheduleButton(queue, { name, paused }) {
  const words = paused ? "Resume" : "Pause";
  return h("button", { type: "button", class: "button small", "data-action": paused ? "resume-schedule" : "pause-schedule",
    "data-queue": queue, "data-name": name, "aria-label": `${words} ${name}` }, words);
}

export function table(tab, queue, rows, selection) {
  const [titles, cells] = TABLES[tab];
  return h("table", { class: `rows list-${tab}` },
    h("thead", {}, h("tr", {}, selection.isOffered && h("th", { class: "tick" }, selection.allBox(rows)),
      titles.map((title) => h("th", { scope: "col" }, title || nothing.cloneNode(true))))),
    h("tbody", {}, rows.map((row) => h("tr", { "data-key": row.path ?? row.id ?? row.partition ?? row.name },
      selection.isOffered && h("td", { class: "tick" }, selection.box(row.path)),
      cells(queue, row).map((cell, index) => h("td", { "data-label": titles[index] || null,
        class: index === 0 ? "path" : titles[index] === "Error" ? "error" : titles[index] ? null : "act" }, cell))))));
}
