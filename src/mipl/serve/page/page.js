"use strict";
// The state is the server's answer, the threshold, the filter and the selected bag; everything is rendered from it.

const $ = (id) => document.getElementById(id);
const KEYS = [..."123456789abcdefghijklmnopqrstuvwxyz"]; // one per class, in their order
const PAGE_SIZE = 100; // rows shown at a time

let overview = null; // the answer of GET /bags; the least confident bags are first
let shown = PAGE_SIZE;
let selected = null; // an entry of overview.bags
let requested = null; // the place of the bag whose instances were requested
let displayed = null; // the place of the bag whose instances are displayed
const labelled = []; // entries labelled on this page, the latest last
let saving = Promise.resolve(); // reviews are sent one after another

const percent = (fraction, digits = 1) => `${(100 * fraction).toFixed(digits)}%`;
const threshold = () => Number($("threshold").value);
const decision = (bag) => (bag.confidence >= threshold() ? "report" : "review");
const filter = () => document.querySelector("input[name=filter]:checked").value;
const visible = () => overview.bags.filter((bag) => filter() === "all" || decision(bag) === filter());

function make(tag, text = "", name = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  if (name) element.className = name;
  return element;
}

function draw(svg, tag, attributes, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  svg.append(element);
}

// ---- requests ----------------------------------------------------------------------------------------

async function request(path, options = {}) {
  const headers = { ...options.headers };
  const token = sessionStorage.getItem("token");
  if (token) headers.Authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch {
    throw new Error("The server does not respond.");
  }
  if (response.ok) return response;
  let detail = `The server responded with status ${response.status}.`;
  try {
    detail = (await response.json()).detail;
  } catch { /* the response is not JSON */ }
  const error = new Error(detail);
  error.status = response.status;
  throw error;
}

function showError(error) {
  $("problem").textContent = error ? error.message : "";
  $("problem").hidden = !error;
  if (error && error.status === 401) {
    $("login").hidden = false;
    $("token").focus();
  }
}

async function load() {
  try {
    overview = await (await request("/bags")).json();
  } catch (error) {
    $("progress").textContent = "";
    showError(error);
    return;
  }
  showError(null);
  $("login").hidden = true;
  $("dashboard").hidden = $("keys").hidden = false;
  $("warning").textContent = overview.warning || "";
  $("warning").hidden = !overview.warning;
  const last = KEYS[Math.min(overview.classes.length, KEYS.length) - 1];
  $("label-keys").textContent = overview.classes.length > 9 ? `1–9, a–${last}` : `1–${last}`;
  if (!overview.bags.some((bag) => decision(bag) === "report")) { // start with half of the bags reported
    $("threshold").value = Math.floor(1000 * overview.bags[Math.floor(overview.bags.length / 2)].confidence) / 1000;
  }
  drawReliability();
  makeClasses();
  selected = overview.bags.find((bag) => bag.review === null) || overview.bags[0];
  render();
}

// ---- labels ------------------------------------------------------------------------------------------

function label(place) {
  // not while the selected bag is loading: the reviewer still sees another one
  if (displayed === selected.place && !selected.pending) review(selected, place);
}

function review(bag, label) {
  if (label !== null) labelled.push(bag);
  bag.pending = true;
  saving = saving.then(async () => {
    try {
      const body = { bag_id: bag.bag_id, label: label === null ? null : overview.classes[label] };
      const headers = { "Content-Type": "application/json" };
      await request("/reviews", { method: "POST", headers, body: JSON.stringify(body) });
      bag.review = label; // only now is it on the server's disk
      showError(null);
    } catch (error) {
      showError(new Error(`Bag ${bag.bag_id} was not saved. ${error.message}`));
    }
    bag.pending = false;
    render();
  });
  const rows = visible();
  const after = label === null ? [] : rows.slice(rows.indexOf(bag) + 1);
  selected = after.find((other) => other.review === null && !other.pending) || bag;
  render();
}

function undo() {
  const bag = labelled.pop() || (selected && selected.review !== null ? selected : null);
  if (bag) review(bag, null);
}

async function save() {
  try {
    await saving;
    const link = make("a");
    link.href = URL.createObjectURL(await (await request("/reviews.csv")).blob());
    link.download = "reviews.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    showError(null);
  } catch (error) {
    showError(error);
  }
}

// ---- rendering ---------------------------------------------------------------------------------------

function render() {
  renderPoint();
  renderList();
  renderBag();
  const done = overview.bags.filter((bag) => bag.review !== null).length;
  const pending = overview.bags.filter((bag) => bag.pending).length;
  $("progress").textContent =
    `${done} of ${overview.bags.length} bags reviewed` + (pending ? `, saving ${pending}…` : "");
}

function renderPoint() {
  const reported = overview.bags.filter((bag) => decision(bag) === "report");
  const expected = reported.reduce((sum, bag) => sum + 1 - bag.confidence, 0);
  $("at").textContent = percent(threshold());
  $("coverage").textContent = percent(reported.length / overview.bags.length);
  $("coverage-note").textContent = `${reported.length} of ${overview.bags.length} bags reported`;
  $("expected").textContent = reported.length ? percent(expected / reported.length) : "–";
  const counts = {
    all: overview.bags.length,
    review: overview.bags.length - reported.length,
    report: reported.length,
  };
  for (const input of document.querySelectorAll("input[name=filter]")) {
    input.nextElementSibling.querySelector("b").textContent = counts[input.value];
  }
  $("measured-error").hidden = !overview.measured;
  if (!overview.measured) return;
  // rows are in descending order of threshold: the last one at or above it has the counts
  const at = overview.measured.filter((row) => row.threshold >= threshold()).pop();
  $("measured").textContent = at ? percent(at.errors / at.reported) : "–";
  $("bound").textContent = at
    ? `${at.errors} of ${at.reported} wrong; at most ${percent(at.bound)} with probability ` +
      `${percent(1 - overview.delta, 0)}, if this threshold was fixed beforehand`
    : "no labelled bag is reported";
}

function renderList() {
  const rows = visible();
  const place = rows.indexOf(selected);
  if (place >= shown) shown = place + PAGE_SIZE;
  $("bags").replaceChildren(...rows.slice(0, shown).map((bag) => {
    const row = make("tr");
    const reviewed = bag.pending ? "saving…" : bag.review === null ? "" : overview.classes[bag.review];
    row.append(
      make("td", bag.bag_id),
      make("td", overview.classes[bag.label]),
      make("td", percent(bag.confidence), "number"),
      make("td", decision(bag), decision(bag)),
      make("td", reviewed, "reviewed"),
    );
    if (bag === selected) row.setAttribute("aria-current", "true");
    row.addEventListener("click", () => select(bag));
    return row;
  }));
  $("more").hidden = rows.length <= shown;
  $("more").textContent = `Show more (${rows.length - shown})`;
  $("empty").hidden = rows.length > 0;
  const current = $("bags").children[place];
  if (current) keepInView(current);
}

function keepInView(row) {
  const box = $("scroll");
  const head = box.querySelector("thead").offsetHeight;
  if (row.offsetTop - head < box.scrollTop) box.scrollTop = row.offsetTop - head;
  const below = row.offsetTop + row.offsetHeight - box.clientHeight;
  if (below > box.scrollTop) box.scrollTop = below;
}

function select(bag) {
  selected = bag;
  renderList();
  renderBag();
}

async function renderBag() {
  const bag = selected;
  $("bag-id").textContent = bag.bag_id;
  $("decision").textContent = decision(bag);
  $("decision").className = `chip ${decision(bag)}`;
  for (const button of $("classes").children) {
    button.setAttribute("aria-pressed", String(Number(button.value) === bag.review));
  }
  // only after the review, so that it does not influence the reviewer
  $("truth").textContent =
    bag.truth !== null && bag.review !== null ? `true label: ${overview.classes[bag.truth]}` : "";
  $("bag").setAttribute("aria-busy", String(displayed !== bag.place));
  if (requested === bag.place) return;
  requested = bag.place;
  let about;
  try {
    about = await (await request(`/bags/${bag.place}`)).json();
  } catch (error) {
    requested = null;
    showError(error);
    return;
  }
  if (selected === bag) renderContent(bag, about);
}

function makeClasses() {
  $("classes").replaceChildren(...overview.classes.map((name, j) => {
    const button = make("button");
    button.type = "button";
    button.value = j;
    button.append(make("i"), make(KEYS[j] ? "kbd" : "span", KEYS[j] || ""), make("span", name),
      make("span", "", "percent"));
    button.addEventListener("click", () => label(j));
    return button;
  }));
}

function renderContent(bag, about) {
  displayed = bag.place;
  $("bag").setAttribute("aria-busy", "false");
  const facts = [`${about.size} instance${about.size === 1 ? "" : "s"}`];
  if (about.candidates) facts.push(`candidates: ${about.candidates.join(", ")}`);
  $("facts").textContent = facts.join(" · ");
  [...$("classes").children].forEach((button, j) => {
    const probability = percent(about.probabilities[j]);
    button.style.setProperty("--fraction", probability);
    button.lastElementChild.textContent = probability;
  });
  const hasAttention = about.instances[0].attention !== null;
  const title = about.instances.length < about.size ? `${about.instances.length} of ${about.size} instances` : "Instances";
  $("instances-title").textContent = hasAttention
    ? `${title}, by attention` : `${title} (this method has no attention)`;
  $("instances").className = about.instances[0].pixels ? "" : "vectors";
  const most = Math.max(...about.instances.map((one) => one.attention || 0)) || 1;
  $("instances").replaceChildren(...about.instances.map((one) => instance(one, most)));
  drawMap(about.instances, most);
}

function instance(one, most) {
  const figure = make("figure");
  const caption = make("figcaption", `#${one.number} `);
  if (one.attention !== null) {
    caption.append(make("b", percent(one.attention)));
    const weight = make("span", "", "weight");
    const bar = make("i");
    bar.style.setProperty("--fraction", percent(one.attention / most));
    weight.append(bar);
    caption.append(weight);
  }
  figure.append(one.pixels ? image(one) : strip(one), caption);
  if (one.coordinates) figure.title = `at ${one.coordinates.join(", ")}`;
  return figure;
}

function image(one) {
  const bytes = atob(one.pixels);
  return paint(one.width, one.height, (i) => [0, 1, 2].map((c) => bytes.charCodeAt(3 * i + c)));
}

function strip(one) {
  const most = Math.max(...one.values.map(Math.abs)) || 1;
  const canvas = paint(one.values.length, 1, (i) => {
    const t = one.values[i] / most; // −1 … 1: blue, white, orange
    const end = t < 0 ? [0, 96, 154] : [213, 94, 0];
    return end.map((c) => 255 + Math.abs(t) * (c - 255));
  });
  canvas.title = one.values.length < one.features
    ? `the first ${one.values.length} of ${one.features} features` : `${one.features} features`;
  return canvas;
}

function paint(width, height, colour) {
  const canvas = make("canvas");
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const data = context.createImageData(width, height);
  for (let i = 0; i < width * height; i += 1) data.data.set([...colour(i), 255], 4 * i);
  context.putImageData(data, 0, 0);
  return canvas;
}

function drawMap(instances, most) {
  const map = $("map");
  map.replaceChildren();
  const placed = instances.length > 1 && instances.every((one) => one.coordinates && one.coordinates.length === 2);
  map.toggleAttribute("hidden", !placed); // SVG elements have no such property
  if (!placed) return;
  const xs = instances.map((one) => one.coordinates[0]);
  const ys = instances.map((one) => one.coordinates[1]);
  const wide = Math.max(Math.max(...xs) - Math.min(...xs), Math.max(...ys) - Math.min(...ys)) || 1;
  instances.forEach((one, i) => {
    draw(map, "circle", {
      cx: 12 + 176 * (xs[i] - Math.min(...xs)) / wide,
      cy: 12 + 176 * (ys[i] - Math.min(...ys)) / wide,
      r: 6,
      class: "spot",
      opacity: 0.12 + 0.88 * (one.attention || 0) / most,
    });
  });
}

function drawReliability() {
  $("reliability").hidden = !overview.reliability;
  if (!overview.reliability) return;
  const svg = $("reliability").querySelector("svg");
  svg.replaceChildren();
  const { edges, count, confidence, accuracy, ece } = overview.reliability;
  const x = (v) => 34 + 200 * v;
  const y = (v) => 156 - 148 * v;
  accuracy.forEach((value, r) => {
    if (!count[r]) return;
    draw(svg, "rect", { x: x(edges[r]), y: y(value), width: 200 * (edges[r + 1] - edges[r]), height: 148 * value, class: "accuracy" });
    draw(svg, "line", { x1: x(edges[r]), x2: x(edges[r + 1]), y1: y(confidence[r]), y2: y(confidence[r]), class: "mean" });
  });
  draw(svg, "path", { d: `M${x(0)} ${y(0)}L${x(1)} ${y(1)}`, class: "diagonal" });
  draw(svg, "path", { d: `M${x(0)} ${y(1)}V${y(0)}H${x(1)}`, class: "axis" });
  for (const v of [0, 0.5, 1]) {
    draw(svg, "text", { x: x(v), y: 169, "text-anchor": v === 1 ? "end" : "middle" }, percent(v, 0));
    draw(svg, "text", { x: 30, y: y(v) + 3, "text-anchor": "end" }, percent(v, 0));
  }
  draw(svg, "text", { x: x(0.5), y: 184, "text-anchor": "middle" }, "confidence");
  $("reliability-text").textContent =
    `Bars: accuracy; orange: mean confidence; dashed: perfect calibration. ECE ${percent(ece)}.`;
}

// ---- keys --------------------------------------------------------------------------------------------

function move(by) {
  const rows = visible();
  if (!rows.length) return;
  const place = rows.indexOf(selected);
  select(rows[place < 0 ? 0 : Math.min(Math.max(place + by, 0), rows.length - 1)]);
}

function onKey(event) {
  if (!overview || event.ctrlKey || event.altKey || event.metaKey || event.target.type === "password") return;
  const own = ["range", "radio"].includes(event.target.type); // they handle the arrow keys themselves
  const place = KEYS.indexOf(event.key.toLowerCase());
  if (place >= 0 && place < overview.classes.length) {
    if (!event.repeat) label(place);
  } else if (event.key === "ArrowDown" && !own) move(1);
  else if (event.key === "ArrowUp" && !own) move(-1);
  else if (event.key === "PageDown" && !own) move(10);
  else if (event.key === "PageUp" && !own) move(-10);
  else if (event.key === "Backspace") undo();
  else if (["+", "=", "-", "−"].includes(event.key)) {
    $("threshold").value = threshold() + (event.key === "+" || event.key === "=" ? 0.01 : -0.01);
    render();
  } else if (event.key === "F2") {
    const options = [...document.querySelectorAll("input[name=filter]")];
    options[(options.findIndex((option) => option.checked) + 1) % options.length].checked = true;
    onFilter();
  } else return;
  event.preventDefault();
}

function onFilter() {
  shown = PAGE_SIZE;
  const rows = visible();
  if (rows.length && !rows.includes(selected)) selected = rows[0];
  render();
}

document.addEventListener("keydown", onKey);
$("threshold").addEventListener("input", () => render());
$("filter").addEventListener("change", onFilter);
$("more").addEventListener("click", () => {
  shown += PAGE_SIZE;
  renderList();
});
$("export").addEventListener("click", save);
$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", $("token").value);
  load();
});
load();
