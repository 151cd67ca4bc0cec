"use strict";
// The page's state is what the server said, the threshold, the filter and the selected bag; all else is drawn from it.

const $ = (id) => document.getElementById(id);
const KEYS = [..."123456789abcdefghijklmnopqrstuvwxyz"]; // of the classes, in their order
const STEP = 100; // rows drawn at a time

let board = null; // what GET /bags answered; bags are sorted by doubt
let shown = STEP;
let selected = null; // an entry of board.bags
let wanted = null; // the place of the bag whose instances were asked for
let pictured = null; // and of the one whose instances are on the page
const given = []; // entries labelled in this session, the last one last
let saving = Promise.resolve(); // reviews are sent one after the other

const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)}%`;
const threshold = () => Number($("threshold").value);
const decision = (bag) => (bag.confidence >= threshold() ? "report" : "review");
const filter = () => document.querySelector("input[name=filter]:checked").value;
const visible = () => board.bags.filter((bag) => filter() === "all" || decision(bag) === filter());

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

// ---- the server --------------------------------------------------------------------------------------

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  const token = sessionStorage.getItem("token");
  if (token) headers.Authorization = `Bearer ${token}`;
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch {
    throw new Error("The server does not answer.");
  }
  if (answer.ok) return answer;
  let sentence = `The server answered ${answer.status}.`;
  try {
    sentence = (await answer.json()).detail;
  } catch { /* no sentence came with it */ }
  const error = new Error(sentence);
  error.status = answer.status;
  throw error;
}

function complain(error) {
  $("problem").textContent = error ? error.message : "";
  $("problem").hidden = !error;
  if (error && error.status === 401) {
    $("door").hidden = false;
    $("token").focus();
  }
}

async function load() {
  try {
    board = await (await ask("/bags")).json();
  } catch (error) {
    $("progress").textContent = "";
    complain(error);
    return;
  }
  complain(null);
  $("door").hidden = true;
  $("board").hidden = $("keys").hidden = false;
  $("warning").textContent = board.warning || "";
  $("warning").hidden = !board.warning;
  const last = KEYS[Math.min(board.classes.length, KEYS.length) - 1];
  $("label-keys").textContent = board.classes.length > 9 ? `1–9, a–${last}` : `1–${last}`;
  if (!board.bags.some((bag) => decision(bag) === "report")) { // start where half of the bags are reported
    $("threshold").value = Math.floor(1000 * board.bags[Math.floor(board.bags.length / 2)].confidence) / 1000;
  }
  drawReliability();
  makeClasses();
  selected = board.bags.find((bag) => bag.review === null) || board.bags[0];
  render();
}

// ---- labels ------------------------------------------------------------------------------------------

function label(place) {
  // not of a bag that is still on its way: what the reviewer sees is then another one
  if (pictured === selected.place && !selected.pending) review(selected, place);
}

function review(bag, label) {
  if (label !== null) given.push(bag);
  bag.pending = true;
  saving = saving.then(async () => {
    try {
      const body = { bag_id: bag.bag_id, label: label === null ? null : board.classes[label] };
      const headers = { "Content-Type": "application/json" };
      await ask("/reviews", { method: "POST", headers, body: JSON.stringify(body) });
      bag.review = label; // only now: it is on the server's disk
      complain(null);
    } catch (error) {
      complain(new Error(`Bag ${bag.bag_id} was not saved. ${error.message}`));
    }
    bag.pending = false;
    render();
  });
  const rows = visible();
  const after = label === null ? [] : rows.slice(rows.indexOf(bag) + 1);
  selected = after.find((other) => other.review === null && !other.pending) || bag;
  render();
}

function takeBack() {
  const bag = given.pop() || (selected && selected.review !== null ? selected : null);
  if (bag) review(bag, null);
}

async function save() {
  try {
    await saving;
    const link = make("a");
    link.href = URL.createObjectURL(await (await ask("/reviews.csv")).blob());
    link.download = "reviews.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    complain(null);
  } catch (error) {
    complain(error);
  }
}

// ---- drawing -----------------------------------------------------------------------------------------

function render() {
  renderPoint();
  renderList();
  renderBag();
  const done = board.bags.filter((bag) => bag.review !== null).length;
  const pending = board.bags.filter((bag) => bag.pending).length;
  $("progress").textContent =
    `${done} of ${board.bags.length} bags reviewed` + (pending ? `, saving ${pending}…` : "");
}

function renderPoint() {
  const reported = board.bags.filter((bag) => decision(bag) === "report");
  const doubt = reported.reduce((sum, bag) => sum + 1 - bag.confidence, 0);
  $("at").textContent = percent(threshold());
  $("coverage").textContent = percent(reported.length / board.bags.length);
  $("coverage-note").textContent = `${reported.length} of ${board.bags.length} bags reported`;
  $("expected").textContent = reported.length ? percent(doubt / reported.length) : "–";
  const counts = {
    all: board.bags.length,
    review: board.bags.length - reported.length,
    report: reported.length,
  };
  for (const input of document.querySelectorAll("input[name=filter]")) {
    input.nextElementSibling.querySelector("b").textContent = counts[input.value];
  }
  $("known").hidden = !board.measured;
  if (!board.measured) return;
  // rows fall in threshold: the last one that is still reached holds the counts
  const at = board.measured.filter((row) => row.threshold >= threshold()).pop();
  $("measured").textContent = at ? percent(at.errors / at.reported) : "–";
  $("bound").textContent = at
    ? `${at.errors} of ${at.reported} wrong; at most ${percent(at.bound)} with probability ` +
      `${percent(1 - board.delta, 0)}, if this threshold was fixed beforehand`
    : "no labelled bag is reported";
}

function renderList() {
  const rows = visible();
  const place = rows.indexOf(selected);
  if (place >= shown) shown = place + STEP;
  $("bags").replaceChildren(...rows.slice(0, shown).map((bag) => {
    const row = make("tr");
    const said = bag.pending ? "saving…" : bag.review === null ? "" : board.classes[bag.review];
    row.append(
      make("td", bag.bag_id),
      make("td", board.classes[bag.label]),
      make("td", percent(bag.confidence), "number"),
      make("td", decision(bag), decision(bag)),
      make("td", said, "said"),
    );
    if (bag === selected) row.setAttribute("aria-current", "true");
    row.addEventListener("click", () => select(bag));
    return row;
  }));
  $("more").hidden = rows.length <= shown;
  $("more").textContent = `Show more (${rows.length - shown})`;
  $("nothing").hidden = rows.length > 0;
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
  // not before: a reviewer who is told the answer gives no opinion
  $("truth").textContent =
    bag.truth !== null && bag.review !== null ? `true label: ${board.classes[bag.truth]}` : "";
  $("bag").setAttribute("aria-busy", String(pictured !== bag.place));
  if (wanted === bag.place) return;
  wanted = bag.place;
  let about;
  try {
    about = await (await ask(`/bags/${bag.place}`)).json();
  } catch (error) {
    wanted = null;
    complain(error);
    return;
  }
  if (selected === bag) renderContent(bag, about);
}

function makeClasses() {
  $("classes").replaceChildren(...board.classes.map((name, j) => {
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
  pictured = bag.place;
  $("bag").setAttribute("aria-busy", "false");
  const facts = [`${about.size} instance${about.size === 1 ? "" : "s"}`];
  if (about.candidates) facts.push(`candidates: ${about.candidates.join(", ")}`);
  $("facts").textContent = facts.join(" · ");
  [...$("classes").children].forEach((button, j) => {
    const share = percent(about.probabilities[j]);
    button.style.setProperty("--share", share);
    button.lastElementChild.textContent = share;
  });
  const looked = about.instances[0].attention !== null;
  const some = about.instances.length < about.size ? `${about.instances.length} of ${about.size} instances` : "Instances";
  $("instances-title").textContent = looked ? `${some}, by attention` : `${some} (this method has no attention)`;
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
    bar.style.setProperty("--share", percent(one.attention / most));
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
  const flat = instances.length > 1 && instances.every((one) => one.coordinates && one.coordinates.length === 2);
  map.toggleAttribute("hidden", !flat); // an SVG has no property of this name
  if (!flat) return;
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
  $("reliability").hidden = !board.reliability;
  if (!board.reliability) return;
  const svg = $("reliability").querySelector("svg");
  svg.replaceChildren();
  const { edges, count, confidence, accuracy, ece } = board.reliability;
  const x = (v) => 34 + 200 * v;
  const y = (v) => 156 - 148 * v;
  accuracy.forEach((value, r) => {
    if (!count[r]) return;
    draw(svg, "rect", { x: x(edges[r]), y: y(value), width: 200 * (edges[r + 1] - edges[r]), height: 148 * value, class: "accuracy" });
    draw(svg, "line", { x1: x(edges[r]), x2: x(edges[r + 1]), y1: y(confidence[r]), y2: y(confidence[r]), class: "mean" });
  });
  draw(svg, "path", { d: `M${x(0)} ${y(0)}L${x(1)} ${y(1)}`, class: "even" });
  draw(svg, "path", { d: `M${x(0)} ${y(1)}V${y(0)}H${x(1)}`, class: "axis" });
  for (const v of [0, 0.5, 1]) {
    draw(svg, "text", { x: x(v), y: 169, "text-anchor": v === 1 ? "end" : "middle" }, percent(v, 0));
    draw(svg, "text", { x: 30, y: y(v) + 3, "text-anchor": "end" }, percent(v, 0));
  }
  draw(svg, "text", { x: x(0.5), y: 184, "text-anchor": "middle" }, "confidence");
  $("reliability-text").textContent =
    `Bars: share right; orange: mean confidence; on the dashed line both agree. ECE ${percent(ece)}.`;
}

// ---- keys --------------------------------------------------------------------------------------------

function move(by) {
  const rows = visible();
  if (!rows.length) return;
  const place = rows.indexOf(selected);
  select(rows[place < 0 ? 0 : Math.min(Math.max(place + by, 0), rows.length - 1)]);
}

function onKey(event) {
  if (!board || event.ctrlKey || event.altKey || event.metaKey || event.target.type === "password") return;
  const own = ["range", "radio"].includes(event.target.type); // they have a use for the arrows themselves
  const place = KEYS.indexOf(event.key.toLowerCase());
  if (place >= 0 && place < board.classes.length) {
    if (!event.repeat) label(place);
  } else if (event.key === "ArrowDown" && !own) move(1);
  else if (event.key === "ArrowUp" && !own) move(-1);
  else if (event.key === "PageDown" && !own) move(10);
  else if (event.key === "PageUp" && !own) move(-10);
  else if (event.key === "Backspace") takeBack();
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
  shown = STEP;
  const rows = visible();
  if (rows.length && !rows.includes(selected)) selected = rows[0];
  render();
}

document.addEventListener("keydown", onKey);
$("threshold").addEventListener("input", () => render());
$("filter").addEventListener("change", onFilter);
$("more").addEventListener("click", () => {
  shown += STEP;
  renderList();
});
$("export").addEventListener("click", save);
$("door").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", $("token").value);
  load();
});
load();
