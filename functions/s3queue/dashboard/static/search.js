// Find messages: by the beginning of their path, a part of their error, or a field of their payload.

import { get, queueUrl } from "./api.js";
import { h } from "./dom.js";
import { count, plural } from "./words.js";

const SEARCHED = ["pending", "delayed", "processing", "waiting", "completed", "cancelled", "dead"];
const FAILED = ["waiting", "dead", "processing"];

export class Search {
  constructor(queue, tab) {
    Object.assign(this, { queue, tab, prefix: "", error: "", field: "", value: "", found: null });
  }

  get isOffered() {
    return SEARCHED.includes(this.tab);
  }

  get isDeep() {
    return Boolean(this.error || this.field);
  }

  take(form) {
    const given = new FormData(form);
    const text = (name) => String(given.get(name) ?? "").trim();
    const before = JSON.stringify([this.error, this.field, this.value]);
    Object.assign(this, { prefix: text("prefix"), error: text("error"), field: text("field"), value: text("value") });
    if (before !== JSON.stringify([this.error, this.field, this.value])) this.found = null;
  }

  // A search is not repeated by itself: it may cost hundreds of reads. More of it is read on request.
  async read(pages) {
    this.found ??= { messages: [], looked: 0, unread: 0, pages: 0, cursor: "" };
    const { found } = this;
    while (found.pages < pages && found.cursor !== null) {
      const answer = await get(queueUrl(this.queue, "/search", { state: this.tab, error: this.error, field: this.field,
        value: this.value, cursor: found.cursor }));
      found.messages.push(...answer.messages);
      found.looked += answer.looked_at;
      found.unread += answer.unread;
      found.cursor = answer.next_cursor;
      found.pages += 1;
    }
    return found.messages;
  }

  words() {
    const { found } = this;
    if (this.isDeep && found) {
      const unread = found.unread ? `, ${plural(found.unread, "payload")} could not be searched (gone, over 64 KiB, or not JSON)` : "";
      return found.cursor === null ? `${count(found.messages.length)} found among all ${count(found.looked)}${unread}`
        : `${count(found.messages.length)} found among the first ${count(found.looked)}; the search stopped at its bound${unread}`;
    }
    if (this.prefix) return `Paths that start with ${this.prefix}`;
    if (this.tab === "completed") return "Finished within the last hour, newest first";
    return "In the order of their paths";
  }

  render() {
    if (!this.isOffered) return null;
    const input = (name, words, wide) => h("input", { type: "search", name, placeholder: words, "aria-label": words, class: wide });
    return h("form", { class: "search", role: "search", "data-form": "search", "data-key": "search" },
      this.tab !== "dead" && input("prefix", "The beginning of the path", "long"),
      FAILED.includes(this.tab) && input("error", "A part of the error", "long"),
      h("span", { class: "field", "data-payload": "1" }, input("field", "A field, as customer.id", ""), " ",
        input("value", "Its value", "short")),
      h("button", { type: "submit", class: "button small" }, "Search"),
      h("span", { class: "quiet", "aria-live": "polite" }, this.words()));
  }
}
