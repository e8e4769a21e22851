// Opens a page of `pocketbert pack --for web-demo` in Chromium and prints a line of JSON about it:
// node web_demo.mjs CHROMIUM ADDRESS ASKED [SCREENSHOT WIDTH SCHEME]; ASKED is JSON: {first, second, texts}. `texts` are given to each file by
// the page's own copy of the runtime, `first` and `second` are typed. Before that the page is reloaded without a network.
import axe from "axe-core";
import puppeteer from "puppeteer-core";
const [chromium, address, given, screenshot, width, scheme] = process.argv.slice(2);
const asked = JSON.parse(given);
const browser = await puppeteer.launch({
  executablePath: chromium,
  protocolTimeout: 600000,
  args: ["--no-sandbox", "--headless=new", "--disable-gpu", "--disable-dev-shm-usage"],
});
const page = await browser.newPage();
const errors = [], elsewhere = [];
page.on("pageerror", (error) => errors.push(error.message));
page.on("console", (message) => message.type() === "error" && !/^(INFO|WARNING): /.test(message.text()) && errors.push(message.text()));
page.on("request", (request) => /^(data|blob):/.test(request.url()) || request.url().startsWith(address) || elsewhere.push(request.url()));
await page.setViewport({ width: +(width || 360), height: 740, deviceScaleFactor: 1 });
await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme || "light" }]);
await page.goto(address);
const ready = () => page.waitForFunction(() => document.documentElement.dataset.ready, { timeout: 240000, polling: 100 });
await ready();
const refuse = async () => {
  const refused = await page.$("article .bad");
  if (refused) throw new Error(await refused.evaluate((one) => one.textContent));
};
await refuse();
await page.setOfflineMode(true); // at once, before anything else was asked for
await page.reload();
await ready();
const offline = await page.evaluate(() => ({ state: document.documentElement.dataset.ready, answer: document.querySelector("article .answer").innerText }));
await page.setOfflineMode(false);
for (let left = await page.$$("article button"); left.length; left = await page.$$("article button")) {
  const before = left.length;
  await left[0].focus();
  await page.keyboard.press("Enter"); // by keyboard alone
  await page.waitForFunction((n) => document.querySelectorAll("article button").length < n || document.querySelector("article .bad"), { timeout: 240000, polling: 100 }, before);
  await refuse();
}
for (const name of ["first", "second"]) {
  if (asked[name] === undefined) continue;
  await page.$eval(`#${name}`, (box) => (box.value = ""));
  await page.type(`#${name}`, asked[name]);
}
await page.waitForFunction(() => document.querySelectorAll("article[data-open=true]").length === document.querySelectorAll("article").length, { timeout: 240000, polling: 100 });
await new Promise((resolve) => setTimeout(resolve, 1500)); // longer than the pause after the last key, and than the answers of tiny files
const seen = await page.evaluate(() => {
  const shown = (box) => ({
    answer: box.innerText, marks: [...box.querySelectorAll("mark")].map((mark) => mark.firstChild.textContent),
    items: [...box.querySelectorAll("li")].map((item) => item.firstChild.textContent.trim()),
  });
  return {
    state: document.documentElement.dataset.ready, wide: document.documentElement.scrollWidth, text: document.body.innerText,
    said: document.querySelector("#state").textContent,
    files: [...document.querySelectorAll("article")].map((box) => ({
      file: box.dataset.file, ...shown(box.querySelector(".answer")), latency: box.children[2]?.textContent ?? "",
      heads: Object.fromEntries([...box.querySelectorAll("[data-head]")].map((part) => [part.querySelector("h3").textContent, shown(part.lastElementChild)])),
    })),
  };
});
const answers = await page.evaluate(async (files, texts) => {
  const { load } = await import("./runtime/index.js");
  const out = {};
  for (const file of files) {
    const ort = file.endsWith("onnx") ? await import("./lib/onnxruntime-web/dist/ort.wasm.bundle.min.mjs") : undefined;
    const model = await load(new URL("./", document.baseURI), { file, ort, ortWasm: "lib/onnxruntime-web/dist/", litertWasm: "lib/core/wasm/", threads: 1 });
    out[file] = { engine: model.engine, answers: (await model.predict(texts)).map((answer) => (answer.vector ? { ...answer, vector: Array.from(answer.vector) } : answer)) };
    await model.close();
  }
  return out;
}, seen.files.map((one) => one.file), asked.texts);
await page.evaluate(axe.source);
const faults = await page.evaluate(async () => (await axe.run(document)).violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.target).join(", ")}`));
if (screenshot) await page.screenshot({ path: screenshot, fullPage: true });
console.log(JSON.stringify({ ...seen, answers, faults, errors, elsewhere, offline }));
await browser.close();
