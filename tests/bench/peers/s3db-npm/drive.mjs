// Runs the S3 queue plugin for tests/bench/peers/s3db.py: one JSON command a line in, one JSON answer a line out.
import { registerHooks } from "node:module";
import { createInterface } from "node:readline";

// Its own HTTP client is imported even where another one is given, so the names have to be there.
const names = "createClient expandHTTP2Options Http2Error parseHttp2Error createHttp2MetricsHooks getGlobalHttp2Metrics";
const nothing = "data:text/javascript," + names.split(" ").map((name) => `export const ${name} = undefined;`).join("");
registerHooks({
  resolve: (name, context, next) => (name === "recker" ? { url: nothing, shortCircuit: true } : next(name, context)),
});
const { S3db, S3Client } = await import("s3db.js/lite");
const { S3QueuePlugin } = await import("s3db.js/plugins/s3-queue.plugin");
const { S3Client: Sdk } = await import("@aws-sdk/client-s3");

let port, jobs, plugin;

const commands = {
  // Connects, creates the queue. Requests go to `port` until another one is named.
  async open({ at, bucket, prefix, concurrency, settings }) {
    port = at;
    const sdk = new Sdk({
      endpoint: `http://127.0.0.1:${at}`,
      region: "us-east-1",
      forcePathStyle: true,
      credentials: { accessKeyId: "test", secretAccessKey: "test" },
      requestHandler: { httpAgent: { keepAlive: true, maxSockets: 200 } },
    });
    const elsewhere = (next) => (call) => {
      call.request.port = port;
      return next(call);
    };
    sdk.middlewareStack.add(elsewhere, { step: "build", priority: "high" });
    const connectionString = `http://test:test@127.0.0.1:${at}/${bucket}/${prefix}?forcePathStyle=true`;
    const client = new S3Client({ connectionString, AwsS3Client: sdk, logLevel: "silent" });
    const database = new S3db({ connectionString, client, logLevel: "silent" });
    await database.connect();
    const attributes = { id: "string|optional", payload: "string|required" };
    jobs = await database.createResource({ name: "jobs", attributes });
    const quiet = { autoStart: false, autoAcknowledge: true, logLevel: "silent" };
    plugin = new S3QueuePlugin({ resource: "jobs", deadLetterResource: "dead", concurrency, ...quiet, ...settings });
    await plugin.install(database);
    return {};
  },

  async enqueue({ messages, body }) {
    const began = performance.now();
    for (let left = messages; left > 0; left -= 10) {
      await Promise.all(Array.from({ length: Math.min(left, 10) }, () => jobs.enqueue({ payload: body })));
    }
    return { seconds: (performance.now() - began) / 1000 };
  },

  // Processes until `messages` have ended (completed or dead), or `seconds` after the first handler started.
  async process({ at, messages, concurrency, seconds, patience, failures }) {
    port = at;
    let ended = 0;
    let first = 0;
    const failed = new Map();
    plugin.on("plg:s3-queue:message-completed", () => (ended += 1));
    plugin.on("plg:s3-queue:message-dead", () => (ended += 1));
    const handler = async (record) => {
      first ||= performance.now();
      const before = failed.get(record.id) ?? 0;
      if (before < failures) {
        failed.set(record.id, before + 1);
        throw new Error("as told");
      }
    };
    const began = performance.now();
    await jobs.startProcessing(handler, { concurrency });
    const isOver = () => ended >= messages || performance.now() > (first ? first + seconds * 1000 : began + patience * 1000);
    // Where it is slower than one message in all that time, it is given until its first.
    while (!isOver() || (ended === 0 && performance.now() < began + patience * 1000)) {
      await new Promise((resume) => setTimeout(resume, 5));
    }
    return { ended, seconds: (performance.now() - (first || began)) / 1000 };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { command, ...options } = JSON.parse(line);
  let answer;
  try {
    answer = await commands[command](options);
  } catch (error) {
    answer = { error: String(error.stack) };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
process.exit();
