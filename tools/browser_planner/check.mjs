// Answers a question with the packed files, as the page will, and prints the answer.
// Usage: node check.mjs PYODIDE_FOLDER LIBRARY_ZIP PACKAGES_ZIP TRACES_ZIP QUESTION
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [pyodideFolder, library, packages, traces, question] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(join(pyodideFolder, "pyodide.mjs")));
const python = await loadPyodide({ indexURL: pyodideFolder, stdLibURL: library });
const bytes = (path) => new Uint8Array(readFileSync(path));
const sitePackages = "/lib/python3.14/site-packages";
python.unpackArchive(bytes(packages), "zip", { extractDir: sitePackages });
python.unpackArchive(bytes(traces), "zip", { extractDir: `${sitePackages}/foretune/trace/data` });
python.globals.set("question", question);
try {
  console.log(python.runPython(`
import json
from tools.browser_planner.answering import answer
json.dumps(answer(json.loads(question)))
`));
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
