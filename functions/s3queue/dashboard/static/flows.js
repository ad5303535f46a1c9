// The flows of the bucket, and one flow as a picture: its members, the steps behind them, and what became of each.

import { get } from "./api.js";
import { h, svg } from "./dom.js";
import { lifeLink } from "./overview.js";
import { FLOW_STATES, clock, count, plural } from "./words.js";

const ROWS = 20;
// More members than this are counted, not drawn one by one.
const MOST_DRAWN = 60;
// A sign for each outcome, so that nobody needs to see the colour; drawn, as not every font has such letters. A tick, a
// cross, a bar and a ring.
const SIGNS = {
  completed: "M2 6.5 5 9.5 10 3", dead: "M3 3 9 9M9 3 3 9", cancelled: "M2 6h8", waiting: "M9 6a3 3 0 1 1-6 0a3 3 0 1 1 6 0",
};

export class FlowsPage {
  constructor() {
    this.found = null;
    this.cursor = null;
    this.pages = 1;
  }

  seconds() {
    return 10 * this.pages;
  }

  // Every page that the operator has opened is read again.
  async load(show) {
    const found = [];
    let cursor = "";
    for (let page = 0; page < this.pages && cursor !== null; page += 1) {
      const answer = await get(`/api/flows?limit=${ROWS}${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`);
      found.push(...answer.flows);
      cursor = answer.next_cursor;
    }
    Object.assign(this, { found, cursor });
    show();
  }

  forget() {}

  render() {
    const { found } = this;
    if (!found) return [h("p", { class: "quiet" }, "Reading the flows…")];
    const head = h("section", { class: "verdict slim", "data-key": "head" }, h("h1", {}, "Flows"),
      h("p", { class: "reason" }, "Messages that belong together, and the steps that come after them; the newest first."));
    if (!found.length) return [head, h("p", { class: "quiet", "data-key": "none" }, "There is no flow in this bucket.")];
    const titles = ["Flow", "State", "Members done", "Step", "Started", "Ended"];
    return [head, h("section", { class: "card", "data-key": "flows", "aria-label": "Flows" },
      h("table", { class: "rows" },
        h("thead", {}, h("tr", {}, titles.map((title) => h("th", { scope: "col" }, title)))),
        h("tbody", {}, found.map((flow) => h("tr", { "data-key": flow.id },
          this.cells(flow).map((cell, index) => h("td", { "data-label": titles[index], class: index ? null : "path" }, cell)))))),
      this.cursor && h("button", { type: "button", class: "button small", "data-action": "more" }, "More"))];
  }

  cells(flow) {
    const link = h("a", { href: flowLink(flow.id) }, flow.id);
    const state = h("span", {}, h("span", { class: "pill", "data-state": flow.state }, FLOW_STATES[flow.state]),
      h("div", { class: "why" }, flow.problem || flow.reason));
    if (flow.problem) return [link, state, "–", "–", "–", "–"];
    return [link, state, `${count(flow.done)} of ${count(flow.members)}`,
      flow.steps ? `${count(flow.stage)} of ${count(flow.steps)}` : "none", clock(flow.started_at), clock(flow.ended_at)];
  }
}

export class FlowPage {
  constructor(id) {
    this.id = id;
    this.found = null;
    this.wayOut = "The page Flows lists all flows.";
  }

  // Each outcome is a request: a large flow is read less often, and one that has ended changes no more.
  seconds() {
    if (!this.found) return 5;
    return this.found.state === "running" ? Math.max(5, this.found.members / 20) : 60;
  }

  async load(show) {
    this.found = await get(`/api/flows/${encodeURIComponent(this.id)}`);
    show();
  }

  forget() {}

  render() {
    const { found } = this;
    if (!found) return [h("p", { class: "quiet" }, `Reading ${this.id}…`)];
    const about = found.reason ? `${FLOW_STATES[found.state]}: ${found.reason}` : FLOW_STATES[found.state];
    return [
      h("section", { class: "verdict slim", "data-state": found.state, "data-key": "head" },
        h("p", { class: "crumbs" }, h("a", { href: "#/flows" }, "Flows")),
        h("div", { class: "head" },
          h("h1", {}, h("span", { class: "lamp", "aria-hidden": "true" }), found.id),
          found.state === "running" && h("button", { type: "button", class: "button", "data-action": "cancel-flow",
            "data-flow": found.id }, "Cancel the flow")),
        h("p", { class: "reason" }, about),
        h("dl", { class: "facts" }, [["Members done", `${count(found.done)} of ${count(found.members)}`],
          ["Step", found.steps ? `${count(found.stage)} of ${count(found.steps)}` : "none"],
          ["If one dies", found.on_dead === "fail" ? "the flow fails" : "the flow continues"],
          ["Started", clock(found.started_at)], ["Ended", clock(found.ended_at)],
        ].map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))))),
      h("section", { class: "card", "data-key": "picture", "aria-labelledby": "picture-title" },
        h("div", { class: "head" }, h("h2", { id: "picture-title" }, "Members and steps"),
          h("span", { class: "legend" }, Object.keys(SIGNS).map((state) => h("span", {}, sign(state), " ", state)))),
        picture(found)),
    ];
  }
}

export function flowLink(id) {
  return `#/flow/${encodeURIComponent(id)}`;
}

function picture(flow) {
  const steps = flow.nodes.filter((node) => node.stage > 0);
  return h("ol", { class: "stages" }, members(flow), steps.map((node) => stage(flow, node.stage, `Step ${node.stage}`,
    h("ul", { class: "dots" }, dot(flow, node)), `${node.queue}: ${words(flow, node)}`)));
}

function members(flow) {
  const nodes = flow.nodes.filter((node) => node.stage === 0);
  const counts = Object.keys(SIGNS).map((state) => [state, nodes.filter((node) => node.state === state).length])
    .filter(([, number]) => number > 0);
  const said = counts.map(([state, number]) => `${count(number)} ${state}`).join(", ");
  if (nodes.length <= MOST_DRAWN) {
    return stage(flow, 0, plural(nodes.length, "member"), h("ul", { class: "dots" }, nodes.map((node) => dot(flow, node))), said);
  }
  const bad = nodes.filter((node) => ["dead", "cancelled"].includes(node.state));
  return stage(flow, 0, plural(nodes.length, "member"),
    h("div", {},
      h("ul", { class: "dots" }, counts.map(([state, number]) => h("li", { "data-key": state },
        h("span", { class: "node many", "data-state": state }, sign(state), ` ${count(number)} ${state}`)))),
      bad.length > 0 && h("ul", { class: "dots" }, bad.slice(0, MOST_DRAWN).map((node) => dot(flow, node)))),
    bad.length > MOST_DRAWN ? `the first ${MOST_DRAWN} of those that did not complete` : "");
}

function stage(flow, number, title, dots, said) {
  const isNow = flow.state === "running" && flow.stage === number;
  return h("li", { class: "stage", "data-key": `stage-${number}`, "aria-current": isNow ? "step" : null },
    h("h3", {}, title), dots, h("p", { class: "why" }, said));
}

function dot(flow, node) {
  const name = node.stage ? `Step ${node.stage}` : `Member ${node.number}`;
  const said = `${name}: ${words(flow, node)}`;
  const where = node.flow_id ? `flow ${node.flow_id}` : `${node.queue}/${node.path}`;
  const look = { class: "node", "data-state": node.state, "aria-label": said, title: `${said}, ${where}` };
  // A step whose turn has not come has no message yet.
  const isThere = node.stage <= flow.stage;
  const href = node.flow_id ? flowLink(node.flow_id) : lifeLink(node.queue, node.path);
  return h("li", { "data-key": `node-${node.number}` },
    isThere ? h("a", { ...look, href }, sign(node.state)) : h("span", { ...look, role: "img" }, sign(node.state)));
}

function sign(state) {
  return svg("svg", { class: "sign", viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true" },
    svg("path", { d: SIGNS[state] }));
}

function words(flow, node) {
  if (node.state !== "waiting") return node.state;
  if (node.stage > flow.stage) return flow.state === "running" ? "its turn has not come" : "never comes";
  return "waiting for its outcome";
}
