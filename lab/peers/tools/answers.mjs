// The counterpart of answers.py for transformers.js: classify texts with a file in its own pipeline.
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const answer = JSON.parse(process.argv[2]);
const { env, pipeline } = await import(pathToFileURL(`${answer.packages}/@huggingface/transformers/dist/transformers.node.mjs`));
env.allowRemoteModels = false;
env.localModelPath = answer.parent;
const options = { dtype: answer.dtype, session_options: { intraOpNumThreads: 1, interOpNumThreads: 1 } };
const run = await pipeline("text-classification", answer.name, options);
console.log(JSON.stringify({ "transformers.js": env.version, node: process.version }));
for await (const line of createInterface({ input: process.stdin })) {
  const texts = JSON.parse(line);
  const labels = [];
  const times = [];
  const before = process.cpuUsage();
  for (const text of texts) {
    const start = performance.now();
    labels.push((await run(text))[0].label);
    times.push(performance.now() - start);
  }
  const used = process.cpuUsage(before);
  times.sort((a, b) => a - b);
  console.log(JSON.stringify({ labels, ms: times[times.length >> 1], cpu_ms: (used.user + used.system) / 1e3 / texts.length }));
}
