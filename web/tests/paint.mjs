// First paint and scrolling of the console in Chromium, with whatever the appliance has.
// usage: node paint.mjs URL USER PASSWORD   (CHROMIUM is the browser). Screens of datasets are those of 'tank/many'.
// Each screen is opened five times, each time in a browser without a cache; what counts is its first paint and when its first row is there.

import { chromium } from 'playwright-core';

const [origin, user, password] = process.argv.slice(2);
const GOAL_MS = 1000;
const ROUNDS = 5;
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });
const fresh = (storageState) => browser.newContext({ ignoreHTTPSErrors: true, locale: 'en-GB', viewport: { width: 1200, height: 800 }, storageState });
const entry = await (await fresh()).newPage();
await entry.goto(origin);
await entry.getByLabel('Name').fill(user);
await entry.getByLabel('Password').fill(password);
await entry.getByRole('button', { name: 'Log in' }).click();
await entry.getByRole('navigation').first().waitFor();
const state = await entry.context().storageState();
const median = (list) => list.sort((one, other) => one - other)[Math.floor(list.length / 2)];
let late = 0;

console.log('| screen | first paint, median ms | first row, median ms |\n| --- | --- | --- |');
for (const [name, path, row] of [
  ['dashboard', '/', 'h1'],
  ['datasets', '/datasets', 'tbody tr'],
  ['a dataset with its snapshots', '/datasets/tank%2Fmany', 'text=/^s\\d+$/'],
  ['iSCSI targets', '/targets', 'h2'],
  ['NFS shares', '/shares', 'h2'],
  ['disks', '/disks', 'tbody tr'],
  ['live', '/live', 'tbody tr'],
  ['why was it slow', '/why', 'h1'],
  ['jobs', '/jobs', 'tbody tr'],
]) {
  const paints = [];
  const rows = [];
  for (let round = 0; round < ROUNDS; round += 1) {
    const context = await fresh(state);
    const page = await context.newPage();
    await page.goto(origin + path, { waitUntil: 'commit' });
    const began = Date.now();
    await page.locator(row).first().waitFor({ timeout: 20_000 });
    rows.push(Date.now() - began);
    // What is in the document may not be painted yet.
    await page.waitForFunction(() => performance.getEntriesByName('first-contentful-paint').length > 0);
    paints.push(await page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN));
    await context.close();
  }
  const [paint, first] = [median(paints), median(rows)];
  console.log(`| ${name} | ${paint.toFixed(0)} | ${first} |`);
  if (!(paint <= GOAL_MS)) late += 1;
}

// A screen of snapshots is scrolled by its height, fifty times as fast as frames come, then to its end.
const page = await (await fresh(state)).newPage();
await page.goto(`${origin}/datasets/tank%2Fmany`);
await page.locator('text=/^s\\d+$/').first().waitFor();
const frames = await page.evaluate(async () => {
  const region = [...document.querySelectorAll('*')].find((one) => one.scrollHeight > one.clientHeight + 2000 && getComputedStyle(one).overflowY !== 'visible' && one !== document.documentElement);
  if (!region) return [];
  const gaps = [];
  let before = performance.now();
  for (let step = 0; step < 50; step += 1) {
    region.scrollTop += region.clientHeight;
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    gaps.push(now - before);
    before = now;
  }
  region.scrollTop = region.scrollHeight;
  await new Promise((done) => setTimeout(done, 2000));
  return gaps;
});
const gaps = frames.sort((one, other) => one - other);
console.log(`scrolling ${gaps.length} screens of snapshots: ${median([...gaps])?.toFixed(0)} ms a frame, longest ${gaps.at(-1)?.toFixed(0)} ms`);
await browser.close();
if (late > 0 || gaps.length === 0) process.exit(1);
