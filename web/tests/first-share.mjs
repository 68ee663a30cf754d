// From the setup link to a share that can be mounted, as a newcomer clicks: password, pool from free disks, share. Prints the seconds that the clicks
// take, without the time for reading and thinking, how many clicks and fields there were, and the dataset that is shared.
// usage: node first-share.mjs LINK   (CHROMIUM is the browser; the appliance has free disks)

import { chromium } from 'playwright-core';

const [link] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });
const context = await browser.newContext({ ignoreHTTPSErrors: true, locale: 'en-GB', viewport: { width: 1200, height: 800 } });
const page = await context.newPage();
page.setDefaultTimeout(30_000);
let clicks = 0;
let fields = 0;
const click = async (locator) => {
  clicks += 1;
  await locator.click();
};
const fill = async (label, text) => {
  fields += 1;
  await page.getByLabel(label).fill(text);
};
const began = Date.now();
const step = (name) => console.log(`${name}\t${((Date.now() - began) / 1000).toFixed(1)} s`);
await page.goto(link);
await fill('Name', 'ann');
await fill('Password', 'correct horse battery');
await click(page.getByRole('button', { name: 'Become owner' }));
await page.getByRole('navigation').first().waitFor();
step('owner');
await click(page.getByRole('navigation').getByRole('link', { name: 'Pools', exact: true }));
await click(page.getByRole('link', { name: 'New pool' }));
for (const disk of ['a', 'b', 'c', 'd']) await click(page.getByRole('button', { name: new RegExp(`^${disk} `) }));
await fill('Name of the pool', 'tank');
await click(page.getByRole('button', { name: 'Create pool' }));
await click(page.getByRole('button', { name: 'Run', exact: true }));
await page.getByRole('heading', { name: 'Pool tank' }).waitFor();
step('pool');
await click(page.getByRole('link', { name: /^Files: / }));
await click(page.getByRole('button', { name: 'Run', exact: true }));
await page.getByText('To mount it').first().waitFor();
step('share');
console.log(`${clicks} clicks, ${fields} fields`);
await browser.close();
