// Charts over time. uPlot draws them; it is loaded when the first page that has a chart is opened, not before.

import { h } from "./dom.js";
import { clock } from "./words.js";

const HEIGHT = 190;
const drawn = new Map();
let loading = null;

function library() {
  loading ??= new Promise((resolve, reject) => {
    const script = h("script", { src: "/uplot.min.js" });
    script.addEventListener("load", () => resolve(window.uPlot));
    script.addEventListener("error", () => {
      loading = null;
      reject(new Error("The charts could not be loaded."));
    });
    document.head.append(h("link", { rel: "stylesheet", href: "/uplot.min.css" }), script);
  });
  return loading;
}

// The place of a chart. `spec`: key, title, note, times (seconds), series ({ name, tone, values, bars }), format, most,
// steps (between the numbers of its axis).
// What it shows can be read as a table, too.
export function figure(spec) {
  const { key, title, note, times, series, format } = spec;
  const rows = times.map((time, index) => [time, series.map(({ values }) => values[index])])
    .filter(([, values]) => values.some((value) => value !== null)).reverse();
  return h("figure", { class: "figure plot", "data-key": key },
    h("figcaption", {}, h("h3", { id: `plot-${key}` }, title), note && h("span", { class: "quiet" }, note)),
    rows.length
      ? h("div", { class: "canvas", "data-own": "1", "data-plot": key, tabindex: 0, role: "group",
        "aria-labelledby": `plot-${key}`, "aria-describedby": `words-${key}` })
      : h("p", { class: "quiet" }, "Nothing in this time."),
    rows.length > 0 && h("p", { class: "hidden", id: `words-${key}` }, `${words(spec)} The arrow keys move through the hours.`),
    rows.length > 0 && h("details", {}, h("summary", {}, "As a table"),
      h("table", { class: "rows figures" },
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Time"), series.map(({ name }) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, rows.map(([time, values]) => h("tr", {}, h("th", { scope: "row" }, clock(time * 1000)),
          values.map((value, index) => h("td", { "data-label": series[index].name }, value === null ? "–" : format(value)))))))));
}

function words({ title, series, format }) {
  return `${title}. ` + series.map(({ name, values }) => {
    const known = values.filter((value) => value !== null);
    return known.length ? `${name}: highest ${format(Math.max(...known))}, last ${format(known[known.length - 1])}.` : "";
  }).join(" ");
}

// Draw the charts whose places are on the page, and forget those that are gone.
export async function draw(root, specs) {
  const wanted = new Map(specs.map((spec) => [spec.key, spec]));
  for (const [host, chart] of drawn) {
    if (host.isConnected && wanted.has(host.dataset.plot)) continue;
    chart.plot.destroy();
    chart.observer.disconnect();
    drawn.delete(host);
  }
  const hosts = [...root.querySelectorAll("[data-plot]")].filter((host) => wanted.has(host.dataset.plot));
  if (!hosts.length) return;
  const Plot = await library();
  for (const host of hosts) {
    const spec = wanted.get(host.dataset.plot);
    const shape = JSON.stringify([spec.series.map(({ name }) => name), dark.matches]);
    const known = drawn.get(host);
    if (known?.shape === shape) {
      // Not if nothing is new: a part that somebody has enlarged stays enlarged.
      if (known.data !== JSON.stringify([spec.times, spec.series])) known.plot.setData(columns(spec));
      Object.assign(known, { spec, data: JSON.stringify([spec.times, spec.series]) });
      continue;
    }
    known?.plot.destroy();
    known?.observer.disconnect();
    if (host.isConnected) begin(Plot, host, spec, shape);
  }
}

function begin(Plot, host, spec, shape) {
  const chart = { spec, shape, data: JSON.stringify([spec.times, spec.series]) };
  chart.plot = new Plot(options(Plot, host, chart), columns(spec), host);
  chart.observer = new ResizeObserver(() => {
    if (host.clientWidth) chart.plot.setSize({ width: host.clientWidth, height: HEIGHT });
  });
  chart.observer.observe(host);
  drawn.set(host, chart);
}

// Bars that stand on each other: each column is drawn as the sum of itself and those below it, the tallest first.
function columns({ times, series }) {
  const bars = series.filter(({ bars: isBar }) => isBar);
  return [times, ...series.map((one) => (one.bars
    ? times.map((_, index) => sum(bars.slice(bars.indexOf(one)), index)) : one.values))];
}

const sum = (series, index) => series.reduce((total, { values }) => total + (values[index] ?? 0), 0);

function options(Plot, host, chart) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const axis = { stroke: colour("soft"), grid: { stroke: colour("edge"), width: 1 }, ticks: { stroke: colour("edge"), width: 1 },
    font: "12px system-ui, sans-serif" };
  const value = (index) => (plot, shown, _, at) => {
    const found = at === null || at === undefined ? null : chart.spec.series[index].values[at];
    return found === null || found === undefined ? "–" : chart.spec.format(found);
  };
  return {
    width: host.clientWidth || 320, height: HEIGHT,
    // Two charts of one page follow one cursor.
    cursor: { sync: { key: "page" }, points: { size: 7 }, drag: { x: true, y: false } },
    legend: { live: true },
    // Half an hour on both sides, or the first and the last bar would be cut.
    scales: { x: { time: true, range: (plot, low, high) => [low - 1800, high + 1800] }, y: { range: (plot, low, high) => [0, chart.spec.most ?? (high > 0 ? high * 1.08 : 1)] } },
    axes: [
      { ...axis, space: 74, values: (plot, splits) => splits.map(tick) },
      { ...axis, size: 62, ...(chart.spec.steps && { incrs: chart.spec.steps }), values: (plot, splits) => splits.map((found) => chart.spec.format(found)) },
    ],
    series: [
      { label: "Time", value: (plot, time) => (time === null || time === undefined ? "–" : clock(time * 1000)) },
      ...chart.spec.series.map(({ name, tone, bars }, index) => ({
        label: name, value: value(index), stroke: colour(tone), width: bars ? 0 : 2,
        ...(bars ? { fill: colour(tone), paths: Plot.paths.bars({ size: [0.7, 26] }), points: { show: false } }
          : { points: { show: true, size: 5, fill: colour(tone) }, spanGaps: false }),
      })),
    ],
  };
}

// Hours of a day, and the day where one begins; in the zone of the browser.
function tick(seconds) {
  const at = new Date(seconds * 1000);
  const isDay = at.getHours() === 0 && at.getMinutes() === 0;
  return isDay ? at.toLocaleDateString("en-GB", { day: "numeric", month: "short" })
    : at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
}

const dark = matchMedia("(prefers-color-scheme: dark)");

// The cursor goes from hour to hour with the arrow keys, as it does with the mouse.
document.addEventListener("keydown", (event) => {
  const chart = drawn.get(event.target);
  const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
  if (!chart || step === undefined) return;
  event.preventDefault();
  const { plot } = chart;
  const last = plot.data[0].length - 1;
  const next = Math.max(0, Math.min(last, (plot.cursor.idx ?? (step > 0 ? -1 : last + 1)) + step));
  plot.setCursor({ left: plot.valToPos(plot.data[0][next], "x"), top: HEIGHT / 3 }, true, true);
});
