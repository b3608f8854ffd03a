// Drives llama.cpp through node-llama-cpp for the Go program beside it; one JSON line an answer.
//   node llamacpp.mjs speed FILE THREADS PREFILL DECODE
//   node llamacpp.mjs logprobs FILE THREADS id,id,...
import {getLlama, LlamaLogLevel} from "node-llama-cpp";
import {readFileSync} from "node:fs";
const [mode, file, threadsText, ...rest] = process.argv.slice(2);
const threads = Number(threadsText);
const llama = await getLlama({gpu: false, build: "never", maxThreads: threads, logLevel: LlamaLogLevel.error});
const model = await llama.loadModel({modelPath: file, gpuLayers: 0, useMmap: false});
const context = await model.createContext({contextSize: 1024, batchSize: 512, threads});
const sequence = context.getSequence();
const answer = x => process.stdout.write(JSON.stringify(x) + "\n");
if (mode === "speed") {
  const [prefill, decode] = rest.map(Number);
  const tokens = Array.from({length: prefill}, (_, i) => 300 + (i * 7919) % 31000);
  for (let round = 0; round < 2; round++) { // the first warms up
    await sequence.clearHistory();
    const t0 = performance.now();
    await sequence.evaluateWithoutGeneratingNewTokens(tokens);
    const t1 = performance.now();
    let n = 0;
    for await (const _ of sequence.evaluate([555], {temperature: 0, yieldEogToken: true})) if (++n >= decode) break;
    const t2 = performance.now();
    if (round === 1) {
      const hwm = Number(/VmHWM:\s+(\d+)/.exec(readFileSync("/proc/self/status", "utf8"))[1]) * 1024;
      answer({prefill: prefill / (t1 - t0) * 1e3, decode: n / (t2 - t1) * 1e3, hwm, system: llama.systemInfo});
    }
  }
} else {
  const options = {temperature: 1, topK: 0, topP: 1, minP: 0};
  const out = await sequence.controlledEvaluate(rest[0].split(",").map(id => [Number(id), {generateNext: {probabilities: true, options}}]));
  answer(out.map(o => [...o.next.probabilities.entries()].sort((a, b) => b[1] - a[1]).slice(0, 16).map(([id, p]) => ({id, logprob: Math.log(p)}))));
}
process.exit(0);
