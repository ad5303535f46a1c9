// Requests to the API, and polling that slows down after failures and stops while the page is hidden.

export class ApiError extends Error {
  constructor(status, answer) {
    super(answer.message ?? "The API did not answer.");
    this.status = status;
    this.error = answer.error ?? "Unreachable";
    this.wayOut = answer.way_out ?? "Check that it is still running. This page tries again by itself.";
    this.fields = answer.fields ?? [];
  }
}

// The key of a dashboard on this machine comes in the address's fragment, which is sent to nobody. It is kept for this
// tab and this port; a cookie would go to every port. Behind a function URL there is none: requests are signed.
const KEY = "s3queue-key";
function takeKey() {
  const given = new URLSearchParams(location.hash.slice(1)).get("key");
  if (!given) return;
  sessionStorage.setItem(KEY, given);
  // Out of the address bar and the history.
  history.replaceState(null, "", `${location.pathname}#/`);
}
takeKey();
// A new address pasted into this very tab only changes the fragment.
window.addEventListener("hashchange", takeKey);

async function send(method, path, body) {
  const headers = { "x-s3queue": "1" };
  const key = sessionStorage.getItem(KEY);
  if (key) headers["x-s3queue-key"] = key;
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new ApiError(0, {});
  }
  // A reader sees no buttons that could only fail.
  document.documentElement.dataset.role = response.headers.get("x-s3queue-role") ?? "";
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new ApiError(response.status, answer);
  return answer;
}

export const get = (path) => send("GET", path);
export const post = (path, body) => send("POST", path, body);
export const del = (path) => send("DELETE", path);

export function queueUrl(queue, rest = "", query = {}) {
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== "" && value !== null && value !== undefined) asked.set(name, value);
  }
  const text = asked.toString();
  return `/api/queues/${encodeURIComponent(queue)}${rest}${text ? `?${text}` : ""}`;
}

const LONGEST = 60;

// Calls `load` every `seconds()`; each failure doubles the pause. It stops while the page is hidden or polling is off.
export class Poll {
  constructor(load, seconds, told) {
    this.load = load;
    this.seconds = seconds;
    this.told = told;
    this.failures = 0;
    this.timer = null;
    this.isOn = true;
    this.run = 0;
    document.addEventListener("visibilitychange", () => this.now());
  }

  async now() {
    clearTimeout(this.timer);
    if (document.hidden || !this.isOn) return;
    const run = ++this.run;
    let error = null;
    try {
      await this.load();
      this.failures = 0;
    } catch (caught) {
      if (!(caught instanceof ApiError)) console.error(caught);
      this.failures += 1;
      error = caught;
    }
    if (run !== this.run) return;
    const wait = Math.min(LONGEST, this.seconds() * 2 ** this.failures);
    this.told(error, wait);
    if (this.isOn) this.timer = setTimeout(() => this.now(), wait * 1000);
  }

  toggle() {
    this.isOn = !this.isOn;
    clearTimeout(this.timer);
    if (this.isOn) this.now();
    return this.isOn;
  }
}
