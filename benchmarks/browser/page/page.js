// The page of `pocketbert benchmark --device browser`: measures the files of the plan that the server has, one case (file, accelerator,
// threads, repeat) after the other, each in a frame of its own (runner.js), and posts each case when it is measured.

const element = (id) => document.getElementById(id);
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];
const reason = (error) => String((error && error.message) || error).replace(/\s+/g, " ").slice(0, 300);
const token = location.pathname.split("/")[1];
const own = `pocketbert-${token}`;
const UNITS = ["wasm", "webgpu", "webnn"];
const state = { id: "", name: "", hidden: false, cases: [], checks: [], notes: [], battery: null };

/** Post JSON to the server; a lost connection is tried again for a minute, an answer that refuses it is an error. */
async function post(address, content) {
  for (let attempt = 0; ; attempt++) {
    let answer;
    try {
      answer = await fetch(address, { method: "POST", body: JSON.stringify(content) });
    } catch (error) {
      if (attempt >= 30) throw new Error("the server does not answer any more; was the command ended?");
      await pause(2000);
      continue;
    }
    if (!answer.ok) throw new Error(`${address}: ${(await answer.text()).trim()}`);
    return answer.json();
  }
}

// --- what this browser is and can do ---------------------------------------------------------------------------------------------

/** Return the resolution of this page's clock in µs. */
function clockResolution() {
  let least = Infinity;
  for (let i = 0; i < 20; i++) {
    const begin = performance.now();
    let now = begin;
    while (now === begin) now = performance.now();
    least = Math.min(least, now - begin);
  }
  return Math.round(least * 1e6) / 1e3;
}

/** Return charge and charger in words; empty where the browser does not tell. */
function batteryWords() {
  const battery = state.battery;
  return battery ? `${Math.round(battery.level * 100)} % ${battery.charging ? "charging" : "discharging"}` : "";
}

/** Return system and model in words, and a name for the device, from what the browser tells. */
async function describeDevice() {
  const agent = navigator.userAgent;
  const hints = navigator.userAgentData ? await navigator.userAgentData.getHighEntropyValues(["model", "platformVersion", "architecture"]) : {};
  const android = /Android ([\d.]+); ([^;)]+)/.exec(agent);
  const model = hints.model || (android && android[2].length > 1 ? android[2] : "") || (/iPhone|iPad|Macintosh/.exec(agent) || [""])[0];
  const system = hints.platform || (/Android|Linux|Windows|Mac OS|iPhone OS/.exec(agent) || [navigator.platform])[0];
  const version = hints.platformVersion || (android ? android[1] : "");
  const browser = /(Edg|SamsungBrowser|OPR|Firefox|FxiOS|CriOS|HeadlessChrome|Chrome|Version)\/(\d+)/.exec(agent) || ["", "browser", ""];
  const called = { Edg: "Edge", Version: "Safari", CriOS: "Chrome", FxiOS: "Firefox", OPR: "Opera" }[browser[1]] || browser[1];
  return { platform: [model, system, version, hints.architecture].filter(Boolean).join(" "), name: [model || system, called, browser[2]].filter(Boolean).join(" ").slice(0, 60) };
}

/** Find out which accelerators there are; return the usable ones, the name of the GPU, and the reasons for the others. */
async function findUnits(plan) {
  const units = ["wasm"], missing = [];
  const insecure = isSecureContext ? "" : ", since this page is no secure context (open it by --https, or on localhost by adb reverse)";
  let gpu = "";
  if (!crossOriginIsolated && plan.cases.some(([, threads]) => threads > 1)) missing.push(`more than one thread: the page is not isolated${insecure}`);
  const adapter = navigator.gpu ? await navigator.gpu.requestAdapter().catch(() => null) : null;
  const info = (adapter && adapter.info) || {};
  if (adapter && (adapter.isFallbackAdapter || info.isFallbackAdapter || /swiftshader|llvmpipe/i.test(`${info.architecture} ${info.description}`))) {
    missing.push("webgpu: its adapter computes on the CPU, and such times say nothing about a GPU");
  } else if (adapter) {
    units.push("webgpu");
    gpu = [info.vendor, info.architecture, info.device, info.description].filter(Boolean).join(" ") || "an adapter without a name";
  } else {
    missing.push(navigator.gpu ? "webgpu: the browser has no adapter" : `webgpu: the browser does not offer it${insecure}`);
  }
  const context = navigator.ml ? await navigator.ml.createContext().then(() => "", reason) : `the browser does not offer it${insecure}`;
  if (context) missing.push(`webnn: ${context}`.slice(0, 400));
  else units.push("webnn");
  return { units, gpu, missing };
}

// --- one case --------------------------------------------------------------------------------------------------------------------

const files = new Map();

/** Return the bytes of a file; up to 128 MB of them are kept for the next repeat. */
async function fetchFile(file) {
  if (!files.has(file.number)) {
    const answer = await fetch(`file/${file.number}`);
    if (!answer.ok) throw new Error(`${file.name}: the server does not have it any more`);
    const kept = [...files.values()].reduce((sum, bytes) => sum + bytes.length, 0);
    if (kept + file.bytes > 128e6) files.clear();
    files.set(file.number, new Uint8Array(await answer.arrayBuffer()));
  }
  return files.get(file.number);
}

/** Open a new frame that runs one file; return its runner. */
function openFrame() {
  const frame = document.createElement("iframe");
  frame.title = "runs one file";
  frame.setAttribute("aria-hidden", "true");
  frame.tabIndex = -1;
  return new Promise((resolve, reject) => {
    const late = setTimeout(() => reject(new Error("the frame did not load")), 60000);
    addEventListener("message", function ready(event) {
      if (event.source !== frame.contentWindow || event.data !== "runner is ready") return;
      removeEventListener("message", ready);
      clearTimeout(late);
      resolve({ frame, runner: frame.contentWindow.runner });
    });
    frame.src = "runner.html";
    document.body.append(frame);
  });
}

/** Return float numbers as base64 of little-endian float32. */
function toBase64(data) {
  const bytes = new Uint8Array(Float32Array.from(data, Number).buffer);
  let text = "";
  for (let i = 0; i < bytes.length; i += 0x8000) text += String.fromCharCode(...bytes.subarray(i, i + 0x8000));
  return btoa(text);
}

/** Run the inputs with known answers; return the server's judgement. */
async function checkAnswers(plan, runner, file, unit) {
  const outputs = [];
  for (const feed of plan.sets[file.checked]) {
    const read = await runner.run(runner.prepare(feed));
    outputs.push(Object.fromEntries(Object.entries(read).map(([name, one]) => [name, { shape: one.shape, data: toBase64(one.data) }])));
  }
  const judged = await post("answers", { id: state.id, file: file.number, unit, outputs });
  return { file: file.number, unit, ...judged };
}

/** Warm up until the medians of two windows agree; return how many runs that took and whether they agreed. */
async function warmUp(plan, runner, inputs, mostMs) {
  const { least, most, stable } = plan.warmup, begin = performance.now(), window = 5;
  const shapes = new Map(inputs.map((one) => [one.length, one.ready]));
  await runner.time([...shapes.values()], 1);
  let runs = shapes.size, before = 0, agreed = false, middle = 0;
  do {
    middle = median(await runner.time(Array.from({ length: window }, (_, i) => inputs[i % inputs.length].ready), 1));
    agreed = before > 0 && Math.abs(middle / before - 1) < stable;
    before = middle;
    runs += window;
    await pause(0);
  } while (performance.now() - begin < mostMs && (runs < least || (!agreed && runs < most)));
  return { runs, stable: agreed, middle };
}

/** Time all lengths of an opened file in turns, then single calls after idle times; return the cells. */
async function timeCells(plan, runner, file, budgetMs) {
  const share = plan.gaps_ms.length ? 1 - plan.idle.share : 1, begin = performance.now();
  const turns = [], prepared = new Map();
  // all lengths are warmed up first: the browser compiles WebAssembly anew, and better, while the first calls run
  for (const length of plan.lengths) {
    const feeds = plan.sets[file.inputs[length]];
    const inputs = feeds.map((feed) => ({ ready: runner.prepare(feed), length: Object.values(feed)[0].shape[1] }));
    const warm = await warmUp(plan, runner, inputs, (budgetMs * share) / plan.lengths.length / 3);
    prepared.set(length, { inputs, warm });
    turns.push({ length, inputs, warm, calls: Math.max(1, Math.ceil((20 * state.clockUs) / 1000 / Math.max(warm.middle, 1e-3))), wall: [] });
  }
  for (let spent = 0, enough = false; !enough; ) {
    for (const { inputs, calls, wall } of turns) {
      const next = Array.from({ length: plan.burst }, (_, i) => inputs[(wall.length + i) % inputs.length].ready);
      const start = performance.now();
      wall.push(...(await runner.time(next, calls)));
      spent += performance.now() - start;
      await pause(0);
    }
    const made = turns[0].wall.length, leastMs = (plan.least_s * 1000 * turns.length) / plan.repeats;
    enough = (made >= plan.runs && spent >= leastMs) || made >= 100000 || (!plan.least_s && performance.now() - begin > budgetMs * share);
  }
  const positive = (wall) => wall.map((ms) => Math.max(ms, 1e-4));
  const cells = turns.map(({ length, warm, calls, wall }) => ({ length, gap_ms: 0, wall_ms: positive(wall), calls, warmup_runs: warm.runs, warmup_stable: warm.stable }));
  let left = budgetMs * plan.idle.share;
  for (const gap of plan.gaps_ms) {
    for (const length of plan.lengths) {
      const { inputs, warm } = prepared.get(length), each = gap + warm.middle;
      if (length !== plan.lengths[0] && plan.idle.least * each > left) continue;
      const fits = Math.floor(left / plan.gaps_ms.length / plan.lengths.length / each);
      const count = Math.min(plan.idle.most, Math.max(plan.idle.least, fits)), wall = [];
      for (let i = 0; i < count; i++) {
        await pause(gap);
        wall.push(...(await runner.time([inputs[i % inputs.length].ready], 1)));
      }
      left -= count * each;
      cells.push({ length, gap_ms: gap, wall_ms: positive(wall), calls: 1, warmup_runs: warm.runs, warmup_stable: warm.stable });
    }
  }
  return cells;
}

/** Measure one case and post it; what fails is posted as a remark, and the file is not tried on that accelerator again. */
async function measureCase(plan, one, budgetMs) {
  const file = plan.files[one.file], where = `${file.name} on ${one.unit}, ${one.threads} thread${one.threads > 1 ? "s" : ""}`;
  show(`${where}, repeat ${one.repeat + 1} of ${plan.repeats}`);
  const bytes = await fetchFile(file);
  let opened;
  try {
    opened = await openFrame();
    const { runner } = opened;
    state.hidden = document.hidden;
    const loadMs = await runner.open(bytes, file, one.unit, one.threads);
    const firstInput = plan.sets[file.inputs[plan.lengths[plan.lengths.length - 1]]][0];
    const [firstMs] = await runner.time([runner.prepare(firstInput)], 1);
    if (!state.checks.some((check) => check.file === one.file && check.unit === one.unit)) {
      state.checks.push(await checkAnswers(plan, runner, file, one.unit));
      drawTable(plan);
    }
    const check = state.checks.find((found) => found.file === one.file && found.unit === one.unit);
    if (!check.passed) return;
    const cells = await timeCells(plan, runner, file, budgetMs);
    const timings = { file: one.file, unit: one.unit, threads: one.threads, repeat: one.repeat, load_ms: Math.max(loadMs, 1e-4), first_ms: Math.max(firstMs, 1e-4), hidden: state.hidden, battery: batteryWords(), cells };
    await post("case", { id: state.id, ...timings });
    state.cases.push(timings);
  } catch (error) {
    one.dead.add(`${one.file} ${one.unit} ${one.threads}`);
    remark(`${where}: ${reason(error)}`);
    await post("state", { id: state.id, note: `${where}: ${reason(error)}`.slice(0, 400) });
  } finally {
    if (opened) opened.frame.remove();
  }
}

// --- the page --------------------------------------------------------------------------------------------------------------------

/** Show what the page is doing. */
function show(words) {
  element("doing").textContent = words;
}

/** Add a line to the list of what is not used. */
function remark(words) {
  element("notes").hidden = false;
  const line = document.createElement("li");
  line.textContent = words;
  element("missing").append(line);
}

/** Draw the table: a row for each file, accelerator and number of threads, a column for each length. */
function drawTable(plan) {
  const cell = (kind, text, small = "") => {
    const made = document.createElement(kind);
    made.textContent = text;
    if (small) made.append(Object.assign(document.createElement("small"), { textContent: small }));
    return made;
  };
  const columns = [0, ...plan.gaps_ms].flatMap((gap) => plan.lengths.map((length) => [length, gap]));
  const head = document.createElement("tr");
  const titles = columns.map(([length, gap]) => `${length === "text" ? "real text" : length}${gap ? ` after ${gap} ms idle` : ""}`);
  head.append(...["file", ...titles].map((title) => Object.assign(cell("th", title), { scope: "col" })));
  element("head").replaceChildren(head);
  const keys = new Map(state.cases.map((one) => [`${one.file} ${one.unit} ${one.threads}`, one]));
  const ordered = [...keys.values()].sort((a, b) => a.threads - b.threads || a.file - b.file || UNITS.indexOf(a.unit) - UNITS.indexOf(b.unit));
  const rows = ordered.map((one) => {
    const row = document.createElement("tr");
    row.append(cell("td", plan.files[one.file].name, `${one.unit}, ${one.threads} thread${one.threads > 1 ? "s" : ""}`));
    for (const [length, gap] of columns) {
      const same = state.cases.filter((other) => other.file === one.file && other.unit === one.unit && other.threads === one.threads);
      const times = same.flatMap((other) => other.cells.filter((c) => c.length === length && c.gap_ms === gap).flatMap((c) => c.wall_ms));
      row.append(cell("td", times.length ? median(times).toPrecision(3) : "–"));
    }
    return row;
  });
  for (const check of state.checks.filter((one) => !one.passed)) {
    const row = document.createElement("tr"), refused = cell("td", plan.files[check.file].name, check.unit);
    const why = Object.assign(cell("td", `refused, computed wrongly: ${check.words}`), { colSpan: columns.length, className: "bad" });
    why.style.whiteSpace = "normal";
    row.append(refused, why);
    rows.push(row);
  }
  element("rows").replaceChildren(...rows);
}

/** Measure all cases of the plan that are not measured yet. */
async function measure(plan, units) {
  const dead = new Set();
  const cases = plan.cases.flatMap(([repeat, threads, file]) => {
    if (threads > 1 && !crossOriginIsolated) return [];
    return units.filter((unit) => unit === "wasm" || threads === plan.first_threads).map((unit) => ({ repeat, threads, file, unit, dead }));
  });
  const budgetMs = (plan.budget_s * 1000) / Math.max(cases.length, 1);
  element("bar").max = cases.length;
  for (const [number, one] of cases.entries()) {
    element("bar").value = number;
    const done = state.cases.some((c) => ["file", "unit", "threads", "repeat"].every((key) => c[key] === one[key]));
    const refused = state.checks.some((c) => c.file === one.file && c.unit === one.unit && !c.passed);
    if (!done && !refused && !dead.has(`${one.file} ${one.unit} ${one.threads}`)) await measureCase(plan, one, budgetMs);
    drawTable(plan);
  }
  element("bar").value = cases.length;
  await post("state", { id: state.id, ended: true });
  show("Done. The figures are on the computer; you can close this page.");
}

/** Keep the screen on where the browser allows it. */
async function keepAwake() {
  try {
    if (navigator.wakeLock && !document.hidden) await navigator.wakeLock.request("screen");
    else if (!navigator.wakeLock) remark("screen lock: the browser cannot keep the screen on for this page; touch it now and then");
  } catch (error) {
    remark(`screen lock: ${reason(error)}`);
  }
}

/** Join the benchmark and measure. */
async function begin(plan, units, facts) {
  element("start").disabled = true;
  const name = element("name").value.trim() || "browser";
  try {
    const joined = await post("join", { id: sessionStorage.getItem(own) || "", earlier: localStorage.getItem(own) || "", name, facts });
    Object.assign(state, { id: joined.id, name: joined.name, cases: joined.cases, checks: joined.checks });
    sessionStorage.setItem(own, state.id);
    localStorage.setItem(own, state.id);
    element("begin").hidden = true;
    element("what").textContent = `${state.name}: ${element("what").textContent}`;
    element("work").hidden = false;
    setInterval(() => fetch("state", { method: "POST", body: JSON.stringify({ id: state.id }) }).catch(() => {}), 5000);
    document.addEventListener("visibilitychange", () => {
      state.hidden ||= document.hidden;
      keepAwake();
    });
    await keepAwake();
    await measure(plan, units);
  } catch (error) {
    show(`Stopped: ${reason(error)}`);
    element("work").hidden = false;
  }
}

/** Read the plan, say what will be measured, and wait for the button; a page that was reloaded goes on by itself. */
async function open() {
  const plan = await (await fetch("plan")).json();
  state.clockUs = clockResolution();
  state.battery = navigator.getBattery ? await navigator.getBattery().catch(() => null) : null;
  const [device, found] = [await describeDevice(), await findUnits(plan)];
  const facts = {
    user_agent: navigator.userAgent.slice(0, 400), platform: device.platform.slice(0, 400), cores: navigator.hardwareConcurrency || 0,
    memory_gb: navigator.deviceMemory || null, gpu: found.gpu.slice(0, 400), secure: isSecureContext, isolated: crossOriginIsolated,
    timer_us: state.clockUs, battery: batteryWords(), missing: found.missing,
  };
  found.missing.forEach(remark);
  const megabytes = plan.files.reduce((sum, file) => sum + file.bytes, 0) / 1e6;
  element("what").textContent = `${plan.files.length} files (${megabytes.toFixed(0)} MB) at ${plan.lengths.map((x) => (x === "text" ? "real text" : `${x} tokens`)).join(", ")}; about ${Math.ceil(plan.budget_s)} seconds of measuring.`;
  element("facts").textContent = `${facts.user_agent} · ${facts.cores} cores${facts.memory_gb ? ` · ${facts.memory_gb} GB or more` : ""} · ${facts.secure ? "" : "no "}secure context, ${facts.isolated ? "" : "not "}isolated · uses ${found.units.join(", ")}${facts.gpu ? ` (${facts.gpu})` : ""}`;
  element("name").value = device.name;
  element("begin").addEventListener("submit", (event) => {
    event.preventDefault();
    begin(plan, found.units, facts);
  });
  element("start").disabled = false;
  if (sessionStorage.getItem(own)) begin(plan, found.units, facts);
}

open().catch((error) => {
  element("what").textContent = `The page cannot begin: ${reason(error)}`;
});
