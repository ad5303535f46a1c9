// What an operator can do: pause, resume, replay, delete. Buttons carry data, never code; this finds them by a click.

import { del, get, post, queueUrl } from "./api.js";
import { ask, tell } from "./dialog.js";
import { count, plural } from "./words.js";

let refresh = () => {};

export function onChanged(callback) {
  refresh = callback;
}

const actions = {
  async pause({ queue }) {
    const done = await ask({
      title: `Pause ${queue}?`,
      says: ["Workers claim nothing any more within ten seconds. What runs now is finished, what comes waits."],
      button: "Pause",
      perform: () => post(queueUrl(queue, "/pause")),
    });
    if (done) tell(`${queue} is paused.`);
  },

  async resume({ queue }) {
    const done = await ask({
      title: `Resume ${queue}?`,
      says: ["Workers claim messages again within ten seconds."],
      button: "Resume",
      perform: () => post(queueUrl(queue, "/resume")),
    });
    if (done) tell(`${queue} is resumed.`);
  },

  async "replay-group"({ queue, error }) {
    const started = Date.now();
    const planned = await post(queueUrl(queue, "/dead/replay"), { error_type: error, dry_run: true });
    const many = planned.next_cursor ? `at least ${count(planned.selected)}` : count(planned.selected);
    const done = await ask({
      title: `Replay ${error} in ${queue}?`,
      says: [
        `${many} dead ${planned.selected === 1 ? "letter" : "letters"} that died of ${error} will be put back as ` +
          "messages, with all their attempts before them. They run again.",
        "If what they died of is not repaired, they will die again.",
      ],
      button: planned.selected === 1 ? "Replay 1 letter" : `Replay ${many} letters`,
      perform: (progress) => replayAll(queue, error, started, progress),
    });
    if (done) report(done);
  },

  async "replay-one"({ queue, path }) {
    const done = await ask({
      title: "Replay this dead letter?",
      says: [path, "It is put back as a message, with all its attempts before it."],
      button: "Replay",
      perform: () => post(queueUrl(queue, "/dead/replay"), { path }),
    });
    if (done) tell(`Replayed ${path}.`);
  },

  async "delete-one"({ queue, path }) {
    const done = await ask({
      title: "Delete this dead letter?",
      says: [path, "The message is gone for good; its record stays until its retention is over."],
      button: "Delete for good",
      danger: true,
      perform: () => del(queueUrl(queue, "/dead", { path })),
    });
    if (done) tell(`Deleted ${path}.`);
  },

  async "copy"({ text }) {
    await navigator.clipboard?.writeText(text);
    tell("Copied.");
  },
};

async function replayAll(queue, error, started, progress) {
  const done = { replayed: 0, failed: [] };
  let cursor = "";
  do {
    // Only what was dead when the operator agreed: a letter that dies again meanwhile is not replayed for ever.
    const older = (Date.now() - started) / 1000;
    const body = { error_type: error, older_than_seconds: cursor ? older : 0, cursor };
    const answer = await post(queueUrl(queue, "/dead/replay"), body);
    done.replayed += answer.replayed;
    done.failed.push(...answer.failed);
    cursor = answer.next_cursor;
    progress(`${count(done.replayed)} replayed…`);
  } while (cursor);
  return done;
}

function report({ replayed, failed }) {
  if (!failed.length) return tell(`${plural(replayed, "dead letter")} replayed.`);
  const first = `${failed[0].path}: ${failed[0].message}`;
  return tell(`${plural(replayed, "dead letter")} replayed, ${count(failed.length)} not: ${first}`, "bad");
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-action]");
  const action = button && actions[button.dataset.action];
  if (!action) return;
  try {
    await action(button.dataset);
  } catch (error) {
    tell(`${error.message} ${error.wayOut ?? ""}`, "bad");
  }
  refresh();
});

export async function payload(queue, path) {
  return (await get(queueUrl(queue, "/message", { path, body: 1 }))).body;
}
