// Opens the page of `pocketbert benchmark --device browser` in Chromium, presses Start, and prints a line of JSON when `until` is reached:
// node browser.mjs CHROMIUM ADDRESS NAME UNTIL [SCREENSHOT WIDTH SCHEME]; UNTIL is done, a number of rows that the page shows, or reload.
import axe from "axe-core";
import puppeteer from "puppeteer-core";
const [chromium, address, name, until, screenshot, width, scheme] = process.argv.slice(2);
const browser = await puppeteer.launch({
  executablePath: chromium,
  acceptInsecureCerts: true,
  protocolTimeout: 1200000,
  args: ["--no-sandbox", "--headless=new", "--disable-gpu", "--disable-dev-shm-usage"],
});
const page = await browser.newPage();
const errors = [];
page.on("pageerror", (error) => errors.push(error.message));
await page.setViewport({ width: +(width || 360), height: 740, deviceScaleFactor: 1 });
await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme || "light" }]);
const start = async () => {
  await page.goto(address);
  await page.waitForSelector("#start:not([disabled])");
  await page.$eval("#name", (input, value) => (input.value = value), name);
  await page.click("#start");
};
const ended = () => page.waitForFunction(() => /^(Done|Stopped)/.test(document.getElementById("doing").textContent), { timeout: 240000, polling: 100 });
const rows = (least) => page.waitForFunction((n) => document.querySelectorAll("#rows tr").length >= n, { timeout: 240000, polling: 50 }, least);
await start();
if (until === "reload") {
  await rows(1);
  await page.reload(); // the page goes on by itself
  await ended();
} else if (until === "done") {
  await ended();
} else {
  await rows(+until);
}
const seen = await page.evaluate(() => ({
  text: document.body.innerText, isolated: crossOriginIsolated, secure: isSecureContext, wide: document.documentElement.scrollWidth,
  rows: [...document.querySelectorAll("#rows tr")].map((row) => row.innerText.replace(/\s+/g, " ")),
}));
await page.evaluate(axe.source);
const faults = await page.evaluate(async () => (await axe.run(document)).violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.target).join(", ")}`));
if (screenshot) await page.screenshot({ path: screenshot, fullPage: true });
console.log(JSON.stringify({ ...seen, errors, faults }));
if (until === "done" || until === "reload") await browser.close();
else process.exit(browser.process().kill("SIGKILL") ? 0 : 1); // a phone whose browser is gone
