// Rows that are ticked, and what can be done with all of them at once. Each is still one request: what fails is told.

import { ApiError, del, post, queueUrl } from "./api.js";
import { ask, tell } from "./dialog.js";
import { h } from "./dom.js";
import { count, plural } from "./words.js";

// State → what can be done: the words of the button, what it says first, and the request.
const BULK = {
  dead: {
    "replay-many": ["Replay", "They become messages again, with all their attempts. If the cause is not repaired, they die again.",
      (queue, path) => post(queueUrl(queue, "/dead/replay"), { path })],
    "delete-many": ["Delete", "They are deleted for good. Their records stay until their retention is over.",
      (queue, path) => del(queueUrl(queue, "/dead", { path }))],
  },
  waiting: {
    "retry-many": ["Retry now", "They are tried within seconds, and no attempt is used by that.",
      (queue, path) => post(queueUrl(queue, "/message/retry", { path }))],
    "cancel-many": ["Cancel messages", "They never run again. Their payloads are deleted.",
      (queue, path) => post(queueUrl(queue, "/message/cancel", { path }))],
  },
};
BULK.pending = { "cancel-many": BULK.waiting["cancel-many"] };
BULK.delayed = BULK.pending;
const DANGER = ["delete-many", "cancel-many"];

export class Selection {
  constructor(queue, tab) {
    Object.assign(this, { queue, tab, paths: new Set() });
  }

  get isOffered() {
    return Boolean(BULK[this.tab]);
  }

  // What is not shown any more is not ticked any more: nobody would know what a button does.
  keep(rows) {
    const shown = new Set(rows.map((row) => row.path));
    for (const path of this.paths) if (!shown.has(path)) this.paths.delete(path);
  }

  box(path) {
    return h("input", { type: "checkbox", "data-tick": path, "aria-label": `Select ${path}` });
  }

  allBox(rows) {
    return h("input", { type: "checkbox", "data-tick-all": "1", "aria-label": `Select all ${count(rows.length)} shown` });
  }

  bar(rows) {
    if (!this.isOffered || !rows?.length) return null;
    return h("div", { class: "bulk", "data-key": "bulk" },
      h("span", { class: "quiet", "aria-live": "polite" }, this.paths.size ? `${count(this.paths.size)} selected` : "Select rows to act on several"),
      Object.entries(BULK[this.tab]).map(([action, [words]]) => h("button", { type: "button", class: "button small",
        "data-action": action, "data-queue": this.queue, disabled: !this.paths.size }, words)));
  }

  // A tick is a property, not an attribute: drawing the page anew does not set it.
  show(main) {
    const boxes = [...main.querySelectorAll("[data-tick]")];
    for (const box of boxes) box.checked = this.paths.has(box.dataset.tick);
    const all = main.querySelector("[data-tick-all]");
    if (!all) return;
    all.checked = boxes.length > 0 && boxes.every((box) => box.checked);
    all.indeterminate = !all.checked && boxes.some((box) => box.checked);
  }

  change(target, rows) {
    if (target.dataset.tickAll) {
      for (const row of rows) {
        if (target.checked) this.paths.add(row.path);
        else this.paths.delete(row.path);
      }
    } else if (target.checked) this.paths.add(target.dataset.tick);
    else this.paths.delete(target.dataset.tick);
  }

  async act(action) {
    const [words, says, send] = BULK[this.tab][action];
    const verb = words.replace(/ messages$/, "");
    const paths = [...this.paths];
    const done = await ask({
      title: `${verb} ${plural(paths.length, "message")}?`,
      says: [paths.slice(0, 5).join("\n") + (paths.length > 5 ? `\nand ${count(paths.length - 5)} more` : ""), says],
      button: `${verb} ${count(paths.length)}`,
      keep: action === "cancel-many" ? "Keep them" : undefined,
      danger: DANGER.includes(action),
      perform: (progress) => each(paths, (path) => send(this.queue, path), progress),
    });
    if (!done) return;
    this.paths = new Set(done.failed.map(({ path }) => path));
    const first = done.failed[0];
    tell(`${verb}: ${count(done.many)} done${first ? `, ${count(done.failed.length)} failed: ${first.path}: ${first.message}` : "."}`,
      first ? "bad" : "good");
  }
}

const AT_ONCE = 4;
const GROUP = /^messages\/@[^=/][^/]*\//;

// Each path alone, those of a group together and in its order, however they were ticked: a replay goes to its end.
function inTurn(paths) {
  const rows = new Map();
  for (const path of [...paths].sort()) {
    const key = GROUP.exec(path)?.[0] ?? path;
    rows.set(key, [...(rows.get(key) ?? []), path]);
  }
  return [...rows.values()];
}

async function each(paths, send, progress) {
  const done = { many: 0, failed: [] };
  const waiting = inTurn(paths);
  async function work() {
    while (waiting.length) {
      for (const path of waiting.shift()) {
        try {
          await send(path);
          done.many += 1;
        } catch (error) {
          if (!(error instanceof ApiError)) throw error;
          done.failed.push({ path, message: error.message });
        }
        progress(`${count(done.many + done.failed.length)} of ${count(paths.length)}…`);
      }
    }
  }
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return done;
}
