// Compiles a folder of Python files to bytecode, with the Python that will run it, and packs it as a zip. The zip is not
// compressed in itself: as a whole it becomes smaller, and opens faster.
// Without it, the browser would compile two megabytes of source each time the page is opened: about 5 s of a processor.
// Usage: node compile.mjs PYODIDE_FOLDER (FOLDER ZIP)...
import { writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { join } from "node:path";

const [pyodideFolder, ...pairs] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(join(pyodideFolder, "pyodide.mjs")));
const pyodide = await loadPyodide({ indexURL: pyodideFolder });
const compiled = pyodide.runPython(`
import pathlib, py_compile, zipfile

def compiled(root, archive):
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as packed:
        for path in sorted(pathlib.Path(root).rglob("*")):
            if path.is_dir():
                continue
            name = path.relative_to(root)
            if path.suffix == ".py":
                code = path.with_suffix(".pyc")
                py_compile.compile(str(path), str(code), dfile=str(name), doraise=True, invalidation_mode=mode)
                path, name = code, name.with_suffix(".pyc")
            # The same files give the same archive.
            entry = zipfile.ZipInfo(str(name), date_time=(2020, 1, 1, 0, 0, 0))
            packed.writestr(entry, path.read_bytes())

compiled
`);
for (let i = 0; i < pairs.length; i += 2) {
  pyodide.FS.mkdirTree(`/in${i}`);
  pyodide.FS.mount(pyodide.FS.filesystems.NODEFS, { root: pairs[i] }, `/in${i}`);
  compiled(`/in${i}`, `/out${i}.zip`);
  writeFileSync(pairs[i + 1], pyodide.FS.readFile(`/out${i}.zip`));
}
