// A payload as people read it: JSON indented, the dead lines of a batch as a list, everything else as it is.

import { h } from "./dom.js";
import { bytes, plural } from "./words.js";

export function payloadView(payload, path) {
  const metadata = Object.entries(payload.metadata);
  const lines = deadLines(payload, path);
  return h("div", {},
    h("p", { class: "quiet" }, `${bytes(payload.size)}, ${payload.content_type || "no type"}`,
      lines && `, ${plural(lines.length, "line")}`,
      payload.truncated && ", only the first 64 KiB", payload.text === null && ", not text: shown in base64"),
    lines ? h("ol", { class: "lines" }, lines.map((line) => h("li", {}, h("div", { class: "why" }, `Line ${line.line}`, ": ",
      h("b", {}, String(line.error_type)), " ", String(line.error)),
    h("pre", { class: "payload" }, pretty(String(line.body ?? line.body_base64 ?? ""))))))
      : h("pre", { class: "payload" }, payload.text === null ? payload.base64 : pretty(payload.text)),
    metadata.length > 0 && h("dl", { class: "facts" }, metadata.map(([name, value]) =>
      h("div", {}, h("dt", {}, name), h("dd", {}, value)))));
}

// Nobody reads more levels than that, and each line of a level has its spaces.
const DEEPEST = 100;
const TOKENS = /"(?:[^"\\]+|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;

// Only objects and lists: a plain text or number stays as it was sent. What is between the spaces is never changed:
// parsed and written again, 12345678901234567890 would be another number, and 1.0 a 1.
export function pretty(text) {
  if (!isContainer(text)) return text;
  const shown = [];
  let depth = 0, before = "";
  for (const token of text.match(TOKENS)) {
    const isOpening = before === "{" || before === "[", isClosing = token === "}" || token === "]";
    depth += isOpening && !isClosing ? 1 : !isOpening && isClosing ? -1 : 0;
    if (depth > DEEPEST) return text;
    if (isOpening !== isClosing || before === ",") shown.push("\n", "  ".repeat(depth));
    shown.push(token === ":" ? ": " : token);
    before = token;
  }
  return shown.join("");
}

// JSON without its spaces, as compact as a producer writes it; everything else stays as it is.
export function compact(text) {
  return isContainer(text) ? text.match(TOKENS).join("") : text;
}

function isContainer(text) {
  try {
    const found = JSON.parse(text);
    return found !== null && typeof found === "object";
  } catch {
    return false;
  }
}

function deadLines(payload, path) {
  if (payload.text === null || !/\.lines(~|$)/.test(path)) return null;
  const lines = payload.text.split("\n").filter(Boolean).map((line) => {
    try {
      return JSON.parse(line);
    } catch {
      return null;
    }
  }).filter((line) => line && typeof line === "object" && "error_type" in line);
  return lines.length ? lines : null;
}
