// Shows the page that the address names, and keeps it up to date.

import { onChanged, payload } from "./actions.js";
import { Poll } from "./api.js";
import { leave, tell } from "./dialog.js";
import { h, morphChildren } from "./dom.js";
import { listen } from "./edit.js";
import { FlowPage, FlowsPage } from "./flows.js";
import { MessagePage } from "./message.js";
import { NoSuchPage, missing, otherQueues } from "./missing.js";
import { Overview } from "./overview.js";
import { QueuePage } from "./queue.js";
import { StatisticsPage } from "./statistics.js";
import { age } from "./words.js";

const main = document.getElementById("main");
const trouble = document.getElementById("trouble");
const live = document.getElementById("live");
const liveText = document.getElementById("live-text");
const overview = new Overview();
let page = overview;

function show(from = page) {
  // An answer that comes after the operator has opened another page is not drawn.
  if (from !== page) return;
  const focused = document.activeElement;
  morphChildren(main, page.missing ? missing(page.missing, page) : page.render().filter(Boolean));
  if (!page.missing) page.after?.(main);
  // A row that moves within the list loses the focus.
  if (focused !== document.activeElement && main.contains(focused)) focused.focus({ preventScroll: true });
  document.getElementById("bucket").textContent = overview.data?.bucket ?? "";
  if (liveText.textContent === "connecting" && (page.data || page.view || page.found)) liveText.textContent = "live";
}

const poll = new Poll(async () => {
  const current = page;
  try {
    await current.load(() => {
      current.missing = null;
      show(current);
    });
  } catch (error) {
    if (error.status !== 404) throw error;
    // What is not there is a page of its own. It is asked for again, in case it comes.
    if (!current.missing) await otherQueues(current);
    current.missing = error;
    show(current);
  }
}, () => page.seconds(), (error, wait) => {
  main.classList.toggle("stale", Boolean(error));
  live.dataset.state = error ? "bad" : "good";
  liveText.textContent = error ? `trying again in ${age(wait)}` : `live, every ${age(wait)}`;
  const said = error && h("p", {}, h("b", {}, "No answer. "), error.message, " ", h("span", {}, error.wayOut ?? ""));
  morphChildren(trouble, said ? [said] : []);
});

function route() {
  const [, kind, name, tab, path, message] = location.hash.split("/").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  if (kind === "queue" && name && tab === "message") page = new MessagePage(name, path ?? "");
  else if (kind === "queue" && name) page = Object.assign(new QueuePage(name, tab, { error: path, message }), page.name === name ? kept(page) : {});
  else if (kind === "flow" && name) page = new FlowPage(name);
  else if (kind === "flows") page = new FlowsPage();
  else if (kind === "statistics") page = Object.assign(new StatisticsPage(name, tab), page instanceof StatisticsPage ? read(page) : {});
  else if (kind && !kind.startsWith("key=")) page = new NoSuchPage(location.hash);
  else page = overview;
  const here = page === overview ? "overview" : { flow: "flows", flows: "flows", statistics: "statistics" }[kind] ?? "";
  const title = page === overview ? "Overview" : page instanceof NoSuchPage ? "Not found"
    : { flows: "Flows", statistics: "Statistics" }[kind] ?? name;
  document.title = `${title} · s3queue`;
  for (const link of document.querySelectorAll("[data-nav]")) {
    if (link.dataset.nav === here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  show();
  poll.now();
}

function read({ found, recent }) {
  return { found, recent };
}

function kept({ view, flow, flowAt }) {
  return { view, flow, flowAt };
}

window.addEventListener("hashchange", () => {
  if (location.hash === "#main") return;
  leave();
  route();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
});

document.addEventListener("input", (event) => {
  if (event.target.dataset.filter === "queues") {
    overview.filter = event.target.value.trim();
    show();
  }
});

document.addEventListener("submit", (event) => {
  if (event.target.dataset.form !== "search") return;
  event.preventDefault();
  page.search.take(event.target);
  page.pages = 1;
  poll.now();
});

document.addEventListener("click", async (event) => {
  const action = event.target.closest("[data-action]")?.dataset.action;
  if (action === "more") {
    page.pages += 1;
    poll.now();
  } else if (action === "toggle-live") {
    const isOn = poll.toggle();
    live.setAttribute("aria-pressed", String(isOn));
    live.dataset.state = isOn ? "good" : "off";
    liveText.textContent = isOn ? "live" : "paused";
  } else if (action === "show-payload") {
    try {
      page.payload = await payload(page.queue, page.path);
      show();
    } catch (error) {
      tell(`${error.message} ${error.wayOut ?? ""}`, "bad");
    }
  }
});

onChanged(() => {
  page.forget();
  poll.now();
});

listen(() => page, () => show());
route();
