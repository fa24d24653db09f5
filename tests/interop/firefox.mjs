// Firefox for a test: reads a command a line as JSON, and answers it with a line of JSON.
// Arguments: address of puppeteer-core's module, executable of Firefox, script that runs before each page.
// {open: URL, widths: {light, dark}}: open the page in both themes, and wait until it was drawn.
// {gone: true}: wait until the agent is gone. {measure: FUNCTION, theme, width}: the function's result at this width.
// Each answer has errors in the console, and requests to other hosts, since the answer before.
import { createInterface } from "node:readline";

const [module, executablePath, script] = process.argv.slice(2);
const { default: puppeteer } = await import(module);
const launch = (dark) => puppeteer.launch({ browser: "firefox", executablePath, headless: true, timeout: 120000, extraPrefsFirefox: {
  "layout.css.prefers-color-scheme.content-override": dark ? 0 : 1, "ui.prefersReducedMotion": 1 } });
const [light, dark] = await Promise.all([launch(false), launch(true)]);
const pages = {};
const addresses = ["data:"]; // the page before may ask its agent while the next one opens
let mishaps = [];

async function prepare(theme, browser) {
  const page = pages[theme] = await browser.newPage();
  page.setDefaultTimeout(120000);
  page.on("console", (line) => { if (["error", "warn"].includes(line.type())) mishaps.push(line.text()); });
  page.on("pageerror", (error) => mishaps.push(error.message));
  page.on("request", (request) => { if (!addresses.some((address) => request.url().startsWith(address))) mishaps.push(request.url()); });
  await page.evaluateOnNewDocument(`(${script})()`);
}

async function open(page, address, width) {
  await page.setViewport({ width, height: 900 });
  await page.goto(address);
  await page.waitForFunction("document.body.dataset.updates > 0", { polling: 50 });
}

async function measure(page, width, script) {
  await page.setViewport({ width, height: 900 });
  await page.waitForFunction(`innerWidth === ${width}`, { polling: 20 });
  await page.evaluate("new Promise(requestAnimationFrame)"); // wires follow the size of the cards
  return page.evaluate(`(${script})()`);
}

await Promise.all([prepare("light", light), prepare("dark", dark)]);
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line), answer = {};
  if (command.open) {
    addresses.push(command.open);
    await Promise.all(Object.entries(command.widths).map(([theme, width]) => open(pages[theme], command.open, width)));
  }
  if (command.gone) await Promise.all(Object.values(pages).map((page) => page.waitForSelector("#stale:not([hidden])", { polling: 50 })));
  if (command.measure) answer.measured = await measure(pages[command.theme], command.width, command.measure);
  answer.mishaps = mishaps;
  mishaps = [];
  console.log(JSON.stringify(answer));
}
await Promise.all([light.close(), dark.close()]);
