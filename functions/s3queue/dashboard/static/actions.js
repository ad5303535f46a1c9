// What an operator can do: pause, resume, cancel, release, replay, delete. Buttons carry data, never code; a click listener reads it.

import { del, get, post, queueUrl } from "./api.js";
import { ask, tell } from "./dialog.js";
import { count, plural } from "./words.js";

let refresh = () => {};

export function onChanged(callback) {
  refresh = callback;
}

// For what is done elsewhere.
export const changed = () => refresh();

const actions = {
  async pause({ queue }) {
    const done = await ask({
      title: `Pause ${queue}?`,
      says: ["Within ten seconds, workers stop claiming. Running messages finish; new messages wait."],
      button: "Pause",
      perform: () => post(queueUrl(queue, "/pause")),
    });
    if (done) tell(`${queue} is paused.`);
  },

  async resume({ queue }) {
    const done = await ask({
      title: `Resume ${queue}?`,
      says: ["Within ten seconds, workers claim messages again."],
      button: "Resume",
      perform: () => post(queueUrl(queue, "/resume")),
    });
    if (done) tell(`${queue} is running again.`);
  },

  async "breaker-open"({ queue }) {
    const done = await ask({
      title: `Open the breaker of ${queue}?`,
      says: ["Within ten seconds, workers stop claiming, until the breaker is closed. Running messages finish."],
      button: "Open",
      perform: () => post(queueUrl(queue, "/breaker"), { state: "open" }),
    });
    if (done) tell(`The breaker of ${queue} is open.`);
  },

  async "breaker-auto"({ queue }) {
    const done = await ask({
      title: `Close the breaker of ${queue}?`,
      says: ["Within ten seconds, workers claim messages again. If they keep failing, it opens by itself."],
      button: "Close",
      perform: () => post(queueUrl(queue, "/breaker"), { state: "auto" }),
    });
    if (done) tell(`The breaker of ${queue} is closed.`);
  },

  async "replay-group"({ queue, error, message }) {
    const started = Date.now();
    const group = message === undefined ? { error_type: error } : { error_type: error, message };
    const planned = await post(queueUrl(queue, "/dead/replay"), { ...group, dry_run: true });
    const many = planned.next_cursor ? `at least ${count(planned.selected)}` : count(planned.selected);
    const done = await ask({
      title: `Replay ${error} in ${queue}?`,
      says: [
        `${many} dead ${planned.selected === 1 ? "letter" : "letters"} with the error ${error} will become ` +
          "messages again, with all their attempts.", ...(message ? [message] : []),
        "If the cause of the error is not repaired, they will die again.",
      ],
      button: planned.selected === 1 ? "Replay 1 letter" : `Replay ${many} letters`,
      perform: (progress) => replayAll(queue, group, started, progress),
    });
    if (done) report(done);
  },

  async "delete-group"({ queue, error, message }) {
    const group = message === undefined ? { error_type: error } : { error_type: error, message };
    const planned = await post(queueUrl(queue, "/dead/delete"), { ...group, dry_run: true });
    const many = `${planned.next_cursor ? "at least " : ""}${plural(planned.selected, "dead letter")}`;
    const done = await ask({
      title: `Delete ${error} in ${queue}?`,
      says: [...(message ? [message] : []),
        `${many} will be deleted for good; of a batch, the lines with this error. Their records stay until their retention is over.`],
      button: "Delete for good",
      danger: true,
      perform: (progress) => deleteAll(queue, group, progress),
    });
    if (done !== null) tell(`${plural(done, "dead letter")} deleted.`);
  },

  async "acknowledge-group"({ queue, error, message }) {
    const done = await ask({
      title: `Acknowledge ${error} in ${queue}?`,
      says: [
        ...(message ? [message] : []),
        "These dead letters stay, and can be replayed; they do not count for the verdict any more. " +
          "What dies later counts again.",
      ],
      button: "Acknowledge",
      perform: (progress) => acknowledgeAll(queue, { error_type: error, message }, progress),
    });
    if (done) tell(`${plural(done, "dead letter")} acknowledged.`);
  },

  async "replay-one"({ queue, path }) {
    const done = await ask({
      title: "Replay this dead letter?",
      says: [path, "It becomes a message again, with all its attempts."],
      button: "Replay",
      perform: () => post(queueUrl(queue, "/dead/replay"), { path }),
    });
    if (done) tell(`Replayed ${path}.`);
  },

  async "replay-to"({ queue, path }) {
    let to = "";
    const done = await ask({
      title: "Replay this dead letter into another queue?",
      says: [path, "It becomes a message of that queue, once, and its letter goes. Of a batch, all its dead lines go."],
      field: "The other queue's name",
      button: "Replay there",
      perform: (progress, given) => post(queueUrl(queue, "/dead/replay"), { path, to: to = given }),
    });
    if (done) tell(`Replayed ${path} into ${to}.`);
  },

  async "replay-completed"({ queue, path }) {
    const done = await ask({
      title: "Run this message again?",
      says: [path, "Its payload was kept. It becomes a new message of its name, with all its attempts; its handler runs again."],
      button: "Run again",
      perform: () => post(queueUrl(queue, "/message/replay", { path })),
    });
    if (done) tell(done.created ? `${path} runs again.` : `${path} was to run again already.`);
  },

  async "retry-one"({ queue, path }) {
    const done = await ask({
      title: "Retry this message now?",
      says: [path, "It waits for its next attempt. It is tried within seconds instead, and no attempt is used by that."],
      button: "Retry now",
      perform: () => post(queueUrl(queue, "/message/retry", { path })),
    });
    if (done) tell(`${path} is tried now, with ${plural(done.attempts_left, "attempt")} left.`);
  },

  async "delete-one"({ queue, path }) {
    const done = await ask({
      title: "Delete this dead letter?",
      says: [path, "The message is deleted for good. Its record stays until its retention is over."],
      button: "Delete for good",
      danger: true,
      perform: () => del(queueUrl(queue, "/dead", { path })),
    });
    if (done) tell(`Deleted ${path}.`);
  },

  async "cancel-one"({ queue, path }) {
    const done = await ask({
      title: "Cancel this message?",
      says: [path, "If it waits, it never runs. If it is running, its handler is told at its next check, and what it " +
        "returns does not count. The payload is deleted."],
      keep: "Keep it",
      button: "Cancel the message",
      danger: true,
      perform: () => post(queueUrl(queue, "/message/cancel", { path })),
    });
    if (!done) return;
    if (done.outcome === "cancelled") tell(`Cancelled ${path}.`);
    else tell(`${path} was ${done.outcome} before.`, "bad");
  },

  async "release-one"({ queue, path, worker }) {
    const done = await ask({
      title: "Take this message from its worker?",
      says: [path, `${worker} holds it. Do this if that worker is known to be dead: the message runs again at once, and ` +
        "no attempt is used. Should the worker be alive, its handler runs beside the next one."],
      button: "Release",
      danger: true,
      perform: () => post(queueUrl(queue, "/message/release", { path })),
    });
    if (done) tell(`Released ${path}, which ${done.worker} held.`);
  },

  async "pause-schedule"({ queue, name }) {
    const done = await ask({
      title: `Pause the schedule ${name}?`,
      says: ["No more messages come. One that is in the queue already, minutes before its time, still runs."],
      button: "Pause",
      perform: () => post(queueUrl(queue, `/schedules/${encodeURIComponent(name)}/pause`)),
    });
    if (done) tell(`The schedule ${name} is paused.`);
  },

  async "resume-schedule"({ queue, name }) {
    const done = await ask({
      title: `Resume the schedule ${name}?`,
      says: ["Messages come again. What would have come meanwhile does not."],
      button: "Resume",
      perform: () => post(queueUrl(queue, `/schedules/${encodeURIComponent(name)}/resume`)),
    });
    if (done) tell(`The schedule ${name} is active again.`);
  },

  async "cancel-flow"({ flow }) {
    const done = await ask({
      title: `Cancel the flow ${flow}?`,
      says: ["No further step comes. What waits never runs; what is running is told at its next check, and what it returns " +
        "does not count. The payloads are deleted."],
      field: "Why, for whoever looks at it later",
      keep: "Keep it",
      button: "Cancel the flow",
      danger: true,
      perform: (progress, given) => post(`/api/flows/${encodeURIComponent(flow)}/cancel` +
        (given ? `?reason=${encodeURIComponent(given)}` : "")),
    });
    if (!done) return;
    if (done.state === "cancelled") tell(`The flow ${flow} is cancelled.`);
    else tell(`The flow ${flow} was ${done.state} before.`, "bad");
  },

  async "copy"({ text }) {
    await navigator.clipboard?.writeText(text);
    tell("Copied.");
  },
};

async function acknowledgeAll(queue, group, progress) {
  let selected = 0;
  let cursor = "";
  do {
    const answer = await post(queueUrl(queue, "/dead/acknowledge"), { ...group, cursor });
    selected += answer.selected;
    cursor = answer.next_cursor;
    progress(`${count(selected)} acknowledged…`);
  } while (cursor);
  return selected;
}

async function deleteAll(queue, group, progress) {
  let deleted = 0;
  let cursor = "";
  do {
    const answer = await post(queueUrl(queue, "/dead/delete"), { ...group, cursor });
    deleted += answer.deleted;
    cursor = answer.next_cursor;
    progress(`${count(deleted)} deleted…`);
  } while (cursor);
  return deleted;
}

async function replayAll(queue, group, started, progress) {
  const done = { replayed: 0, failed: [] };
  let cursor = "";
  do {
    // Only letters that were dead when the operator agreed: one that dies again meanwhile must not be replayed for ever.
    const older = (Date.now() - started) / 1000;
    const body = { ...group, older_than_seconds: cursor ? older : 0, cursor };
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
  return tell(`${plural(replayed, "dead letter")} replayed, ${count(failed.length)} failed: ${first}`, "bad");
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
