// Numbers and times as people read them; the same words as the command line.

const COUNT = new Intl.NumberFormat("en");

export function count(number, exact = true) {
  return (exact ? "" : "≥ ") + COUNT.format(number);
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
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

export function clock(instant) {
  if (!instant) return "–";
  const at = new Date(instant);
  const day = at.toLocaleDateString("en-CA");
  const time = at.toLocaleTimeString("en-GB");
  return day === new Date().toLocaleDateString("en-CA") ? time : `${day} ${time}`;
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

export const STATES = {
  pending: "Pending", delayed: "Delayed", processing: "Processing", waiting: "Waiting for a retry",
  completed: "Completed", cancelled: "Cancelled", dead: "Dead letters", partitions: "Partitions", workers: "Workers", runs: "Spark runs", schedules: "Schedules", settings: "Settings",
};
