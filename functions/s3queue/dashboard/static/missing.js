// What is not there: a queue, a message or a page, said as a page, with where to go from here.

import { get } from "./api.js";
import { h } from "./dom.js";

// What the API says is for programs. Error → where to go on this page, and whether the queue itself is there.
const WAYS = {
  QueueNotFound: ["The overview lists all queues.", false],
  MessageNotFound: ["It may have been deleted, or its record is past its retention. The queue's page lists what there is.", true],
};

export function missing(error, page) {
  const names = page.others ?? [];
  const queue = page.name ?? page.queue;
  const [wayOut, isQueueThere] = page.wayOut ? [page.wayOut, true] : WAYS[error.error] ?? [error.wayOut, true];
  return [h("section", { class: "verdict", "data-health": "unknown", "data-key": "missing" },
    h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Overview")),
    h("h1", {}, h("span", { class: "lamp", "aria-hidden": "true" }), "Not found"),
    h("p", { class: "reason" }, error.message),
    h("p", { class: "why" }, wayOut),
    page.path && queue && isQueueThere && h("p", { class: "why" }, h("a", { href: `#/queue/${encodeURIComponent(queue)}` }, `To the queue ${queue}`)),
    names.length > 0 && h("div", { class: "others" }, h("h3", {}, "Queues of this bucket"), h("ul", { class: "totals" },
      names.map((name) => h("li", {}, h("a", { href: `#/queue/${encodeURIComponent(name)}` }, name))))))];
}

// The queues that there are, for whoever mistyped a name; without them, the page is still of use.
export async function otherQueues(page) {
  try {
    page.others = (await get("/api/queues")).queues.map((queue) => queue.name).slice(0, 50);
  } catch {
    page.others = [];
  }
}

export class NoSuchPage {
  constructor(address) {
    this.address = address;
  }

  seconds() {
    return 60;
  }

  async load(show) {
    show();
  }

  forget() {}

  render() {
    return missing({ message: `There is no page ${this.address}.`, wayOut: "The overview leads to all of them." }, {});
  }
}
