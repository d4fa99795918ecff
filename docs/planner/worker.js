// Runs the planner: Python as WebAssembly, with Foretune and its packages as bytecode. Everything is from this site.

const SITE_PACKAGES = "/lib/python3.14/site-packages";
const TRACES = `${SITE_PACKAGES}/foretune/trace/data`;
const PACKED = ["pyodide.asm.wasm", "python_stdlib.zip", "packages.zip"];
const TYPES = { wasm: "application/wasm", zip: "application/zip" };

let base = null;
let models = new Set();
let loading = null;
let answer = null;
let turn = Promise.resolve();
let newest = 0;

async function fetched(name) {
  const reply = await fetch(new URL(name, base));
  if (!reply.ok) throw new Error(`${name} could not be loaded (HTTP ${reply.status})`);
  return reply;
}

/** Large files are served compressed by gzip, so that they are small also where the server does not compress. */
function unpackLargeFiles() {
  const plain = globalThis.fetch;
  globalThis.fetch = async (resource, ...others) => {
    const address = String(resource?.url ?? resource);
    if (!PACKED.some((name) => address.endsWith(`/${name}`))) return plain(resource, ...others);
    const packed = await plain(`${address}.gz`, ...others);
    if (!packed.ok) return packed;
    const body = packed.body.pipeThrough(new DecompressionStream("gzip"));
    return new Response(body, { headers: { "Content-Type": TYPES[address.split(".").pop()] } });
  };
}

async function load() {
  unpackLargeFiles();
  const [{ loadPyodide }, packages] = await Promise.all([
    import(new URL("pyodide.mjs", base)),
    fetched("packages.zip").then((reply) => reply.arrayBuffer()),
  ]);
  const python = await loadPyodide({ indexURL: base.href });
  postMessage({ progress: "Starting the planner …" });
  python.unpackArchive(packages, "zip", { extractDir: SITE_PACKAGES });
  const module = python.runPython(`
import gc, json
# Hundreds of thousands of objects that all stay for one answer.
gc.disable()
from tools.browser_planner.answering import answer

def as_text(question):
    found = json.dumps(answer(json.loads(question)))
    gc.collect()
    return found

as_text
`);
  answer = (question) => JSON.parse(module(JSON.stringify(question)));
  return python;
}

/** Traces of a model come when it is asked about first. */
async function loadTraces(python, model) {
  if (!models.has(model)) return;
  models.delete(model);
  const packed = await fetched(`traces/${encodeURIComponent(model)}.zip`).then((reply) => reply.arrayBuffer());
  python.unpackArchive(packed, "zip", { extractDir: TRACES });
}

async function respond(number, question) {
  const python = await (loading ??= load());
  // Someone who types asks often; only the last question is worth a second of computing. It may be waiting by now.
  await new Promise((resolve) => { setTimeout(resolve); });
  if (number !== newest) return;
  postMessage({ progress: "Planning …" });
  await loadTraces(python, question.model);
  postMessage({ number, answer: answer(question) });
}

onmessage = ({ data }) => {
  if (data.base) {
    base = new URL(data.base);
    models = new Set(data.traces);
    return;
  }
  newest = data.number;
  turn = turn.then(() => respond(data.number, data.question)).catch((error) => {
    postMessage({ failure: String(error?.message ?? error) });
  });
};
