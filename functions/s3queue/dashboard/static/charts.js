// Charts as SVG, drawn from numbers. Each has a text that says what it shows, for screen readers.

import { h, svg } from "./dom.js";
import { count } from "./words.js";

function scale(points, width, height, most) {
  const step = width / Math.max(1, points.length - 1);
  return points.map((value, index) => [index * step, height - (value / most) * height]);
}

function line(places) {
  return places.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

function drawn(all, width, height) {
  // Without the minute that is not over: it would always look like a fall.
  const minutes = all.slice(0, -1);
  const series = (name) => minutes.map((minute) => minute[name]);
  const most = Math.max(1, ...series("entered"), ...series("finished"));
  const out = scale(series("finished"), width, height, most);
  const into = scale(series("entered"), width, height, most);
  const bar = width / minutes.length;
  return {
    most,
    parts: [
      svg("path", { class: "area", d: `${line(out)}L${width} ${height}L0 ${height}Z` }),
      svg("path", { class: "line out", d: line(out) }),
      svg("path", { class: "line in", d: line(into) }),
      series("died").map((value, index) =>
        value ? svg("rect", {
          class: "died", x: (index * bar).toFixed(1), width: Math.max(2, bar * 0.7).toFixed(1), rx: 1,
          y: (height - Math.max(3, (Math.min(value, most) / most) * height)).toFixed(1),
          height: Math.max(3, (Math.min(value, most) / most) * height).toFixed(1),
        }) : null),
    ],
  };
}

export function flowWords(flow) {
  const sum = (name) => flow.minutes.reduce((total, minute) => total + minute[name], 0);
  const least = flow.exact ? "" : "at least ";
  return `In the last hour ${least}${count(sum("entered"))} in, ${count(sum("finished"))} out, ${count(sum("died"))} died`;
}

export function sparkline(flow) {
  if (!flow) return h("span", { class: "spark empty", "aria-hidden": "true" });
  const [width, height] = [200, 36];
  return svg("svg", { class: "spark chart", viewBox: `0 -2 ${width} ${height + 4}`, preserveAspectRatio: "none",
    role: "img", "aria-label": flowWords(flow) }, drawn(flow.minutes, width, height).parts);
}

export function flowChart(flow) {
  const [width, height] = [1100, 170];
  const { most, parts } = drawn(flow.minutes, width, height);
  const zone = new Date(flow.at).toLocaleTimeString("en-GB", { timeZoneName: "short" }).split(" ").pop();
  const times = [0, 15, 30, 45, 58].map((index) =>
    new Date(flow.minutes[index].at).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" }));
  const grid = [0, 0.5, 1].map((part) =>
    svg("line", { class: "grid", x1: 0, x2: width, y1: height * part, y2: height * part }));
  // The labels are text, not part of the picture: on a phone that would shrink them with it.
  return h("figure", { class: "figure" },
    h("div", { class: "ticks" }, h("span", {}, `${count(most)} per minute`), h("span", {}, zone)),
    svg("svg", { class: "chart hour", viewBox: `0 -2 ${width} ${height + 4}`, preserveAspectRatio: "none", role: "img",
      "aria-label": flowWords(flow) }, grid, parts),
    h("div", { class: "ticks" }, times.map((time) => h("span", {}, time))),
    h("figcaption", {},
      h("span", { class: "key in" }, "in"), h("span", { class: "key out" }, "out"), h("span", { class: "key died" }, "died"),
      h("span", { class: "quiet" }, flowWords(flow))));
}
