// Numbers and times as people read them; the same words as the command line.

const COUNT = new Intl.NumberFormat("en");
const TIME = { hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" };

export function count(number, exact = true) {
  return (exact ? "" : "≥ ") + COUNT.format(number);
}

// A count of a queue, of which not everything may be known: how many lines a batch has, or what a LIST left out.
export function counted(stats, name) {
  return count(stats[name], isExact(stats, name));
}

export function isExact(stats, ...names) {
  return stats.exact && !names.some((name) => stats.at_least?.includes(name));
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

// How many lines a batch had is not always known.
export function diedLines(dead, total) {
  return total ? `${count(dead)} of ${plural(total, "line")} died` : `${plural(dead, "line")} died`;
}

export function age(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 120) return `${whole} s`;
  if (whole < 7200) return `${Math.floor(whole / 60)} min`;
  if (whole < 172800) return `${Math.floor(whole / 3600)} h`;
  return `${Math.floor(whole / 86400)} d`;
}

export function ago(instant, now) {
  return instant ? `${age((Date.parse(now) - Date.parse(instant)) / 1000)} ago` : "never";
}

// Day, time and zone: an operator compares it with a log of another day, written in another place.
export function clock(instant) {
  if (!instant) return "–";
  const at = new Date(instant);
  if (Number.isNaN(at.getTime())) return String(instant);
  return `${at.toLocaleDateString("en-CA")} ${at.toLocaleTimeString("en-GB", TIME)}`;
}

// A duration with as many digits as help; `age` is for what is long.
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0 s";
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 99.5) return `${value < 9.95 ? value.toFixed(1) : Math.round(value)} s`;
  return age(value);
}

export function percent(part) {
  const shown = part * 100;
  // 99.996 % is not all of it.
  if (shown > 99.9 && shown < 100) return "> 99.9 %";
  return `${Number.isInteger(shown) ? shown : shown.toFixed(1)} %`;
}

export function bytes(size) {
  if (size === null || size === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0;
  while (size >= 1024 && step < units.length - 1) {
    size /= 1024;
    step += 1;
  }
  return `${step ? size.toFixed(1) : size} ${units[step]}`;
}

export function dollars(amount) {
  if (amount === 0) return "$0";
  if (amount < 0.01) return "< $0.01";
  return `$${amount.toFixed(2)}`;
}

// The cost of an hour may be a thousandth of a cent.
export function money(amount) {
  if (amount === null || amount === undefined) return "–";
  if (amount === 0 || amount >= 0.01) return dollars(amount);
  return `$${amount.toFixed(Math.min(8, 1 - Math.floor(Math.log10(amount))))}`;
}

export function rate(perMinute) {
  return perMinute >= 10 || Number.isInteger(perMinute) ? count(Math.round(perMinute)) : perMinute.toFixed(1);
}

export const HEALTH = {
  healthy: "Healthy", idle: "Idle", paused: "Paused", stuck: "Stuck", behind: "Behind", failing: "Failing", unswept: "Unswept",
  unknown: "Unknown",
};

export const FLOW_STATES = {
  running: "Running", completed: "Completed", failed: "Failed", cancelled: "Cancelled", unknown: "Unknown",
};

export const PARTITION_STATES = {
  free: "Free", open: "Waits for a retry", held: "Held", overdue: "Overdue", corrupt: "Corrupt",
};

// One name for each state, in tables, tabs, sums and histories alike.
export const STATES = {
  pending: "Pending", delayed: "Delayed", processing: "Processing", waiting: "Waiting for a retry", burying: "Being buried",
  completed: "Completed", cancelled: "Cancelled", dead: "Dead", corrupt: "Corrupt",
};

const { pending, delayed, processing, waiting, completed, cancelled, dead } = STATES;
export const TABS = {
  pending, delayed, processing, waiting, completed, cancelled, dead, tail: "Live tail", partitions: "Partitions",
  workers: "Workers", runs: "Spark runs", schedules: "Schedules", settings: "Settings",
};
