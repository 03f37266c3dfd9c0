// The report in a real browser: every test opens a page, does what a reader would do, and looks at what is there.
//
//   CLEAVE=build/cleave CLEAVE_PAGE=build/tests/page node --test tests/browser/
//
// CHROMIUM names another browser, SCREENSHOTS a folder for pictures (else one in the folder for temporary files).
import assert from 'node:assert/strict';
import {execFileSync, spawnSync} from 'node:child_process';
import {mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync} from 'node:fs';
import {tmpdir} from 'node:os';
import {join, resolve} from 'node:path';
import {after, before, test} from 'node:test';
import {fileURLToPath, pathToFileURL} from 'node:url';

import {chromium} from 'playwright-core';

import {chain, hostile, residual, unsafe} from './plans.mjs';

const cleave = resolve(process.env.CLEAVE || 'build/cleave'),
  maker = resolve(process.env.CLEAVE_PAGE || 'build/tests/page');
const work = mkdtempSync(join(tmpdir(), 'cleave-report-'));
const pictures = process.env.SCREENSHOTS || join(work, 'pictures');
let browser;

before(async () => {
  mkdirSync(pictures, {recursive: true});
  const executablePath =
    process.env.CHROMIUM || execFileSync('sh', ['-c', 'command -v chromium'], {encoding: 'utf8'}).trim();
  browser = await chromium.launch({executablePath, args: ['--no-sandbox']});
});

after(async () => {
  await browser?.close();
  if (!process.env.SCREENSHOTS) rmSync(work, {recursive: true, force: true});
});

// ---- pages and what is known about them ----

let files = 0;
function planFile(text) {
  const path = join(work, `${files++}.plan`);
  writeFileSync(path, text);
  return path;
}

/* All frontiers as the command counts them. Its exit code says whether one can be taken, which is not asked here. */
function frontiers(path, ...options) {
  const {stdout, stderr} = spawnSync(cleave, ['candidates', '--json', ...options, path], {
    encoding: 'utf8',
    maxBuffer: 1 << 28,
  });
  assert.ok(stdout.startsWith('['), stderr);
  return JSON.parse(stdout);
}

/* Opens the report of a plan. The page may not complain, but of what `mayComplain` matches, nor ask for anything. */
async function open(t, text, {words = [], mayComplain = null, ...options} = {}) {
  const path = planFile(text),
    html = path.replace('.plan', '.html');
  execFileSync(maker, [path, html, ...words]);
  return {page: await show(t, html, {mayComplain, ...options}), path};
}

async function show(t, html, {mayComplain = null, ...options} = {}) {
  const page = await browser.newPage({viewport: {width: 1440, height: 900}, reducedMotion: 'reduce', ...options});
  const complaints = [],
    requests = [];
  page.on('console', m => complaints.push(m.text()));
  page.on('pageerror', e => complaints.push(e.message));
  page.on('dialog', d => complaints.push(`dialog: ${d.message()}`));
  page.on('request', r => requests.push(r.url()));
  const url = String(pathToFileURL(html));
  await page.goto(url);
  await page.waitForSelector('html[data-ready=yes]');
  t.after(async () => {
    await page.screenshot({path: join(pictures, `${t.name.replace(/\W+/g, '-')}.png`)});
    await page.close();
    assert.deepEqual(
      complaints.filter(c => !mayComplain?.test(c)),
      [],
    );
    assert.deepEqual(
      requests.filter(r => r !== url && !r.startsWith('data:')),
      [],
    );
  });
  return page;
}

const box = (page, title) =>
  page.locator('.box').filter({has: page.locator('.title', {hasText: new RegExp(`^${title}( |$|[A-Z])`)})});
const head = {position: {x: 14, y: 12}};
const fact = async (page, name) => Number(await page.locator(`[data-fact=${name}]`).first().getAttribute('data-value'));
const setCut = (page, k) => page.locator('#slider').fill(String(k));
const cutName = page => page.locator('#cut-name').textContent();
const near = (got, want, what) =>
  assert.ok(Math.abs(got - want) <= 1e-9 * Math.abs(want), `${what}: ${got} is not ${want}`);

/* The numbers in the page are those of the command. */
async function agrees(page, f) {
  assert.equal(await cutName(page), f.name);
  assert.equal(await fact(page, 'boundary_bytes'), f.boundary_bytes, `bytes after ${f.name}`);
  for (const name of ['prefix_flops', 'suffix_flops']) near(await fact(page, name), f[name], `${name} after ${f.name}`);
  for (const name of [
    'prefix_params',
    'suffix_params',
    'prefix_memory',
    'suffix_memory',
    'prefix_nodes',
    'suffix_nodes',
  ])
    assert.equal(await fact(page, name), f[name], `${name} after ${f.name}`);
}

/* The frontier that the latency of clv_objective would take. */
function bestOf(all, bandwidth, prefixSpeed = 1e12, suffixSpeed = 1e12) {
  const time = f => f.prefix_flops / prefixSpeed + f.boundary_bytes / bandwidth + f.suffix_flops / suffixSpeed;
  return all
    .filter(f => f.safe)
    .reduce((a, b) => (time(b) < time(a) || (time(b) === time(a) && b.boundary_bytes < a.boundary_bytes) ? b : a));
}

// ---- tests ----

test('a page opens, names the model and asks for nothing', async t => {
  const {page} = await open(t, residual());
  assert.equal(await page.title(), 'Residual');
  assert.equal(await page.locator('h1').textContent(), 'Residual');
  assert.ok(await box(page, 'stem').isVisible());
  assert.match(await page.locator('#summary').textContent(), /23 nodes/);
});

test('nothing but its own script can run in a page', async t => {
  const {page} = await open(t, residual(), {mayComplain: /Content Security Policy/});
  const ran = await page.evaluate(
    () =>
      new Promise(done => {
        document.addEventListener('securitypolicyviolation', () => done(Boolean(window.added)));
        const s = document.createElement('script');
        s.textContent = 'window.added = 1';
        document.body.append(s);
      }),
  );
  assert.equal(ran, false);
  const policy = await page.locator('meta[http-equiv=Content-Security-Policy]').getAttribute('content');
  assert.match(policy, /^default-src 'none'; script-src 'sha256-[\w+/]{43}='; style-src 'sha256-[\w+/]{43}=';/);
});

test('a module opens and closes on a click and with Enter', async t => {
  const {page} = await open(t, residual());
  const block = box(page, 'body.1');
  assert.equal(await block.getAttribute('aria-expanded'), 'false');
  await block.click();
  assert.equal(await block.getAttribute('aria-expanded'), 'true');
  assert.ok(await box(page, 'conv2').isVisible());
  await block.click(head);
  assert.equal(await block.getAttribute('aria-expanded'), 'false');
  assert.equal(await box(page, 'conv2').count(), 0);
  await page.locator('#graph').press('Enter');
  assert.equal(await block.getAttribute('aria-expanded'), 'true');
  await page.locator('#close-all').click();
  assert.equal(await block.getAttribute('aria-expanded'), 'false');
  await page.locator('#open-all').click();
  assert.equal(await page.locator('.box[aria-expanded=false]').count(), 0);
});

test('the slider moves the cut, and numbers and colours follow', async t => {
  const {page, path} = await open(t, residual());
  const all = frontiers(path),
    slider = page.locator('#slider');
  await slider.focus();
  await page.keyboard.press('Home');
  await agrees(page, all[0]);
  const before = await page.locator('.box[data-side=suffix]').count();
  for (let k = 1; k < 5; k++) {
    await page.keyboard.press('ArrowRight');
    await agrees(page, all[k]);
  }
  await page.keyboard.press('End');
  await agrees(page, all[all.length - 1]);
  assert.ok((await page.locator('.box[data-side=suffix]').count()) < before);
  await setCut(page, 8);
  assert.equal(await box(page, 'body.1').getAttribute('data-side'), 'both');
  await setCut(page, 10);
  assert.equal(await box(page, 'body.1').getAttribute('data-side'), 'prefix');
  assert.equal(await box(page, 'body.2').getAttribute('data-side'), 'suffix');
  assert.equal(await page.locator('.edge.crossing').count(), 1);
  assert.match(await page.locator('.crossing-note').first().textContent(), /65\.5.kB/);
});

test('at other sizes every number is what the command counts there', async t => {
  const {page, path} = await open(t, residual());
  for (const size of [7, 64]) {
    const all = frontiers(path, '--size', `B=${size}`);
    await page.locator('#size-B').fill(String(size));
    for (const f of all) {
      await setCut(page, f.position);
      await agrees(page, f);
    }
    assert.equal(await page.locator('#cut-formula').textContent(), all[all.length - 1].boundary_bytes_formula);
  }
  await page.locator('#size-B').fill('65');
  assert.equal(await page.locator('#size-B').getAttribute('aria-invalid'), 'true');
});

/* tests/plan/ has a plan for everything that a plan can say: guards, rebinds, symbols of several kinds, odd names. */
const golden = fileURLToPath(new URL('../plan', import.meta.url));
for (const name of readdirSync(golden).filter(n => n.endsWith('.plan') && !n.startsWith('bad_')))
  test(`the plan ${name} opens whole and counts as the command does`, async t => {
    const {page, path} = await open(t, readFileSync(join(golden, name), 'utf8'));
    await page.locator('#open-all').click();
    for (const more of [0, 1]) {
      const sizes = [];
      for (const input of await page.locator('#size-list input').all()) {
        const size = Number(await input.getAttribute('min')) + 1 + more;
        sizes.push('--size', `${await input.getAttribute('data-symbol')}=${size}`);
        await input.fill(String(size));
      }
      for (const f of frontiers(path, ...sizes)) {
        await setCut(page, f.position);
        await agrees(page, f);
      }
    }
  });

test('sizes that a page opens with are those it was made with', async t => {
  const {page, path} = await open(t, residual(), {words: ['B=9', 'chosen=6']});
  await agrees(page, frontiers(path, '--size', 'B=9')[6]);
  assert.match(await page.locator('#cut-badges').textContent(), /chosen/);
  await page.locator('#size-B').fill('1');
  await agrees(page, frontiers(path)[6]);
});

test('unsafe cuts say why, and are passed over', async t => {
  const {page, path} = await open(t, unsafe);
  const all = frontiers(path),
    bad = all.find(f => !f.safe);
  assert.ok(bad, 'the plan has a place where it cannot be cut');
  await setCut(page, bad.position);
  assert.equal(await page.locator('#cut-unsafe').textContent(), `Cannot be cut here: ${bad.reason}`);
  await page.locator('#slider').focus();
  await page.keyboard.press(']');
  const next = all.find(f => f.safe && f.position > bad.position);
  assert.equal(await cutName(page), next.name);
  assert.ok(await page.locator('#curve .unsafe').count());
});

test('the best cut follows bandwidth and speeds', async t => {
  const {page, path} = await open(t, residual(6));
  const all = frontiers(path),
    found = new Set();
  const best = async () => Number(await page.locator('#best-name').getAttribute('data-best'));
  for (const [mbit, prefix, suffix] of [
    [1000, 1, 1],
    [1, 1, 1],
    [100000, 0.01, 10],
    [400, 0.02, 5],
    [100000, 1, 0.01],
  ]) {
    await page.locator('#bandwidth-unit').selectOption({label: 'Mbit/s'});
    await page.locator('#bandwidth').fill(String(mbit));
    for (const [id, tflops] of [
      ['prefix-speed', prefix],
      ['suffix-speed', suffix],
    ]) {
      await page.locator(`#${id}-unit`).selectOption({label: 'TFLOP/s'});
      await page.locator(`#${id}`).fill(String(tflops));
    }
    const want = bestOf(all, mbit * 125e3, prefix * 1e12, suffix * 1e12);
    assert.equal(await best(), want.position, `at ${mbit} Mbit/s`);
    assert.equal(Number(await page.locator('#curve .best').getAttribute('data-best')), want.position);
    found.add(want.position);
  }
  assert.ok(found.size > 1, 'the best cut has changed');
  await page.locator('#best-cut').click();
  assert.equal(await cutName(page), all[await best()].name);
  await page.locator('#bandwidth').fill('-3');
  assert.equal(await page.locator('#bandwidth').getAttribute('aria-invalid'), 'true');
  await page.locator('#bandwidth-slide').fill('6');
  assert.equal(await best(), bestOf(all, 1e6, 1e12, 0.01e12).position);
});

test('a click on the curve takes the cut there', async t => {
  const {page} = await open(t, residual());
  const curve = await page.locator('#curve').boundingBox();
  await page.mouse.move(curve.x + curve.width / 2, curve.y + curve.height / 2);
  assert.ok(await page.locator('#curve-tip').isVisible());
  await page.mouse.click(curve.x + curve.width / 2, curve.y + curve.height / 2);
  const middle = Number(await page.locator('#slider').inputValue());
  assert.ok(Math.abs(middle - 10.5) <= 1.5, `the cut is at ${middle} of 21`);
  await page.mouse.click(curve.x + 10, curve.y + curve.height / 2);
  assert.equal(await page.locator('#slider').inputValue(), '0');
});

test('search finds modules, operators and parameters, and goes there', async t => {
  const {page} = await open(t, residual());
  await page.keyboard.press('/');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'search');
  await page.keyboard.type('body.2.conv2');
  const kinds = await page.locator('#found .kind').allTextContents();
  assert.ok(kinds.includes('module') && kinds.includes('parameter'), kinds.join());
  await page.keyboard.press('Enter');
  assert.equal(await page.locator('.box.selected .title').textContent(), 'conv2Conv2d');
  assert.equal(await box(page, 'body.2').getAttribute('aria-expanded'), 'true');
  assert.match(await page.locator('#details').textContent(), /body\.2\.conv2\.weight/);
  await page.locator('#search').fill('head.weight');
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('ArrowUp');
  await page.keyboard.press('Enter');
  assert.equal(await page.locator('#details h3').first().textContent(), 'linearaten::linear');
  await page.locator('#search').fill('mean');
  await page.locator('#found li').first().click();
  assert.match(await page.locator('#details').textContent(), /aten::mean\.dim/);
  await page.locator('#search').fill('no such thing');
  assert.match(await page.locator('#found').textContent(), /Nothing has that name/);
});

test('the table sorts, filters and chooses', async t => {
  const {page, path} = await open(t, residual());
  const all = frontiers(path);
  await page.locator('#tab-table').click();
  const rows = page.locator('#rows tr[data-cut]');
  const first = async () => Number(await rows.first().getAttribute('data-cut'));
  await page.locator('[data-sort=bytes]').click();
  const byBytes = [...all].sort((a, b) => a.boundary_bytes - b.boundary_bytes || a.position - b.position);
  assert.equal(await first(), byBytes[0].position);
  assert.equal(await page.locator('th[aria-sort=ascending]').textContent(), 'bytes\u2191');
  await page.locator('[data-sort=bytes]').click();
  assert.equal(await first(), byBytes[byBytes.length - 1].position);
  await page.locator('#filter').fill('body.2');
  const inside = all.filter(f => f.module.startsWith('body.2'));
  assert.equal(await page.locator('#row-count').textContent(), `${inside.length} of ${all.length}`);
  await page.locator('#single-only').check();
  assert.equal(await rows.count(), inside.filter(f => f.boundary_tensors === 1).length);
  await rows.first().click();
  assert.equal(await cutName(page), all[await first()].name);
  assert.equal(await rows.first().getAttribute('aria-selected'), 'true');
  await page.locator('#single-only').uncheck();
  await page.locator('#filter').fill('');
  await page.locator('[data-sort=position]').click();
  await page.locator('#table-scroll').focus();
  await page.keyboard.press('Home');
  await page.keyboard.press('ArrowDown');
  assert.equal(await cutName(page), all[1].name);
});

test('the table leaves out what is unsafe when asked to', async t => {
  const {page, path} = await open(t, unsafe);
  await page.locator('#tab-table').click();
  await page.locator('#safe-only').check();
  assert.equal(await page.locator('#rows tr[data-cut]').count(), frontiers(path).filter(f => f.safe).length);
});

test('details of a node and of a module say what they do', async t => {
  const {page} = await open(t, residual());
  await box(page, 'body.0').click();
  assert.match(await page.locator('#details').textContent(), /nodes5, from 1 to 5.*parameters4\.64K in 4 tensors/);
  await page.locator('.box', {hasText: 'conv1'}).first().click();
  const words = await page.locator('#details').textContent();
  for (const part of ['aten::conv2d', 'body.0.conv1.weight', 'trainable', 'frozen', 'net.py:2', '%2 = aten::conv2d(%1'])
    assert.ok(words.includes(part), part);
  await page.locator('#cut-here').click();
  assert.equal(await page.locator('#slider').inputValue(), '1');
  await page.locator('#details button', {hasText: '%1'}).click();
  assert.match(await page.locator('#details h3').textContent(), /conv2d/);
  assert.equal(await page.locator('.box.selected .title').textContent(), 'stemConv2d');
});

test('the keyboard alone reaches everything', async t => {
  const {page} = await open(t, residual());
  await page.locator('#graph').focus();
  const selected = () => page.locator('.box.selected .title').textContent();
  await page.keyboard.press('Home');
  assert.equal(await selected(), 'image');
  await page.keyboard.press('ArrowDown');
  assert.equal(await selected(), 'stemConv2d');
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('Enter');
  await page.keyboard.press('c');
  assert.equal(await page.locator('#slider').inputValue(), '5');
  await page.keyboard.press('ArrowUp');
  assert.notEqual(await selected(), 'body.0Block');
  await page.keyboard.press('?');
  assert.ok(await page.locator('#help').isVisible());
  await page.keyboard.press('Escape');
  assert.ok(!(await page.locator('#help').isVisible()));
  await page.locator('#tab-curve').focus();
  await page.keyboard.press('ArrowRight');
  assert.ok(await page.locator('#pane-table').isVisible());
  const nameless = await page.evaluate(() =>
    [...document.querySelectorAll('button, input, select')]
      .filter(e => !(e.textContent.trim() || e.ariaLabel || e.labels?.length))
      .map(e => e.outerHTML),
  );
  assert.deepEqual(nameless, []);
  const seen = new Set();
  for (let i = 0; i < 40; i++) {
    await page.keyboard.press('Tab');
    const [id, ring] = await page.evaluate(() => [
      document.activeElement.id,
      getComputedStyle(document.activeElement).outlineStyle,
    ]);
    if (id && id !== 'graph') assert.notEqual(ring, 'none', id); // the graph's is drawn by what is around it
    seen.add(id);
  }
  for (const id of ['search', 'graph', 'slider', 'bandwidth', 'theme'])
    assert.ok(seen.has(id), `${id} is reached by Tab`);
});

test('dragging, the wheel and the buttons move the graph', async t => {
  const {page} = await open(t, residual());
  const where = async () => await box(page, 'stem').boundingBox();
  const start = await where();
  await page.mouse.move(200, 400);
  await page.mouse.down();
  await page.mouse.move(260, 430, {steps: 4});
  await page.mouse.up();
  const moved = await where();
  assert.ok(Math.abs(moved.x - start.x - 60) < 2 && Math.abs(moved.y - start.y - 30) < 2, 'a drag moves the graph');
  await page.mouse.wheel(0, 50);
  await page.waitForFunction(
    y => Math.abs(document.querySelector('.box.op').getBoundingClientRect().y - y) > 20,
    moved.y,
  );
  await page.locator('#zoom-in').click();
  assert.ok((await where()).width > moved.width * 1.2, 'the graph is nearer');
  await page.keyboard.down('Control');
  await page.mouse.move(300, 300);
  await page.mouse.wheel(0, 100);
  await page.keyboard.up('Control');
  await page.locator('#zoom-fit').click();
  assert.ok(await box(page, 'output').isVisible());
});

test('light and dark follow the system and the button', async t => {
  const {page} = await open(t, residual(), {colorScheme: 'dark'});
  const paper = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const dark = await paper();
  await page.locator('#theme').click();
  assert.equal(await page.locator('#theme').getAttribute('aria-pressed'), 'false');
  const light = await paper();
  assert.notEqual(light, dark);
  await page.locator('#theme').click();
  assert.equal(await paper(), dark);
  await page.screenshot({path: join(pictures, 'dark.png')});
});

test('stages have colours and bars', async t => {
  const {page} = await open(t, residual(), {words: ['stages=3']});
  assert.equal(await page.locator('#graph').getAttribute('data-colour'), 'stages');
  await page.locator('#tab-stages').click();
  const costs = await page.locator('[data-stage-cost]').evaluateAll(all => all.map(e => Number(e.dataset.stageCost)));
  const total = frontiers(planFile(residual()))[0];
  assert.equal(costs.length, 3);
  near(
    costs.reduce((a, b) => a + b),
    total.prefix_flops + total.suffix_flops,
    'the work of all stages',
  );
  assert.match(await page.locator('#balance').textContent(), /times the mean/);
  assert.equal(await box(page, 'stem').getAttribute('data-group'), '0');
  assert.equal(await box(page, 'head').getAttribute('data-group'), '2');
  await page.locator('#colours label', {hasText: 'Work'}).click();
  assert.equal(await page.locator('#graph').getAttribute('data-colour'), 'work');
});

test('a report of stages has no panels about a cut in two', async t => {
  const about = ['#cut', '#slide', '#bar-cut', '#tab-curve', '#tab-table', '#bandwidth', '#best-cut', '#pane-curve'];
  const {page} = await open(t, residual(), {words: ['stages=3', 'devices=2', 'B=3']});
  for (const panel of about) assert.ok(!(await page.locator(panel).isVisible()), panel);
  assert.equal(await page.locator('#colours label', {hasText: 'Cut'}).count(), 0);
  assert.match(await page.locator('#summary').textContent(), /3 stages/);
  assert.ok(await page.locator('#size-list input').isVisible(), 'sizes are for pipelines too');
  for (const key of ['b', ']', '[']) await page.keyboard.press(key);
  assert.equal(await page.locator('.box.cut').count(), 0);
  const {page: split} = await open(t, residual());
  for (const panel of about) assert.ok(await split.locator(panel).isVisible(), panel);
});

test('stages of a partition show device, times, memory and what crosses', async t => {
  const {page} = await open(t, residual(), {words: ['stages=3', 'devices=2']});
  assert.ok(await page.locator('#pane-stages').isVisible(), 'a partition opens with its stages');
  const rows = page.locator('table[aria-label=Stages] tbody tr');
  const costs = page.locator('[data-stage-cost]');
  assert.deepEqual(
    (await costs.evaluateAll(all => all.map(e => Number(e.dataset.stageCost)))).map(s => Math.round(s * 1e6)),
    [350, 650, 950],
  );
  assert.match(await rows.nth(0).textContent(), /<\/script><img.*350.*µs.*18.*%.*1\.00.*kB.*not known.*0.*B/);
  assert.match(await rows.nth(1).textContent(), /cuda:1.*650.*µs.*33.*%.*8\.00.*kB.*4\.10.*kB/);
  const widths = await rows
    .nth(1)
    .locator('.bar-part')
    .evaluateAll(all => all.map(e => parseFloat(e.style.width)));
  assert.deepEqual(
    widths.map(w => Math.round((w / 100) * 950)),
    [200, 400, 50],
  );
  const devices = page.locator('[data-device-cost]');
  assert.deepEqual(
    (await devices.evaluateAll(all => all.map(e => Number(e.dataset.deviceCost)))).map(s => Math.round(s * 1e6)),
    [1300, 650],
  );
  assert.match(await page.locator('#balance').textContent(), /slowest device takes 1\.30.*ms.*1\.300 times the lower/);
  await box(page, 'stem').click();
  assert.match(await page.locator('#details').textContent(), /stage0, <\/script>/);
});

test('a stage leads to its first box', async t => {
  const {page} = await open(t, residual(), {words: ['stages=3', 'devices=3']});
  assert.equal(await page.locator('[data-device-cost]').count(), 0, 'one stage a device: nothing to sum up');
  await page.locator('table[aria-label=Stages] button', {hasText: 'stage 2'}).click();
  assert.match(await page.locator('#details').textContent(), /stage2, device 2|stage2, cuda:1/);
});

test('segments show what is compiled, and why the rest is not', async t => {
  const {page} = await open(t, residual(), {words: ['segments=3']});
  await page.locator('#tab-segments').click();
  assert.deepEqual(await page.locator('#segment-list .badge').allTextContents(), [
    'compiled',
    'not compiled',
    'compiled',
  ]);
  assert.equal(
    await page.locator('#segment-list .reason').nth(1).textContent(),
    '</script><img src=x onerror=alert(1)> reads data',
  );
  assert.equal(await box(page, 'stem').getAttribute('data-compiled'), 'yes');
  assert.equal(await box(page, 'body.1').getAttribute('data-compiled'), 'some');
  assert.match(await page.locator('#compiled-share').textContent(), /of the work is compiled/);
});

test('a traced file shows its segments, and a group for each reason why the rest is not compiled', async t => {
  const html = join(work, 'traced.html'),
    file = fileURLToPath(new URL('../plan/models/traced.clv', import.meta.url));
  execFileSync(cleave, ['html', file, '-o', html]);
  const page = await show(t, html);
  await page.locator('#tab-segments').click();
  assert.deepEqual(await page.locator('#segment-list button').allTextContents(), ['segment 0', 'segment 1', 'tape']);
  assert.equal(await page.locator('#segment-list .reason').nth(2).textContent(), 'example has no aten::hardtanh');
  assert.equal(await page.locator('.box[data-compiled=no]').count(), 1);
  assert.match(await page.locator('.box[data-compiled=no]').textContent(), /Hardtanh/i);
  assert.match(await page.locator('#compiled-share').textContent(), /^97.% of the work is compiled/);
});

test('hostile names are shown and not run', async t => {
  const {page} = await open(t, hostile);
  await page.locator('#open-all').click();
  await page.locator('.box.op').first().click();
  await page.locator('#tab-table').click();
  await page.locator('#search').fill('script');
  assert.ok(await page.locator('#found li').count());
  assert.match(await page.locator('h1').textContent(), /<\/script><script>/);
  assert.equal(await page.evaluate(() => window.evil), undefined);
});

test('at the width of a phone nothing sticks out', async t => {
  const {page} = await open(t, residual(), {
    viewport: {width: 390, height: 844},
    hasTouch: true,
    isMobile: true,
    words: ['segments=3'],
  });
  const width = () => page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok((await width()) <= 390);
  await box(page, 'body.1').tap();
  assert.equal(await box(page, 'body.1').getAttribute('aria-expanded'), 'true');
  for (const tab of ['table', 'segments']) {
    await page.locator(`#tab-${tab}`).tap();
    assert.ok((await width()) <= 390, tab);
  }
  await setCut(page, 3);
  assert.ok(await page.locator('#cut-bytes').isVisible());
  await page.screenshot({path: join(pictures, 'phone.png'), fullPage: true});
});

test('on paper the whole graph and the table are there', async t => {
  const {page} = await open(t, residual());
  await page.locator('#open-all').click();
  await page.emulateMedia({media: 'print'});
  await page.evaluate(() => dispatchEvent(new Event('beforeprint')));
  assert.equal(await page.locator('.box.op, .box.input, .box.output').count(), 25);
  assert.ok(await page.locator('#table').isVisible());
  assert.ok(!(await page.locator('#slide').isVisible()));
  assert.ok((await page.pdf({format: 'A4'})).length > 10000);
  await page.evaluate(() => dispatchEvent(new Event('afterprint')));
});

test('a plan with nothing to cut has a page', async t => {
  const {page} = await open(
    t,
    'cleave-plan 1\nmodel "One"\ninput %0 f32[1]\n%1 = aten::relu(%0) -> f32[1]\noutput %1\n',
  );
  assert.ok(await box(page, 'relu').isVisible());
  assert.equal(await page.locator('#slider').isDisabled(), true);
  const {page: empty} = await open(t, 'cleave-plan 1\nmodel "None"\noutput none\n');
  assert.equal(await empty.locator('h1').textContent(), 'None');
});

const elements = page => page.evaluate(() => document.querySelectorAll('#world *').length);

test('five thousand nodes open closed, and only what is seen is drawn', async t => {
  const {page, path} = await open(t, residual(1000));
  assert.ok((await elements(page)) < 3000);
  await setCut(page, 2500);
  await agrees(page, frontiers(path)[2500]);
  await page.locator('#search').fill('body.777.conv2.weight');
  await page.keyboard.press('Enter');
  assert.equal(await page.locator('.box.selected .title').textContent(), 'conv2Conv2d');
  await page.locator('#open-all').click();
  assert.ok((await elements(page)) < 20000);
  await page.locator('#tab-table').click();
  await page.locator('[data-sort=latency]').click();
  assert.ok((await page.locator('#rows tr[data-cut]').count()) < 100);
});

test('a hundred thousand nodes without modules do not hang', async t => {
  const {page} = await open(t, chain(100000));
  assert.ok((await elements(page)) < 3000);
  await page.locator('.box.run').first().click();
  assert.equal(await page.locator('.box.run.open').count(), 1);
  assert.match(await page.locator('.box.run:not(.open) .note').first().textContent(), /50 nodes/);
  await setCut(page, 50000);
  assert.equal(await page.locator('#slider').inputValue(), '50000');
  await page.locator('#search').fill('add_77777');
  await page.keyboard.press('Enter');
  assert.match(await page.locator('#details h3').textContent(), /add_77777/);
});
