// The page: a form, the link that carries its question, and the answer, which is computed in advance or by a worker.
// Text from links, forms and answers becomes text of the page (textContent), never markup.
import { drawing, element, fill } from "./elements.js";

const FIELDS = ["model", "method", "rank", "size", "frames", "on", "settings"];
const DEFAULTS = { method: "lora" };
const MOST_LETTERS = 400;
const byId = (id) => document.getElementById(id);
const form = byId("form");

let planner = null;
let worker = null;
let asked = 0;

/** The part of a link behind the #, as `Question.fragment` in Python writes it. */
function fragmentOf(question) {
  const kept = FIELDS.filter((name) => question[name] !== (DEFAULTS[name] ?? ""));
  return new URLSearchParams(kept.map((name) => [name, question[name]])).toString();
}

function questionInLink() {
  const given = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries(FIELDS.map((name) => [name, (given.get(name) ?? "").trim().slice(0, MOST_LETTERS)]));
}

function questionInForm() {
  const question = Object.fromEntries(FIELDS.map((name) => [name, form.elements[name].value.trim()]));
  if (!modelOf(question)?.is_video) question.frames = "";
  if (!methodOf(question)?.has_rank) question.rank = "";
  return question;
}

const modelOf = (question) => planner.models.find((model) => model.name === question.model);
const methodOf = (question) => planner.methods.find((method) => method.name === question.method);

function options(select, groups) {
  const kinds = Object.entries(groups).map(([label, pairs]) => {
    const group = element("optgroup");
    group.label = label;
    fill(group, pairs.map(([value, text]) => new Option(text, value)));
    return group;
  });
  fill(select, kinds);
}

function grouped(rows, groupOf, pairOf) {
  const groups = {};
  for (const row of rows) (groups[groupOf(row)] ??= []).push(pairOf(row));
  return groups;
}

function offerChoices() {
  options(form.elements.model, grouped(planner.models,
    (model) => (!model.is_trainable ? "Planned, not trained by Foretune yet" : model.is_video ? "Video" : "Images"),
    (model) => [model.name, model.name]));
  fill(form.elements.method, planner.methods.map(({ name, title }) =>
    new Option(title.charAt(0).toUpperCase() + title.slice(1), name)));
  options(form.elements.on, {
    "I have": planner.memory_sizes.map((size) => [size, size.replace("GiB", " GB on an unknown card")]),
    ...grouped(planner.cards, (card) => card.vendor, (card) => [card.name, card.title]),
  });
}

/** Shows a question in the form. What a link names and no list has is added as it is, and judged by the planner. */
function showQuestion(question) {
  for (const name of FIELDS) {
    const field = form.elements[name];
    if (field instanceof HTMLSelectElement && ![...field.options].some((option) => option.value === question[name])) {
      field.append(new Option(question[name], question[name]));
    }
    field.value = question[name];
  }
  const model = modelOf(question);
  byId("frames-label").hidden = !model?.is_video;
  byId("rank-label").hidden = !methodOf(question)?.has_rank;
  form.elements.size.placeholder = model?.size ?? "1024";
  form.elements.frames.placeholder = model?.frames ?? "";
}

function status(text, busy = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("busy", busy);
  byId("stop").hidden = !busy;
  byId("answer").classList.toggle("old", busy);
}

function notice(text) {
  byId("notice").textContent = text;
  byId("notice").hidden = !text;
}

async function ask(question) {
  const number = ++asked;
  showQuestion(question);
  history.replaceState(null, "", `#${fragmentOf(question)}`);
  notice("");
  const file = Object.hasOwn(planner.answers, fragmentOf(question)) ? planner.answers[fragmentOf(question)] : null;
  if (file) {
    const found = await fetch(`answers/${file}`).then((reply) => (reply.ok ? reply.json() : null)).catch(() => null);
    if (number !== asked) return;
    if (found) {
      show(found, question);
      status("Computed in advance with the same planner.");
      return;
    }
  }
  status(worker ? "Planning …" : `Loading the planner (${planner.size_mb} MB, once) …`, true);
  worker ??= startWorker();
  worker.postMessage({ number, question });
}

/** The worker is made from a blob so that this page's content security policy holds in it, too. */
function startWorker() {
  const source = `import ${JSON.stringify(new URL("worker.js", location.href).href)};`;
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const started = new Worker(url, { type: "module" });
  started.onmessage = ({ data }) => heard(data);
  started.onerror = (event) => broken(event.message ?? "the worker could not be started");
  started.postMessage({ base: new URL("assets/", location.href).href, traces: planner.traces });
  return started;
}

function heard({ number, progress, answer, failure }) {
  if (failure) {
    broken(failure);
  } else if (progress && byId("status").classList.contains("busy")) {
    status(progress, true);
  } else if (answer && number === asked) {
    show(answer, questionInForm());
    status(answer.problems ? "" : "Computed in this browser.");
  }
}

function broken(why) {
  stopWorker();
  status("");
  notice(`The planner stopped: ${why}\nThe same on the command line: pip install foretune`);
}

function stopWorker() {
  worker?.terminate();
  worker = null;
}

function show(answer, question) {
  byId("answer").hidden = Boolean(answer.problems);
  if (answer.problems) {
    notice(answer.problems.join("\n"));
    return;
  }
  byId("sentence").className = `sentence ${{ fits: "fits", tight: "tight" }[answer.verdict] ?? "fails"}`;
  byId("sentence").textContent = answer.sentence;
  byId("subject").textContent = answer.subject;
  fill(byId("warnings"), answer.warnings.map((text) => element("li", {}, text)));
  fill(byId("figures"), answer.figures.map(([name, text]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, text))));
  fill(byId("bars"), [drawing(answer.drawings.wide), drawing(answer.drawings.narrow)]);
  fill(byId("legend"), answer.drawings.legend.map(([part, colour]) =>
    element("li", {}, element("span", { class: `swatch ${colour}` }), part)));
  fill(byId("time"), answer.time.map((line) => element("p", {}, line)));
  fill(byId("advice"), [
    ...menu("To make it fit", answer.remedies, question),
    ...(answer.larger_card ? [largerCard(answer.larger_card, question)] : []),
    ...menu("To use the memory that is left", answer.headroom, question),
  ]);
  byId("experiment").textContent = answer.experiment;
  byId("command").textContent = answer.command;
  fill(byId("fine"), answer.fine_print.map(([title, lines]) => element("div", {}, element("h3", {}, title),
    element("ul", {}, ...lines.map((line) => element("li", {}, line))))));
}

function menu(title, remedies, question) {
  if (!remedies.length) return [];
  const rows = remedies.map((remedy) => element("li", {},
    element("div", {}, element("code", {}, remedy.settings), " ",
      element("span", { class: "memory" }, `(${remedy.memory})`)),
    element("p", {}, remedy.words),
    button("Plan with it", () => ask(withSettings(question, remedy.settings)))));
  return [element("h3", {}, title), element("ul", { class: "remedies" }, ...rows)];
}

function largerCard(name, question) {
  return element("p", {}, `It fits unchanged on ${name}. `, button("Plan for it", () => ask({ ...question, on: name })));
}

/** Settings win over those of the same key that were typed before. */
function withSettings(question, added) {
  const keyOf = (word) => word.split("=")[0];
  const words = added.split(" ");
  const changed = { ...question };
  const own = { "method.kind": "method", "method.rank": "rank", "data.resolution": "size", "data.num_frames": "frames" };
  const typed = words.filter((word) => !(keyOf(word) in own));
  for (const word of words.filter((word) => keyOf(word) in own)) changed[own[keyOf(word)]] = word.split("=")[1];
  const kept = question.settings.split(/\s+/).filter((word) => word && !words.some((w) => keyOf(w) === keyOf(word)));
  return { ...changed, settings: [...kept, ...typed].join(" ") };
}

function button(text, pressed) {
  const made = element("button", { type: "button" }, text);
  made.addEventListener("click", pressed);
  return made;
}

async function copy(event, text) {
  const pressed = event.currentTarget;
  const label = pressed.textContent;
  pressed.textContent = await navigator.clipboard.writeText(text).then(() => "Copied", () => "Select and copy it");
  setTimeout(() => { pressed.textContent = label; }, 1500);
}

function download() {
  const link = element("a", { download: "experiment.yaml" });
  link.href = URL.createObjectURL(new Blob([byId("experiment").textContent], { type: "application/yaml" }));
  link.click();
  URL.revokeObjectURL(link.href);
}

async function start() {
  planner = await fetch("planner.json").then((reply) => (reply.ok ? reply.json() : null)).catch(() => null);
  if (!planner) {
    form.hidden = true;
    notice("This copy of the site was built without the planner. To build it: make planner\n"
      + "The same on the command line: pip install foretune, then foretune plan flux.1-dev --on rtx-4090");
    return;
  }
  byId("version").textContent = `Foretune ${planner.version}.`;
  offerChoices();
  const first = Object.fromEntries(new URLSearchParams(Object.keys(planner.answers)[0]));
  const read = () => {
    const given = questionInLink();
    const usual = given.model || given.on ? { model: "flux.1-dev", on: "rtx-4090" } : first;
    return { ...given, model: given.model || usual.model, on: given.on || usual.on, method: given.method || "lora" };
  };
  form.addEventListener("change", () => ask(questionInForm()));
  form.addEventListener("submit", (event) => { event.preventDefault(); ask(questionInForm()); });
  window.addEventListener("hashchange", () => ask(read()));
  byId("stop").addEventListener("click", () => { asked += 1; stopWorker(); status("Stopped."); });
  byId("download").addEventListener("click", download);
  byId("copy-file").addEventListener("click", (event) => copy(event, byId("experiment").textContent));
  byId("copy-command").addEventListener("click", (event) => copy(event, byId("command").textContent));
  byId("copy-link").addEventListener("click", (event) => copy(event, location.href));
  await ask(read());
}

start();
