// The history of a message as a timeline; its payload only on request.

import { get, queueUrl } from "./api.js";
import { h, logs } from "./dom.js";
import { payloadView } from "./payload.js";
import { lifeLink } from "./overview.js";
import { STATES, bytes, clock, count, diedLines, plural, seconds } from "./words.js";

export class MessagePage {
  constructor(queue, path) {
    Object.assign(this, { queue, path, found: null, payload: null });
  }

  seconds() {
    return 5;
  }

  async load(show) {
    this.found = await get(queueUrl(this.queue, "/message", { path: this.path }));
    show();
  }

  forget() {}

  render() {
    const { found, queue, path } = this;
    const crumbs = h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Overview"), " / ",
      h("a", { href: `#/queue/${encodeURIComponent(queue)}` }, queue));
    if (!found) return [crumbs, h("h1", { class: "path" }, path), h("p", { class: "quiet" }, "Reading…")];
    const button = (action, words) => h("button", { type: "button", class: "button", "data-action": action,
      "data-queue": queue, "data-path": path, "data-worker": found.worker }, words);
    return [
      h("section", { class: "verdict slim", "data-state": this.died ? "dead" : found.state, "data-key": "head" }, crumbs,
        h("div", { class: "head" }, h("h1", { class: "path" }, h("span", { class: "lamp", "aria-hidden": "true" }), path),
          found.state === "dead" && h("span", { class: "act" }, button("replay-one", "Replay"), button("replay-to", "Replay to…"),
            !found.lines && button("edit-one", "Edit and replay"), button("delete-one", "Delete")),
          found.state === "completed" && found.kept_payload
            && h("span", { class: "act" }, button("replay-completed", "Run again")),
          ["pending", "delayed", "waiting", "processing"].includes(found.state)
            && h("span", { class: "act" }, found.state === "processing" && button("release-one", "Release"),
              found.state === "waiting" && button("retry-one", "Retry now"),
              button("cancel-one", "Cancel"))),
        h("p", { class: "reason" }, STATES[found.state] ?? found.state, found.problem && `: ${found.problem}`, this.diedWords()),
        h("dl", { class: "facts" }, [["Priority", found.priority], ["Size", bytes(found.size)], ["Attempt", found.attempt ?? "–"],
          ["Worker", this.worker(found.worker)], ["Due", found.due_at ? clock(found.due_at) : "at once"],
          ["Progress", found.progress ? `${Math.round(found.progress[0] * 100)} % ${found.progress[1]}` : "–"]]
          .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))))),
      h("section", { class: "card", "data-key": "life", "aria-labelledby": "life-title" },
        h("h2", { id: "life-title" }, "History"), h("ol", { class: "life" }, this.events())),
      found.result !== null && found.result !== undefined && h("section", { class: "card", "data-key": "result" },
        h("h2", {}, "Result"), h("pre", {}, JSON.stringify(found.result, null, 2))),
      found.lines && h("section", { class: "card", "data-key": "lines" }, h("h2", {}, "Lines of the batch"), this.lines()),
      h("section", { class: "card", "data-key": "payload", "aria-labelledby": "payload-title" },
        h("h2", { id: "payload-title" }, "Payload"), this.body()),
    ].filter(Boolean);
  }

  events() {
    const { found } = this;
    const events = [];
    const add = (kind, at, what, why, details) => events.push({ kind, at, what, why, details });
    if (found.enqueued_at) add("start", found.enqueued_at, "Enqueued", found.due_at ? `not before ${clock(found.due_at)}` : "");
    for (const attempt of found.attempts) {
      const took = seconds(Math.max(0, (Date.parse(attempt.ended_at) - Date.parse(attempt.started_at)) / 1000));
      const { failure } = attempt;
      add(failure ? "bad" : "good", attempt.ended_at, `Attempt ${attempt.number} ${failure ? "failed" : "succeeded"}`,
        [this.worker(attempt.worker), `, took ${took}${failure ? `. ${failure.type}: ${failure.message}` : ""}`], failure?.details);
    }
    if (found.state === "processing") add("now", found.claimed_at, `Attempt ${found.attempt} is running`, this.worker(found.worker));
    if (found.state === "waiting") add("now", found.retry_at, "Next attempt", found.failure ? found.failure.message : "");
    if (found.state === "burying") add("bad", null, "Being buried", found.failure?.message ?? "");
    if (found.state === "completed") {
      add(this.died ? "bad" : "good", found.finished_at, this.died ? `Ended, ${plural(this.died, "line")} died` : "Completed",
        this.worker(found.worker));
    }
    if (found.state === "cancelled") add("start", found.finished_at, "Cancelled", "");
    if (found.state === "dead") {
      add("bad", found.finished_at, "Dead", found.failure ? `${found.failure.type}: ${found.failure.message}` : "", found.failure?.details);
    }
    return events.map(({ kind, at, what, why, details }) => h("li", { class: kind },
      h("time", { datetime: at }, clock(at)), h("div", {}, h("b", {}, what), why && h("div", { class: "example" }, why),
        details && h("details", {}, h("summary", {}, "Traceback"), h("pre", {}, details)))));
  }

  worker(name) {
    return name ? h("span", {}, name, this.found.logs?.[name] && " ", logs(this.found.logs?.[name])) : "–";
  }

  // A batch is completed once, also if most of its lines died: that must not look as if all were well.
  get died() {
    return this.found.state === "completed" ? this.found.lines?.dead ?? 0 : 0;
  }

  diedWords() {
    const { total, dead } = this.found.lines ?? {};
    return this.died > 0 && [`: ${diedLines(dead, total)}. `,
      h("a", { href: lifeLink(this.queue, `${this.path}.lines`) }, "Their dead letter")];
  }

  // How many ended in which way, and which died first.
  lines() {
    const { total, completed, dead, ...rest } = this.found.lines;
    const facts = [["Lines", total], [STATES.completed, completed], [STATES.dead, dead]].filter(([, value]) => typeof value === "number");
    const more = Object.entries(rest).filter(([, value]) => value !== null && JSON.stringify(value).length > 2);
    return h("div", {}, h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, count(value))))),
      more.length > 0 && h("details", {}, h("summary", {}, plural(more.length, "more fact")), h("pre", {}, JSON.stringify(Object.fromEntries(more), null, 2))));
  }

  body() {
    const { payload, found } = this;
    if (["completed", "cancelled"].includes(found.state) && !found.kept_payload) {
      return h("p", { class: "quiet" }, `The message was ${found.state}, and its payload was deleted.`,
        this.died > 0 && " The lines that died are kept in their dead letter.");
    }
    if (!payload) {
      return h("div", {}, h("p", { class: "quiet" }, "The payload is read only on request."),
        h("button", { type: "button", class: "button", "data-action": "show-payload" }, "Show the payload"));
    }
    return payloadView(payload, this.path);
  }
}
