// The live tail: what becomes of messages, as it happens, the newest on top.

import { get, queueUrl } from "./api.js";
import { h } from "./dom.js";
import { lifeLink } from "./overview.js";
import { STATES, clock, count } from "./words.js";

const MOST = 200;

export class Tail {
  constructor(queue) {
    Object.assign(this, { queue, events: [], seen: new Set(), after: "", missed: 0 });
  }

  async read() {
    const answer = await get(queueUrl(this.queue, "/tail", { after: this.after }));
    this.after = answer.at;
    this.missed += answer.missed;
    const { seen } = this;
    // Only those of one answer: a page may stay open for days.
    this.seen = new Set();
    for (const event of answer.events) {
      event.key = [event.path, event.state, event.at, event.attempt].join(" ");
      this.seen.add(event.key);
      // S3 dates by the second: the last one is told twice.
      if (!seen.has(event.key)) this.events.unshift(event);
    }
    this.events.length = Math.min(this.events.length, MOST);
    return this.events;
  }

  render() {
    return h("div", {},
      h("p", { class: "quiet", "aria-live": "polite" }, "Claims, failures and outcomes of the last minute, and from now on; asked for every two seconds.",
        this.missed > 0 && ` ${count(this.missed)} were too many to be read.`),
      this.events.length ? h("ol", { class: "tail", "aria-label": "What happens, the newest first" }, this.events.map((event) =>
        h("li", { "data-key": event.key, "data-state": event.state },
          h("time", { datetime: event.at }, clock(event.at)),
          h("span", { class: "pill", "data-state": event.state }, STATES[event.state] ?? event.state),
          h("div", {}, h("a", { class: "path", href: lifeLink(this.queue, event.path) }, event.path),
            h("div", { class: "why" }, [event.attempt && `attempt ${event.attempt}`, event.worker].filter(Boolean).join(", ")),
            event.error && h("div", { class: "example" }, event.error)))))
        : h("p", {}, "Nothing has happened in the last minute."));
  }
}
