// The console in Chromium, from the setup link to a destroyed snapshot: what a person sees, types and clicks.
// usage: node console.mjs LINK SCREENSHOTS   (the setup link of an appliance that has a pool 'tank' with a file system 'tank/fs')

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { chromium } from 'playwright-core';

const [link, pictures] = process.argv.slice(2);
const origin = new URL(link).origin;
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });
const context = await browser.newContext({ ignoreHTTPSErrors: true, locale: 'en-GB', viewport: { width: 1200, height: 800 } });
const page = await context.newPage();
page.setDefaultTimeout(10_000);
const failures = [];
page.on('pageerror', (error) => failures.push(`${page.url()}: ${error}`));
page.on('console', (message) => {
  // A refused log-in and the question who one is are answered with 401, which the browser prints.
  if (message.type() === 'error' && !message.text().includes('401')) failures.push(`${page.url()}: ${message.text()}`);
});

/** Looks at a screen in light, dark and at the width of a phone, for accessibility in each, and keeps a picture. */
async function look(name) {
  for (const [form, scheme, width] of [['light', 'light', 1200], ['dark', 'dark', 1200], ['phone', 'light', 390]]) {
    await page.emulateMedia({ colorScheme: scheme, reducedMotion: 'reduce' });
    await page.setViewportSize({ width, height: 800 });
    // The page's own policy forbids scripts that are not its own; this one comes from outside of it.
    const found = await page.evaluate(`${axe}; axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa'] })`);
    for (const { id, nodes } of found.violations) failures.push(`${name} ${form}: ${id}: ${nodes[0].html}`);
    const wide = await page.evaluate('document.documentElement.scrollWidth - innerWidth');
    if (wide > 0) failures.push(`${name} ${form}: ${wide} pixels wider than the window`);
    if (pictures) await page.screenshot({ path: `${pictures}/${name}-${form}.png` });
  }
  await page.setViewportSize({ width: 1200, height: 800 });
  await page.emulateMedia({ colorScheme: 'light' });
}

const password = 'correct horse battery';
try {
  await page.goto(link);
  await page.getByLabel('Name').fill('ann');
  await page.getByLabel('Password').fill(password);
  await look('setup');
  await page.getByRole('button', { name: 'Become owner' }).click();
  await page.getByRole('link', { name: 'tank', exact: true }).waitFor();
  await look('dashboard');
  await page.getByRole('link', { name: 'tank', exact: true }).click();
  await page.getByText('mirror-0').waitFor();
  await page.getByRole('button', { name: 'Scrub' }).click();
  await page.getByRole('button', { name: 'Run' }).click();
  await page.getByText('Last scrub').waitFor();
  await look('pool');
  await page.getByRole('link', { name: 'Datasets' }).click();
  await page.getByRole('link', { name: 'tank/fs', exact: true }).waitFor();
  await look('datasets');
  await page.getByRole('link', { name: 'tank/fs', exact: true }).click();
  await page.getByRole('button', { name: 'Take snapshot' }).click();
  await page.getByLabel('Name of the snapshot').fill('monday');
  await page.getByText('zfs snapshot tank/fs@monday').waitFor();
  await look('snapshot-dialog');
  await page.getByRole('button', { name: 'Run' }).click();
  await page.getByRole('rowheader', { name: 'monday' }).waitFor();
  await look('dataset');
  // The same again fails, with the words of the command.
  await page.getByRole('button', { name: 'Take snapshot' }).click();
  await page.getByLabel('Name of the snapshot').fill('monday');
  await page.getByRole('button', { name: 'Run' }).click();
  await page.getByText('dataset already exists').waitFor();
  await page.getByRole('button', { name: 'Close' }).click();
  await page.getByRole('button', { name: 'Destroy: monday' }).click();
  if (await page.getByRole('button', { name: 'Run' }).isEnabled()) failures.push('destroy: the name is not asked for');
  await page.getByLabel('To confirm, type').fill('monday');
  await page.getByRole('button', { name: 'Run' }).click();
  await page.getByText('No snapshots.').waitFor();
  await page.getByRole('link', { name: 'Jobs' }).click();
  await page.getByRole('link', { name: 'zfs destroy tank/fs@monday' }).waitFor();
  await look('jobs');
  await page.getByRole('link', { name: 'zfs destroy tank/fs@monday' }).click();
  await page.getByText('No output.').waitFor();
  await look('job');
  // A page can be reloaded, and opened from a link.
  await page.goto(`${origin}/datasets/tank%2Ffs`);
  await page.getByText('recordsize').waitFor();
  await page.getByRole('button', { name: 'Deutsch' }).click();
  await page.getByRole('heading', { name: 'Eigenschaften' }).waitFor();
  await page.getByRole('button', { name: 'English' }).click();
  await page.getByRole('button', { name: 'Log out' }).click();
  await page.getByRole('button', { name: 'Log in' }).waitFor();
  await page.getByLabel('Name').fill('ann');
  await page.getByLabel('Password').fill('not the password');
  await page.getByRole('button', { name: 'Log in' }).click();
  await page.getByRole('alert').filter({ hasText: /./ }).waitFor();
  await page.getByLabel('Password').fill(password);
  await page.getByRole('button', { name: 'Log in' }).click();
  await page.getByText('recordsize').waitFor();
} catch (error) {
  failures.push(`${page.url()}: ${error}`);
  if (pictures) await page.screenshot({ path: `${pictures}/failure.png` });
}
await browser.close();
for (const failure of failures) console.error(failure);
process.exit(failures.length ? 1 : 0);
