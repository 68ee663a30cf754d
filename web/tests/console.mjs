// The console in Chromium, from the setup link to a destroyed snapshot: what a person sees, types and clicks.
// usage: node console.mjs LINK SCREENSHOTS   (the setup link of an appliance that has a pool 'tank' with a file system 'tank/fs', and free disks)

import { execFileSync } from 'node:child_process';
import { createHmac } from 'node:crypto';
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
// No name or value of a person's choice runs as a script of the page.
page.on('dialog', (dialog) => {
  failures.push(`${page.url()}: a dialog of a script: ${dialog.message()}`);
  void dialog.dismiss();
});
page.on('console', (message) => {
  // A refused log-in and the question who one is are answered with 401, a policy that cannot be read with 422, which the browser prints.
  // The page of a job that is removed may ask for it once more (404).
  const gone = /status of 404/.test(message.text()) && /\/replications\/vm$/.test(message.location().url);
  if (message.type() === 'error' && !gone && !/status of (401|422)/.test(message.text())) failures.push(`${page.url()}: ${message.text()}`);
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
const run = () => page.getByRole('button', { name: 'Run', exact: true }).click();
const link1 = (name) => page.getByRole('navigation').getByRole('link', { name, exact: true });

/** A pool from four disks: the layouts are offered with their capacity, and the command is the one that makes it. */
async function poolWizard() {
  await link1('Pools').click();
  await page.getByRole('link', { name: 'New pool' }).click();
  for (const disk of ['c', 'd', 'e', 'f']) await page.getByRole('button', { name: new RegExp(`^${disk} `) }).click();
  await page.getByLabel('Name of the pool').fill('vault');
  await page.getByText('2 × 2').waitFor();
  await page.getByRole('radio', { name: /^raidz2/ }).check();
  await page.getByText(/zpool create vault raidz2 .*\/c .*\/d .*\/e .*\/f$/).waitFor();
  await page.getByText('2 disks may fail').waitFor();
  await page.getByRole('radio', { name: 'Spare' }).check();
  await page.getByRole('button', { name: /^g / }).click();
  await page.getByText(/spare .*\/g$/).waitFor();
  await look('new-pool');
  await page.getByRole('radio', { name: /^Stripe/ }).check();
  await page.getByText('if a disk fails, everything in the pool is lost').waitFor();
  await page.getByRole('radio', { name: /^raidz2/ }).check();
  await page.getByRole('button', { name: 'Create pool' }).click();
  await run();
  await page.getByRole('heading', { name: 'Pool vault' }).waitFor();
  await page.getByText('raidz2-0').waitFor();
  await look('first-step');
  await page.getByRole('link', { name: /^Blocks: / }).click();
  await page.getByText(/zfs create -s -V 100G .* vault\/disk1\n.*sanbox target create .*\n.*sanbox target map .* vault\/disk1/).waitFor();
  await page.getByRole('button', { name: 'Close' }).click();
  await page.goto(`${origin}/pools/vault?new`);
  await page.getByRole('link', { name: /^Files: / }).click();
  // It says who may write: root of the clients is nobody.
  await page.getByText(/zfs create -o sharenfs=rw vault\/share\nsanbox acl mode vault\/share:\/ 777/).waitFor();
  await page.getByLabel('Who may write').selectOption('one');
  await page.getByText(/sanbox acl owner vault\/share:\/ 1000:1000/).waitFor();
  await page.getByRole('button', { name: 'Close' }).click();
}

/** Which disks there are, what holds them; one is taken offline and brought back. */
async function disks() {
  await link1('Disks').click();
  await page.getByRole('row', { name: /^c / }).getByText('vault').waitFor();
  await page.getByText('contains an ext2, ext3 or ext4 file system').waitFor();
  await page.getByRole('button', { name: 'Take offline: c' }).click();
  await run();
  await page.getByRole('row', { name: /^c / }).getByText('OFFLINE').waitFor();
  await look('disks');
  await page.getByRole('button', { name: 'Bring online: c' }).click();
  await run();
  await page.getByRole('row', { name: /^c / }).getByText('ONLINE').waitFor();
}

async function shares() {
  await link1('NFS shares').click();
  await page.getByRole('button', { name: 'New share' }).click();
  await page.getByLabel('Name', { exact: true }).fill('share');
  await page.getByLabel(/These hosts/).fill('10.0.0.0/24 fd00::/16 esx1');
  await page.getByText("zfs create -o 'sharenfs=rw=@10.0.0.0/24:@[fd00::]/16:esx1' tank/share").waitFor();
  await run();
  await page.getByText('10.0.0.0/24, fd00::/16, esx1: Read and write').waitFor();
  await page.getByText('To mount it').click();
  await page.getByText(/mount -t nfs -o .* 127\.0\.0\.1:\/tank\/share/).waitFor();
  await look('shares');
}

async function targets() {
  await link1('iSCSI').click();
  await page.getByRole('button', { name: 'New target' }).click();
  await page.getByLabel('iSCSI name').fill('iqn.2026-11.org.example:vms');
  await page.getByLabel(/^Allow/).fill('10.0.0.0/24');
  await run();
  await page.getByRole('heading', { name: 'iqn.2026-11.org.example:vms' }).waitFor();
  await page.getByRole('button', { name: 'New volume' }).click();
  await page.getByLabel('Size, such as 100G').fill('32M');
  await look('new-volume');
  await run();
  await page.getByRole('button', { name: 'Take away: tank/disk1' }).waitFor();
  await page.getByRole('button', { name: 'CHAP: iqn.2026-11.org.example:vms' }).click();
  await page.getByLabel('User').fill('host1');
  await page.getByLabel(/^Secret/).fill('correct horse battery');
  if (await page.locator('dialog pre').filter({ hasText: 'correct horse' }).count()) failures.push('chap: the secret is shown');
  await run();
  await page.getByText('host1').waitFor();
  await page.getByText('To connect').click();
  await page.getByRole('radio', { name: 'Hyper-V' }).check();
  await page.getByText('Connect-IscsiTarget -NodeAddress iqn.2026-11.org.example:vms').waitFor();
  await look('targets');
}

async function liveView() {
  await link1('Live I/O').click();
  await page.getByRole('heading', { name: 'Pool vault' }).waitFor();
  await page.getByRole('row', { name: /mirror-0/ }).waitFor();
  // A line needs two samples.
  await page.locator('.spark polyline').first().waitFor({ state: 'attached' });
  await page.getByRole('button', { name: 'Freeze' }).click();
  await look('live');
  await page.getByRole('button', { name: 'Go on' }).click();
}

/** A schedule in numbers, with what it leaves; one that destroys snapshots says how many, and asks. */
async function schedules() {
  zfs('create', 'vault/plans');
  await link1('Schedules').click();
  await page.getByText('No dataset has a schedule.').waitFor();
  await page.getByRole('button', { name: 'New schedule' }).click();
  await page.getByLabel('Dataset').selectOption('vault/plans');
  await page.getByLabel('Monthly').fill('3');
  await page.getByLabel('Time of day').fill('03:30');
  await page.getByRole('checkbox', { name: 'vm' }).check();
  await page.getByRole('checkbox', { name: 'database' }).check();
  await page.getByRole('img', { name: 'Snapshots that will exist: hourly 24, daily 7, weekly 4' }).waitFor();
  await page.getByRole('radio', { name: '1 y' }).check();
  await page.getByRole('img', { name: /weekly 4, monthly 3$/ }).waitFor();
  await look('schedule');
  await page.getByRole('button', { name: 'Set', exact: true }).click();
  await page.getByText("sanbox policy set vault/plans 'hourly=24 daily=7 weekly=4 monthly=3 at=03:30 hook=vm,database'").waitFor();
  await run();
  await page.getByRole('rowheader', { name: 'vault/plans' }).waitFor();
  await page.getByLabel('As a line').waitFor({ state: 'detached' });
  await page.getByRole('button', { name: 'Change: vault/plans' }).click();
  await page.getByLabel('As a line').fill('fortnightly=2');
  await page.getByText("bad policy: 'fortnightly' is no part of a policy").waitFor();
  await page.getByRole('button', { name: 'Close' }).click();
  // The first snapshots are due at once; the daemon looks every 15 s.
  const failed = page.getByRole('row', { name: /^vm 10 s .*'before': .*exit status: 3: no licence$/ });
  for (const end = Date.now() + 60_000; !(await failed.isVisible()) && Date.now() < end; ) {
    await page.reload();
    await page.getByRole('rowheader', { name: 'database' }).waitFor();
    await page.waitForTimeout(1000);
  }
  await failed.waitFor();
  await page.getByRole('row', { name: /^database 5 s .* works$/ }).waitFor();
  await look('schedules');
  await page.getByRole('button', { name: 'Clear: vault/plans' }).click();
  await run();
  await page.getByText('No dataset has a schedule.').waitFor();
}

/** A dataset is kept the same on another pool: made, run, looked at, changed, put in use there and brought back. */
async function replication() {
  zfs('create', 'tank/vm');
  zfs('snapshot', 'tank/vm@one');
  await link1('Replication').click();
  await page.getByText('No dataset is kept the same in another place.').waitFor();
  await page.getByRole('button', { name: 'New job' }).click();
  await page.getByLabel(/^Source/).selectOption('tank/vm');
  await page.getByLabel('Target in').selectOption('vault');
  await page.getByLabel(/^The target keeps/).fill('daily=30');
  await page.getByText('sanbox replication create vm --from=tank/vm --to=vault/vm --recursive').waitFor();
  await look('new-replication');
  await page.getByRole('button', { name: 'What would be sent' }).click();
  await run();
  await page.getByText('tank/vm to vault/vm: would be sent: 1 streams, up to @one').waitFor();
  await page.getByRole('button', { name: 'Close' }).last().click();
  await page.getByLabel(/^Every/).fill('often');
  await page.getByRole('button', { name: 'Create', exact: true }).click();
  await run();
  await page.getByText("'often' is no interval").waitFor();
  await page.getByRole('button', { name: 'Close' }).last().click();
  await page.getByLabel(/^Every/).fill('1h');
  await page.getByRole('button', { name: 'Create', exact: true }).click();
  await run();
  await page.getByRole('heading', { name: 'Replication vm' }).waitFor();
  await page.getByRole('rowheader', { name: 'tank/vm' }).waitFor();
  await page.getByText('vault/vm@one').waitFor();
  zfs('snapshot', 'tank/vm@two');
  await page.getByRole('button', { name: 'Run now' }).click();
  await run();
  await page.getByText('sent vault/vm@two').waitFor();
  await page.getByRole('button', { name: 'Close' }).click();
  await page.getByRole('cell', { name: 'vault/vm@two' }).waitFor();
  await look('replication-job');
  await page.getByRole('button', { name: 'Edit' }).click();
  await page.getByLabel(/^At most, bytes a second/).fill('20M');
  await page.getByText('sanbox replication change vm --bandwidth=20M').waitFor();
  await page.getByRole('button', { name: 'Save' }).click();
  await run();
  await page.getByRole('definition').filter({ hasText: '20M' }).waitFor();
  await page.getByRole('button', { name: 'Pause' }).click();
  await run();
  await page.getByText('paused', { exact: true }).waitFor();
  await page.getByRole('button', { name: 'Resume' }).click();
  await run();
  await page.getByText('complete', { exact: true }).first().waitFor();
  await page.getByRole('button', { name: 'Test on clones' }).click();
  await page.getByText('vault/vm-test would be made, a writable clone of vault/vm@two').waitFor();
  await run();
  await page.getByText('vault/vm-test is writable').waitFor();
  await page.getByRole('button', { name: 'Close' }).click();
  await page.getByRole('button', { name: 'End the test' }).click();
  await page.getByText('vault/vm-test would be destroyed').waitFor();
  await run();
  await page.getByText('destroyed vault/vm-test').waitFor();
  await page.getByRole('button', { name: 'Close' }).click();
  await page.getByRole('button', { name: 'Fail over' }).click();
  // What would happen is said before anything is done.
  await page.getByText(/tank\/vm would be read-only, and neither shared nor mapped\s+vault\/vm would be writable, and act in place of its source/).waitFor();
  if (await page.getByRole('button', { name: 'Run', exact: true }).isEnabled()) failures.push('fail over: the name is not asked for');
  await page.getByLabel('To confirm, type').fill('vm');
  await look('fail-over');
  await run();
  await page.getByText('vault/vm is writable').waitFor();
  await page.getByRole('button', { name: 'Close' }).click();
  await page.getByText('failed over: the target is in use').waitFor();
  await link1('Replication').click();
  await page.getByRole('row', { name: /^vm tank\/vm vault\/vm failed over/ }).waitFor();
  await look('replication');
  await fences();
  await link1('Replication').click();
  await page.getByRole('button', { name: 'Fail back and roll the source back: vm' }).waitFor();
  await page.getByRole('button', { name: 'Fail back: vm' }).click();
  await page.getByText(/vault\/vm to tank\/vm: what came after @two would be sent: 0 snapshots.*\n.*tank\/vm would be writable, and vault\/vm its read-only copy/).waitFor();
  await page.getByRole('button', { name: 'Close' }).click();
  await page.getByRole('link', { name: 'vm', exact: true }).click();
  await page.getByRole('button', { name: 'Fail back', exact: true }).click();
  await page.getByLabel('To confirm, type').fill('vm');
  await run();
  await page.getByRole('button', { name: 'Run now' }).waitFor();
  if (await page.locator('dialog').count()) await page.getByRole('button', { name: 'Close' }).click();
  await page.getByText('Actions').click();
  await page.getByRole('button', { name: 'Remove job' }).click();
  await page.getByLabel('To confirm, type').fill('vm');
  await run();
  await page.getByText('No dataset is kept the same in another place.').waitFor();
  if (await page.locator('dialog').count()) await page.getByRole('button', { name: 'Close' }).click();
}

/** Of a source and its copy one is in use: the other is shown as fenced, with the way out of it; a copy is put in use on its own page. */
async function fences() {
  await link1('Datasets').click();
  await page.getByRole('row', { name: /^tank\/vm fenced / }).waitFor();
  await page.getByRole('link', { name: 'tank/vm', exact: true }).click();
  const card = page.getByRole('region', { name: 'Replication' });
  await card.getByText('Its copy is in use in place of it.').waitFor();
  await card.getByRole('link', { name: 'vm', exact: true }).waitFor();
  await look('fenced');
  await link1('Alerts').click();
  for (const end = Date.now() + 60_000; !(await page.getByRole('link', { name: 'dataset tank/vm', exact: true }).isVisible()) && Date.now() < end; ) {
    await page.getByRole('button', { name: /^Run now: replication$/ }).click();
    await run();
    await page.waitForTimeout(1000);
    if (await page.locator('dialog').count()) await page.getByRole('button', { name: 'Close' }).last().click();
    await page.reload();
    await page.getByRole('heading', { name: 'Checks' }).waitFor();
  }
  await page.getByRole('link', { name: 'dataset tank/vm', exact: true }).click();
  await page.getByRole('button', { name: 'Put in use again' }).click();
  await page.getByText('tank/vm would be writable, and its copy would be fenced').waitFor();
  await page.getByLabel('To confirm, type').fill('tank/vm');
  await look('take-over');
  await page.getByRole('button', { name: 'Close' }).click();
  await link1('Datasets').click();
  await page.getByRole('link', { name: 'vault/vm', exact: true }).click();
  await card.getByText('a copy in use in place of its source').waitFor();
  if (await page.getByRole('button', { name: 'Take over' }).count()) failures.push('take over: offered for what is in use');
}

/** A limit and the log are changed while the appliance runs, by their commands. */
async function settings() {
  await link1('Settings').click();
  await page.getByRole('row', { name: /^l2arc_write_max / }).waitFor();
  await page.getByRole('button', { name: 'Change: l2arc_write_max' }).click();
  await page.getByLabel('Value').fill('1K');
  await run();
  await page.getByText('1024 is not between').waitFor();
  await page.getByRole('button', { name: 'Close' }).click();
  await page.getByRole('button', { name: 'Change: l2arc_write_max' }).click();
  await page.getByLabel('Value').fill('64M');
  await page.getByText('sanbox tune l2arc_write_max=64M').waitFor();
  await run();
  await page.getByRole('cell', { name: '67,108,864' }).waitFor();
  await page.getByRole('button', { name: 'Change: Levels of the log' }).click();
  await page.getByLabel('Levels of the log').last().fill('info,nfs=debug');
  await page.getByText('sanbox log info,nfs=debug').waitFor();
  await run();
  await page.getByText('info,nfs=debug', { exact: true }).waitFor();
  await page.getByText(/^([0-9A-F]{2}:){31}[0-9A-F]{2}$/).waitFor();
  await look('settings');
  await page.getByRole('button', { name: 'Make a support bundle' }).click();
  await page.getByText('sanbox support', { exact: true }).waitFor();
  await run();
  await page.getByText(/support\.tar/).waitFor({ timeout: 60_000 });
  await page.getByRole('button', { name: 'Close' }).click();
  const [bundle] = await Promise.all([page.waitForEvent('download'), page.getByRole('link', { name: 'Download' }).click()]);
  if (!execFileSync('tar', ['tf', await bundle.path()], { encoding: 'utf8' }).includes('sanbox-support/doctor.txt')) failures.push('support: no bundle');
}

/** What was set is taken back from the log, and the page says so. */
async function undo() {
  zfs('set', 'compression=gzip', 'tank/fs');
  await link1('Jobs').click();
  await page.getByRole('link', { name: 'zfs set compression=gzip tank/fs' }).first().click();
  await page.getByRole('button', { name: 'Undo' }).click();
  await page.getByText('zfs inherit compression tank/fs', { exact: true }).waitFor();
  await page.getByText(/^sanbox undo \d+$/).waitFor();
  await look('undo');
  await run();
  await page.getByRole('definition').filter({ hasText: 'undone' }).waitFor();
  await page.getByRole('dialog').getByRole('button', { name: 'Close' }).click();
  if (!execFileSync('zfs', ['get', '-H', '-o', 'source', 'compression', 'tank/fs'], { encoding: 'utf8' }).includes('default')) failures.push('undo: nothing was undone');
}

/** A device taken away is an alert; whoever sees to it says so, and it is over when the device is back. */
async function alerts() {
  const disk = execFileSync('zpool', ['list', '-HvP', '-o', 'name', 'vault'], { encoding: 'utf8' }).split('\n').map((line) => line.trim().split('\t')[0]).find((name) => name.endsWith('/c'));
  execFileSync('zpool', ['offline', 'vault', disk]);
  await link1('Alerts').click();
  const alert = page.getByRole('region', { name: /^Alert / }).filter({ hasText: 'vault' });
  await alert.first().waitFor({ timeout: 90_000 });
  // A pool that was opened after the start of the appliance is none.
  if (await page.getByText("Pool 'tank' is not open").count()) failures.push('alerts: an open pool is reported as closed');
  await look('alerts');
  await alert.first().getByRole('button', { name: /^Acknowledge: / }).click();
  await alert.getByText('Acknowledged by').waitFor();
  await page.getByText(/sanbox alert acknowledge \d+/).waitFor();
  await alert.first().getByRole('button', { name: /^Open again: / }).click();
  await alert.first().getByRole('button', { name: /^Mute 8 h: / }).click();
  await alert.getByText('Muted by').waitFor();
  await page.getByText('Nobody is told yet.').waitFor();
  const dialog = page.getByRole('dialog');
  await page.getByRole('button', { name: 'Add mail' }).click();
  await dialog.getByLabel(/^To /).fill('anna@example.org, ben@example.org');
  await dialog.getByLabel('Mail server').fill('mail.example.org:587');
  await dialog.getByLabel('Sender').fill('nas@example.org');
  await dialog.getByLabel('User').fill('nas');
  await dialog.getByLabel('Password').fill('of the mail server');
  await page.getByText('sanbox alert channel add mail anna@example.org,ben@example.org --server mail.example.org:587 --tls starttls --from nas@example.org --user nas --severity info --password').waitFor();
  await look('alert-mail');
  await run();
  const mail = page.getByRole('rowheader', { name: 'mail anna@example.org,ben@example.org' });
  await mail.waitFor();
  await page.getByRole('button', { name: 'Add a web service' }).click();
  await dialog.getByLabel('Address').fill('https://hooks.example.org/services/SECRET');
  await run();
  await page.getByRole('rowheader', { name: 'slack hooks.example.org' }).waitFor();
  if ((await page.content()).includes('SECRET')) failures.push('alerts: the address of a web service is shown');
  await page.getByRole('button', { name: 'Remove: slack hooks.example.org' }).click();
  await run();
  await page.getByRole('button', { name: 'Remove: mail anna@example.org,ben@example.org' }).click();
  await run();
  await page.getByText('Nobody is told yet.').waitFor();
  execFileSync('zpool', ['online', 'vault', disk]);
}

/** What requests waited for in the last minutes: cut by disk, a span of its own, a link that shows the same again. */
async function why() {
  for (const name of ['one', 'two', 'three']) {
    execFileSync('sanbox', ['put', createRequire(import.meta.url).resolve('axe-core/axe.js'), `tank/share:/${name}`]);
    execFileSync('zpool', ['sync', 'tank']);
  }
  await link1('Why slow?').click();
  await page.getByRole('region', { name: 'Explanation' }).waitFor();
  await page.getByRole('radio', { name: 'Disk' }).check();
  await page.getByRole('rowheader', { name: 'tank: ' }).first().waitFor();
  await page.getByRole('radio', { name: 'Read and written' }).check();
  const chart = page.getByRole('img', { name: 'Disk: Read and written' });
  await chart.waitFor();
  await look('why');
  const box = await chart.boundingBox();
  await page.mouse.move(box.x + box.width * 0.6, box.y + 100);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.95, box.y + 100, { steps: 5 });
  await page.mouse.up();
  await page.waitForURL(/end=\d+/);
  await page.reload();
  if (!(await page.getByRole('radio', { name: 'Disk' }).isChecked())) failures.push('why: a link shows another cut');
  await page.getByRole('button', { name: 'Now' }).click();
  await page.getByRole('radio', { name: 'Pool' }).check();
}

/** The code of now of an authenticator (RFC 6238, 4.2). */
function codeOf(secret) {
  const bits = [...secret.trim().replaceAll(' ', '').toUpperCase()].map((letter) => 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567'.indexOf(letter).toString(2).padStart(5, '0')).join('');
  const key = Buffer.from(bits.match(/.{8}/g).map((byte) => parseInt(byte, 2)));
  const counter = Buffer.alloc(8);
  counter.writeBigUInt64BE(BigInt(Math.floor(Date.now() / 30_000)));
  const hash = createHmac('sha1', key).update(counter).digest();
  return String((hash.readUInt32BE(hash[19] & 15) & 0x7fffffff) % 1_000_000).padStart(6, '0');
}

let recoveryCode = '';
async function users() {
  await link1('Users').click();
  const made = page.locator('section.card').filter({ has: page.getByRole('heading', { name: 'New user', exact: true }) });
  await made.getByLabel('Name', { exact: true }).fill('bob');
  await made.getByLabel('Password', { exact: true }).fill('another good password');
  await made.getByRole('button', { name: 'New user' }).click();
  await page.getByRole('rowheader', { name: 'bob' }).waitFor();
  await page.getByText('sanbox user add bob --role operator').waitFor();
  await page.getByLabel('What it is for').fill('backup job');
  await page.getByRole('button', { name: 'New key' }).click();
  await page.getByText('Copy the key now').waitFor();
  await page.getByText("sanbox user key create ann --role owner --name 'backup job' --expires 90d").waitFor();
  await page.getByRole('rowheader', { name: 'backup job' }).waitFor();
  await page.getByRole('button', { name: 'Turn on' }).click();
  const factor = page.getByRole('region', { name: 'Second factor' });
  await factor.getByLabel('Code').fill(codeOf(await factor.locator('pre').innerText()));
  await factor.getByRole('button', { name: 'Turn on' }).click();
  await page.getByText('Keep these recovery codes').waitFor();
  recoveryCode = (await factor.locator('pre').innerText()).split('\n')[0];
  await page.getByText('turned the second factor on').waitFor();
  // A group with a role and a member: each change shows its line.
  const groups = page.locator('section.card').filter({ has: page.getByRole('heading', { name: 'Groups', exact: true }) });
  await groups.getByLabel('Name', { exact: true }).fill('storage');
  await groups.getByRole('combobox', { name: /^Role(?!:)/ }).selectOption({ label: 'Viewer: may look' });
  await groups.getByRole('button', { name: 'New group' }).click();
  await page.getByText('sanbox group add storage --role viewer').waitFor();
  await groups.getByLabel('Add: storage').fill('bob');
  await groups.getByRole('button', { name: 'Add', exact: true }).click();
  await page.getByText('sanbox group join storage bob').waitFor();
  await groups.getByLabel('Role: storage').selectOption({ label: 'Operator: datasets, snapshots, shares' });
  await page.getByText('sanbox group role storage operator').waitFor();
  await groups.getByLabel('Add: storage').fill('bad name');
  await groups.getByRole('button', { name: 'Add', exact: true }).click();
  await groups.getByRole('alert').filter({ hasText: /./ }).waitFor();
  await groups.getByLabel('Add: storage').fill('');
  await look('users');
  await groups.getByRole('button', { name: 'Take out of the group: bob, storage' }).click();
  await page.getByText('sanbox group leave storage bob').waitFor();
  await groups.getByRole('button', { name: 'Remove: storage' }).click();
  await groups.getByRole('button', { name: 'Remove', exact: true }).click();
  await page.getByText('sanbox group delete storage').waitFor();
  await page.getByRole('button', { name: 'Revoke: backup job' }).click();
  await page.getByRole('rowheader', { name: 'backup job' }).waitFor({ state: 'detached' });
  await page.getByRole('button', { name: 'Remove user: bob' }).click();
  await page.getByRole('button', { name: 'Remove', exact: true }).click();
  await page.getByRole('rowheader', { name: 'bob' }).waitFor({ state: 'detached' });
}

const evil = '<img src=x onerror=alert(1)>';
const zfs = (...words) => execFileSync('zfs', words);

/** Who may do what with a file, in plain words: the mode, a list with one user more, and what that user may do then. */
async function permissions() {
  await page.getByRole('button', { name: 'Permissions: note.txt' }).click();
  await page.getByText('The owner: Read, Change; The owning group: Read; All others: Read.').waitFor();
  await page.getByText('Files of this dataset have no lists').waitFor();
  zfs('set', 'acltype=posix', 'tank/fs');
  await page.getByRole('button', { name: 'Close' }).click();
  await page.getByRole('button', { name: 'Permissions: note.txt' }).click();
  await page.getByText('There is no list: the mode says all.').waitFor();
  await page.getByRole('button', { name: 'Add an entry' }).click();
  if (await page.getByRole('button', { name: 'Save' }).isEnabled()) failures.push('permissions: an entry without a number can be saved');
  await page.getByLabel('Number', { exact: true }).fill('1234');
  await page.getByRole('checkbox', { name: 'User 1234: Change' }).check();
  await look('permissions');
  await page.getByRole('button', { name: 'Save' }).click();
  await page.getByText('sanbox acl set tank/fs:/note.txt u::rw-,g::r--,o::r--,u:1234:rw-').waitFor();
  await run();
  await page.getByRole('checkbox', { name: 'At most (mask) : Change' }).waitFor();
  await page.getByLabel('User (name or number)').fill('1234');
  await page.getByRole('button', { name: 'Tell me why' }).click();
  await page.getByText('the POSIX list gives user 1234 rw-').first().waitFor();
  await page.getByRole('button', { name: 'No list' }).click();
  await run();
  await page.getByText('There is no list: the mode says all.').waitFor();
  await page.getByRole('region', { name: /^Permissions/ }).getByRole('button', { name: 'Close' }).click();
}

/** Files go in and come out, and come back out of a snapshot; their names are text whatever they are. */
async function files() {
  await page.getByRole('link', { name: 'Files', exact: true }).click();
  const file = (name, text) => ({ name, mimeType: 'text/plain', buffer: Buffer.from(text) });
  await page.getByLabel('Upload').setInputFiles([file('note.txt', 'first'), file(`${evil}.txt`, 'x')]);
  await page.getByRole('link', { name: `${evil}.txt` }).waitFor();
  // A name that turns letters around is shown with the mark that does it, in the list and in the command.
  await page.getByLabel('Upload').setInputFiles([file('it\u202etxt.exe', 'x')]);
  await page.getByRole('link', { name: 'it\\u202etxt.exe' }).waitFor();
  await page.getByRole('button', { name: 'Remove: it\\u202etxt.exe' }).click();
  await page.getByText("sanbox rm $'tank/fs:/it\\u202etxt.exe'").waitFor();
  await page.getByLabel('To confirm, type').fill('it\\u202etxt.exe');
  await run();
  await page.getByRole('link', { name: 'it\\u202etxt.exe' }).waitFor({ state: 'detached' });
  const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('link', { name: 'note.txt' }).click()]);
  if (readFileSync(await download.path(), 'utf8') !== 'first') failures.push('files: another content comes back');
  await page.getByRole('button', { name: 'New folder' }).click();
  await page.getByLabel('Name', { exact: true }).fill('letters');
  await run();
  await page.getByRole('link', { name: 'letters/' }).waitFor();
  await look('files');
  await permissions();
  zfs('snapshot', 'tank/fs@then');
  await page.getByRole('button', { name: 'Remove: note.txt' }).click();
  await page.getByLabel('To confirm, type').fill('note.txt');
  await run();
  await page.getByRole('link', { name: 'note.txt' }).waitFor({ state: 'detached' });
  await page.getByRole('navigation', { name: 'Path' }).getByRole('link', { name: 'tank/fs' }).click();
  await page.getByRole('button', { name: 'Compare: then' }).click();
  await run();
  await page.getByText(/^-\tF\t.*note.txt/m).waitFor();
  await page.getByRole('button', { name: 'Close' }).click();
  await page.getByRole('link', { name: 'Files: then' }).click();
  await page.getByRole('button', { name: 'Restore: note.txt' }).click();
  await page.getByText('sanbox restore tank/fs@then:/note.txt tank/fs:/note.txt').waitFor();
  await look('restore-dialog');
  await run();
  await page.locator('dialog').waitFor({ state: 'detached' });
  await page.goto(`${origin}/files/tank%2Ffs`);
  await page.getByRole('link', { name: 'note.txt' }).waitFor();
  await page.goto(`${origin}/datasets/tank%2Ffs`);
}

/** Many snapshots are few rows; what a shell takes shows here, and several go at once after it was said what that frees. */
async function manySnapshots() {
  execFileSync('sh', ['-c', 'for n in $(seq -w 0 299); do zfs snapshot tank/fs@n$n; done']);
  await page.getByRole('rowheader', { name: 'n299' }).waitFor({ timeout: 3000 });
  const rows = await page.getByRole('region', { name: 'Snapshots' }).locator('tbody tr').count();
  if (rows > 60) failures.push(`snapshots: ${rows} rows for what is in sight`);
  await page.getByRole('region', { name: 'Snapshots' }).evaluate((list) => (list.scrollTop = list.scrollHeight));
  await page.getByRole('rowheader', { name: 'monday' }).waitFor();
  await page.getByLabel('Filter').fill('n1');
  await page.getByRole('rowheader', { name: 'n199' }).waitFor();
  await page.getByRole('checkbox', { name: 'All' }).check();
  await page.getByRole('button', { name: 'Destroy: 100' }).click();
  await page.getByText(/^Frees /).waitFor();
  await page.getByLabel('To confirm, type').fill('100');
  await run();
  await page.locator('dialog').waitFor({ state: 'detached' });
  await page.getByText('No snapshots.').waitFor();
  await page.getByLabel('Filter').fill('');
  zfs('destroy', 'tank/fs@n000%n299');
  zfs('destroy', 'tank/fs@then');
  await page.getByRole('rowheader', { name: 'n299' }).waitFor({ state: 'detached', timeout: 3000 });
}

/** A key is loaded and unloaded; what is typed stands in no command line. */
async function keys() {
  await page.goto(`${origin}/datasets/tank%2Fsafe`);
  await page.getByText('Key not loaded').waitFor();
  await page.getByRole('button', { name: 'Load key' }).click();
  await page.getByLabel('Passphrase').fill('a passphrase');
  await page.getByText('zfs load-key tank/safe', { exact: true }).waitFor();
  await look('key-dialog');
  await run();
  await page.getByText('Key loaded').waitFor();
  await look('key');
  await page.getByRole('button', { name: 'Change key' }).click();
  await page.getByLabel('New passphrase').fill('another passphrase');
  await page.getByLabel('The same again').fill('another');
  if (await page.getByRole('button', { name: 'Run' }).isEnabled()) failures.push('change-key: two that differ are taken');
  await page.getByLabel('The same again').fill('another passphrase');
  await run();
  await page.locator('dialog').waitFor({ state: 'detached' });
  await page.getByRole('button', { name: 'Unload key' }).click();
  await run();
  await page.getByText('Key not loaded').waitFor();
}

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
  await poolWizard();
  await disks();
  await shares();
  await targets();
  await liveView();
  await why();
  await schedules();
  await replication();
  await settings();
  await alerts();
  await users();
  await keys();
  await link1('Datasets').click();
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
  await page.getByText(evil).waitFor();
  await files();
  await manySnapshots();
  await page.getByRole('button', { name: 'Destroy: monday' }).click();
  if (await page.getByRole('button', { name: 'Run' }).isEnabled()) failures.push('destroy: the name is not asked for');
  await page.getByLabel('To confirm, type').fill('monday');
  await page.getByRole('button', { name: 'Run' }).click();
  await page.getByText('No snapshots.').waitFor();
  await link1('Jobs').click();
  await page.getByRole('link', { name: 'zfs destroy tank/fs@monday' }).waitFor();
  await look('jobs');
  await page.getByRole('link', { name: 'zfs destroy tank/fs@monday' }).click();
  await page.getByText('No output.').waitFor();
  await look('job');
  await undo();
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
  await page.getByLabel('Code of the authenticator, or a recovery code').fill(recoveryCode);
  await look('second-factor');
  await page.getByRole('button', { name: 'Log in' }).click();
  await page.getByText('recordsize').waitFor();
} catch (error) {
  failures.push(`${page.url()}: ${error}`);
  if (pictures) await page.screenshot({ path: `${pictures}/failure.png` });
}
await browser.close();
for (const failure of failures) console.error(failure);
process.exit(failures.length ? 1 : 0);
