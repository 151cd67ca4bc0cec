"use strict";
// The state is the server's answer, the threshold, the filter and the selected bag; everything is rendered from it.

const $ = (id) => document.getElementById(id);
const KEYS = [..."123456789abcdefghijklmnopqrstuvwxyz"]; // one per class, in their order
const PAGE_SIZE = 100; // rows shown at a time
const HIGHEST = 8; // patches shown of those of highest attention
const LOWEST = 4; // and of lowest

let overview = null; // the answer of GET /bags; the least confident bags are first
let shown = PAGE_SIZE;
let selected = null; // an entry of overview.bags
let requested = null; // the place of the bag whose instances were requested
let displayed = null; // the place of the bag whose instances are displayed
const labelled = []; // entries labelled on this page, the latest last
let content = null; // the answer of GET /bags/… for the displayed bag
let bitmap = null; // its image
let shownBlind = false; // whether it is displayed without the model's answer
let layer = 0; // what is shown over the image: 0, nothing; then attention and evidence
let saving = Promise.resolve(); // reviews are sent one after another

const percent = (fraction, digits = 1) => `${(100 * fraction).toFixed(digits)}%`;
const threshold = () => Number($("threshold").value);
const reviewer = () => $("reviewer").value.trim().replace(/\s+/g, " ");
const own = (bag) => bag.reviews.find((one) => one.reviewer === reviewer());
const reviewed = (bag) => Boolean(own(bag));
// a bag of the random sample is labelled before the model's answer is shown, which would influence the reviewer
const blind = (bag) => bag.selected === "random" && !reviewed(bag);
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
  selected = overview.bags.find((bag) => !reviewed(bag)) || overview.bags[0];
  render();
}

// ---- labels ------------------------------------------------------------------------------------------

function label(place) {
  // not while the selected bag is loading: the reviewer still sees another one
  if (displayed === selected.place && !selected.pending) review(selected, place);
}

function review(bag, label, stay = false) {
  if (label !== null && !stay) labelled.push(bag);
  bag.pending = true;
  const mine = { reviewer: reviewer(), label, comment: $("comment").value.trim() };
  saving = saving.then(async () => {
    try {
      const body = {
        bag_id: bag.bag_id,
        label: label === null ? null : overview.classes[label],
        reviewer: mine.reviewer,
        comment: label === null ? "" : mine.comment,
      };
      const headers = { "Content-Type": "application/json" };
      await request("/reviews", { method: "POST", headers, body: JSON.stringify(body) });
      // only now is it on the server's disk
      bag.reviews = bag.reviews.filter((one) => one.reviewer !== mine.reviewer);
      if (label !== null) bag.reviews.push(mine);
      showError(null);
    } catch (error) {
      showError(new Error(`Bag ${bag.bag_id} was not saved. ${error.message}`));
    }
    bag.pending = false;
    render();
  });
  const rows = visible();
  const after = label === null || stay ? [] : rows.slice(rows.indexOf(bag) + 1);
  selected = after.find((other) => !reviewed(other) && !other.pending) || bag;
  render();
}

function undo() {
  const bag = labelled.pop() || (selected && reviewed(selected) ? selected : null);
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
  const done = overview.bags.filter(reviewed).length;
  const pending = overview.bags.filter((bag) => bag.pending).length;
  const random = overview.bags.filter((bag) => bag.selected === "random");
  $("progress").textContent =
    `${done} of ${overview.bags.length} bag${overview.bags.length === 1 ? "" : "s"} reviewed` +
    (random.length ? `; of the random sample ${random.filter(reviewed).length} of ${random.length}` : "") +
    (pending ? `, saving ${pending}…` : "");
}

function renderPoint() {
  const reported = overview.bags.filter((bag) => decision(bag) === "report");
  const expected = reported.reduce((sum, bag) => sum + 1 - bag.confidence, 0);
  $("at").textContent = percent(threshold());
  $("coverage").textContent = percent(reported.length / overview.bags.length);
  $("coverage-note").textContent = `${reported.length} of ${overview.bags.length} bag${overview.bags.length === 1 ? "" : "s"} reported`;
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
    const label = bag.pending ? "saving…" : reviewed(bag) ? overview.classes[own(bag).label] : "";
    const disagree = reviewed(bag) && bag.reviews.some((one) => one.label !== own(bag).label);
    row.append(
      make("td", bag.bag_id),
      make("td", blind(bag) ? "–" : overview.classes[bag.label]),
      make("td", blind(bag) ? "–" : percent(bag.confidence), "number"),
      make("td", blind(bag) ? "random" : decision(bag), blind(bag) ? "random" : decision(bag)),
      make("td", disagree ? `${label} ≠` : label, "reviewed"),
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
  $("decision").textContent = blind(bag) ? "random sample" : decision(bag);
  $("decision").className = `chip ${blind(bag) ? "random" : decision(bag)}`;
  const mine = own(bag);
  for (const button of $("classes").children) {
    button.setAttribute("aria-pressed", String(Boolean(mine) && Number(button.value) === mine.label));
  }
  // only after the review, so that they do not influence the reviewer
  $("truth").textContent = bag.truth !== null && mine ? `true label: ${overview.classes[bag.truth]}` : "";
  const others = bag.reviews.filter((one) => one !== mine);
  $("others").hidden = !mine || !others.length;
  $("others").textContent = others
    .map((one) => `${one.reviewer || "another reviewer"}: ${overview.classes[one.label]}${one.comment ? ` (${one.comment})` : ""}`)
    .join("; ");
  if (displayed === bag.place && shownBlind !== blind(bag)) renderContent(bag); // a label ends its blindness
  $("bag").setAttribute("aria-busy", String(displayed !== bag.place));
  if (requested === bag.place) return;
  requested = bag.place;
  let about;
  let picture = null;
  try {
    about = await (await request(`/bags/${bag.place}`)).json();
    if (about.image && !about.image.problem) {
      picture = await createImageBitmap(await (await request(`/bags/${bag.place}/image`)).blob());
    }
  } catch (error) {
    requested = null;
    showError(error);
    return;
  }
  if (selected !== bag) return;
  content = about;
  bitmap = picture;
  displayed = bag.place;
  $("comment").value = mine ? mine.comment : "";
  $("bag").setAttribute("aria-busy", "false");
  renderContent(bag);
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

function renderContent(bag) {
  const about = content;
  shownBlind = blind(bag);
  const facts = [`${about.size} instance${about.size === 1 ? "" : "s"}`];
  if (about.candidates) facts.push(`candidates: ${about.candidates.join(", ")}`);
  $("facts").textContent = facts.join(" · ");
  [...$("classes").children].forEach((button, j) => {
    const probability = percent(about.probabilities[j]);
    button.style.setProperty("--fraction", blind(bag) ? "0%" : probability);
    button.lastElementChild.textContent = blind(bag) ? "" : probability;
  });
  renderPicture(bag);
  if (blind(bag) && about.image) {
    $("instances-title").textContent = "";
    $("instances").replaceChildren();
    $("map").toggleAttribute("hidden", true);
    return;
  }
  if (bitmap && about.image.layers && about.image.layers.length) {
    renderPatches(about.image);
    return;
  }
  const hasAttention = about.instances[0].attention !== null;
  const title = about.instances.length < about.size ? `${about.instances.length} of ${about.size} instances` : "Instances";
  $("instances-title").textContent = hasAttention
    ? `${title}, by attention` : `${title} (this method has no attention)`;
  $("instances").className = about.instances[0].pixels ? "" : "vectors";
  const most = Math.max(...about.instances.map((one) => one.attention || 0)) || 1;
  $("instances").replaceChildren(...about.instances.map((one) => instance(one, most)));
  drawMap(about.instances, most);
}

// ---- the image ---------------------------------------------------------------------------------------

const HEAT = ["#fdf3e7", "#fdbb84", "#d7301f", "#5b0000"]; // as in the figures of `mipl explain`
const SIGNED = ["#00609a", "#8fc3e3", "#f7f7f7", "#f0a868", "#d55e00"];

function colour(stops, t) {
  const at = Math.min(Math.max(t, 0), 1) * (stops.length - 1);
  const i = Math.min(Math.floor(at), stops.length - 2);
  const part = (hex, c) => parseInt(hex.slice(1 + 2 * c, 3 + 2 * c), 16);
  return [0, 1, 2].map((c) => Math.round(part(stops[i], c) + (at - i) * (part(stops[i + 1], c) - part(stops[i], c))));
}

function range(image) {
  const { name, values } = image.layers[layer - 1];
  if (name === "attention") return { most: Math.max(1, ...spread(values)), least: 0 };
  const most = Math.max(1e-9, ...image.layers.filter((one) => one.name === name).flatMap((one) => spread(one.values)));
  return { most, least: -most };
}

function spread(values) { // the extremes: too many arguments would overflow the stack
  return [values.reduce((a, b) => Math.max(a, Math.abs(b)), 0)];
}

function renderPicture(bag) {
  const image = content.image;
  $("picture").hidden = !image;
  if (!image) return;
  $("image").hidden = !bitmap;
  $("picture-problem").hidden = !image.problem;
  $("picture-problem").textContent = image.problem || "";
  const layers = bitmap && !blind(bag) ? image.layers || [] : [];
  layer = Math.min(layer, layers.length);
  if (bitmap) drawPicture(image, blind(bag) ? 0 : layer);
  const titles = ["image", ...layers.map((one) => (one.label === null ? one.name : `evidence for ${overview.classes[one.label]}`))];
  $("layers").hidden = titles.length < 2;
  $("layers").replaceChildren(...titles.map((title, i) => {
    const option = make("label");
    const input = make("input");
    input.type = "radio";
    input.name = "layer";
    input.checked = i === layer;
    input.addEventListener("change", () => showLayer(i));
    option.append(input, make("span", title));
    return option;
  }));
  $("image").setAttribute("aria-label", `Image of ${bag.bag_id}, with ${titles[layer]}`);
  $("scale").hidden = layer === 0;
  if (layer === 0) return;
  const { least, most } = range(image);
  const signed = least < 0;
  $("low").textContent = signed ? `against: ${least.toPrecision(2)}` : "attention 0";
  $("high").textContent = signed ? `for: ${most.toPrecision(2)} logits` : `${most.toPrecision(2)} × the mean`;
  const strip = $("scale").querySelector("canvas");
  const context = strip.getContext("2d");
  for (let i = 0; i < strip.width; i += 1) {
    const t = i / (strip.width - 1);
    context.fillStyle = `rgb(${colour(signed ? SIGNED : HEAT, signed ? t : Math.sqrt(t)).join(",")})`;
    context.fillRect(i, 0, 1, 1);
  }
}

function drawPicture(image, shownLayer) {
  const canvas = $("image");
  const factor = Math.max(1, Math.ceil(640 / Math.max(bitmap.width, bitmap.height))); // small tiles are enlarged
  canvas.width = factor * bitmap.width;
  canvas.height = factor * bitmap.height;
  const context = canvas.getContext("2d");
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  if (!shownLayer) return;
  const { least, most } = range(image);
  context.globalAlpha = 0.55;
  image.layers[shownLayer - 1].values.forEach((value, i) => {
    const t = (value - least) / (most - least);
    context.fillStyle = `rgb(${colour(least < 0 ? SIGNED : HEAT, least < 0 ? t : Math.sqrt(t)).join(",")})`;
    const [x, y] = image.corners[i];
    context.fillRect(x * canvas.width, y * canvas.height, image.patch[0] * canvas.width, image.patch[1] * canvas.height);
  });
  context.globalAlpha = 1;
}

function showLayer(number) {
  layer = number;
  if (content && displayed === selected.place) renderPicture(selected);
}

function renderPatches(image) {
  const attention = image.layers[0].values;
  const order = attention.map((_, i) => i).sort((a, b) => attention[b] - attention[a] || a - b);
  const high = order.slice(0, HIGHEST);
  const low = order.slice(high.length).slice(-LOWEST);
  $("map").toggleAttribute("hidden", true);
  $("instances-title").textContent = low.length ? "Patches of highest, then lowest attention" : "Patches by attention";
  $("instances").className = "patches";
  const most = attention[order[0]] || 1;
  $("instances").replaceChildren(...[...high, ...low].map((i, rank) => {
    const figure = make("figure", "", rank < high.length ? "" : "lowest");
    const caption = make("figcaption", `#${image.numbers[i]} `);
    caption.append(make("b", percent(attention[i] / content.size)), weight(attention[i] / most));
    figure.append(crop(image, i), caption);
    return figure;
  }));
}

function crop(image, i) {
  const [x, y] = image.corners[i];
  const canvas = make("canvas");
  const wide = image.patch[0] * bitmap.width;
  const high = image.patch[1] * bitmap.height;
  canvas.width = Math.max(96, Math.round(wide));
  canvas.height = Math.max(1, Math.round(canvas.width * high / wide));
  canvas.getContext("2d").drawImage(bitmap, x * bitmap.width, y * bitmap.height, wide, high, 0, 0, canvas.width, canvas.height);
  return canvas;
}

function weight(fraction) {
  const frame = make("span", "", "weight");
  const bar = make("i");
  bar.style.setProperty("--fraction", percent(fraction));
  frame.append(bar);
  return frame;
}

// ---- instances ---------------------------------------------------------------------------------------

function instance(one, most) {
  const figure = make("figure");
  const caption = make("figcaption", `#${one.number} `);
  if (one.attention !== null) {
    caption.append(make("b", percent(one.attention)), weight(one.attention / most));
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
  if (event.target.type === "text") {
    if (["Enter", "Escape"].includes(event.key)) event.target.blur();
    return;
  }
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
  } else if (event.key === "0") {
    const count = content && content.image && content.image.layers && !blind(selected) ? content.image.layers.length : 0;
    showLayer((layer + 1) % (count + 1));
  } else if (event.key === "/") $("comment").focus();
  else if (event.key === "F2") {
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
$("reviewer").value = localStorage.getItem("reviewer") || "";
$("reviewer").addEventListener("change", () => {
  localStorage.setItem("reviewer", reviewer());
  if (overview) render();
});
$("comment").addEventListener("change", () => {
  const mine = selected && displayed === selected.place && own(selected);
  if (mine) review(selected, mine.label, true); // otherwise it is saved with the label
});
$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", $("token").value);
  load();
});
load();
