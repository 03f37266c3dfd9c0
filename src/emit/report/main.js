/* The state of the page, and what is redrawn when it changes. */

const state = {
  cut: -1,
  sizes: plan.symbols.map(s => s[4]),
  link: {bandwidth: plan.bandwidth, prefixSpeed: plan.prefixSpeed, suffixSpeed: plan.suffixSpeed},
  colour: plan.stages ? 'stages' : plan.segments.length ? 'segments' : 'cut',
  selected: null,
  costs: null,
  latency: null,
  maxBytes: 0,
};

/* Tells listeners about a change. */
function say(words) {
  $('said').textContent = words;
}

function setCut(k, {show: reveal = false} = {}) {
  if (!cutCount || plan.stages) return;
  state.cut = clamp(k, 0, cutCount - 1);
  showCut();
  colourAll();
  drawCurve();
  drawRows();
  if (reveal) revealCut();
}

/* The box that the cut comes after. */
function revealCut() {
  const box = drawing.leaves.find(b => b.first <= state.cut && state.cut <= b.last);
  if (box) showIfHidden(box);
}

/* ---- sizes and link ---- */

function sizesChanged() {
  state.costs = costsAt(state.sizes);
  clearDrawn();
  drawSeen();
  linkChanged();
  showStages();
  showSegments();
  showDetails(state.selected);
  showSummary();
}

function linkChanged() {
  state.latency = latenciesOf(state.costs, state.link);
  state.maxBytes = state.costs.bytes.reduce((a, b) => (isFinite(b) ? Math.max(a, b) : a), 0);
  showCut();
  colourAll();
  drawCurve();
  listRows();
  showBest();
}

function showBest() {
  const best = state.latency.best,
    [before, after] = wholeTimes();
  $('best-cut').disabled = best < 0;
  $('best-name').textContent = best < 0 ? 'no cut is possible' : `after ${plan.nodeName[best]}`;
  $('best-name').dataset.best = best;
  $('best-time').textContent = best < 0 ? '' : showTime(state.latency.total[best]);
  $('all-before').textContent = showTime(before.time);
  $('all-after').textContent = showTime(after.time);
}

const UNITS = {
  bandwidth: [
    ['kbit/s', 125],
    ['Mbit/s', 125e3],
    ['Gbit/s', 125e6],
    ['MB/s', 1e6],
    ['GB/s', 1e9],
  ],
  speed: [
    ['GFLOP/s', 1e9],
    ['TFLOP/s', 1e12],
    ['PFLOP/s', 1e15],
  ],
};

/* The largest unit that leaves a number of at least one. */
function bestUnit(units, value) {
  const fits = units.filter(([, by]) => value / by >= 1);
  return (fits.length ? fits[fits.length - 1] : units[0])[1];
}

const plainNumber = x => String(Number(x.toPrecision(4)));

/* A number and its unit, bound to one field of the link. */
function bindAmount(name, units, first) {
  const number = $(name),
    unit = $(name + '-unit');
  unit.replaceChildren(...units.map(([words, by]) => make('option', {value: by}, words)));
  const put = () => {
    number.value = plainNumber(state.link[first] / Number(unit.value));
  };
  const take = () => {
    const value = Number(number.value) * Number(unit.value);
    number.setAttribute('aria-invalid', String(!(value > 0)));
    if (!(value > 0) || !isFinite(value)) return;
    state.link[first] = value;
    if (first === 'bandwidth') $('bandwidth-slide').value = Math.log10(value);
    linkChanged();
  };
  unit.value = String(bestUnit(first === 'bandwidth' ? units.slice(0, 3) : units, state.link[first]));
  put();
  number.addEventListener('input', take);
  unit.addEventListener('change', put);
  return put;
}

function startLink() {
  const put = bindAmount('bandwidth', UNITS.bandwidth, 'bandwidth');
  bindAmount('prefix-speed', UNITS.speed, 'prefixSpeed');
  bindAmount('suffix-speed', UNITS.speed, 'suffixSpeed');
  const slide = $('bandwidth-slide');
  slide.value = Math.log10(state.link.bandwidth);
  slide.addEventListener('input', () => {
    state.link.bandwidth = Number((10 ** Number(slide.value)).toPrecision(2));
    $('bandwidth-unit').value = String(bestUnit(UNITS.bandwidth.slice(0, 3), state.link.bandwidth));
    put();
    linkChanged();
  });
  $('best-cut').addEventListener('click', () => setCut(state.latency.best, {show: true}));
}

function startSizes() {
  $('sizes').hidden = !plan.symbols.length;
  $('size-list').replaceChildren(
    ...plan.symbols.map(([name, low, high, data], i) => {
      const id = 'size-' + text(name);
      const input = make('input', {
        type: 'number',
        id,
        min: low,
        max: high,
        step: 1,
        value: state.sizes[i],
        'data-symbol': text(name),
      });
      input.addEventListener('input', () => {
        const value = Number(input.value),
          ok = input.value !== '' && Number.isInteger(value) && value >= low && value <= high;
        input.setAttribute('aria-invalid', String(!ok));
        if (!ok) return;
        state.sizes[i] = value;
        sizesChanged();
      });
      return make(
        'div',
        {class: 'field'},
        make(
          'label',
          {for: id},
          make('b', {class: 'mono'}, text(name)),
          make('span', {class: 'quiet'}, ` ${showInt(low)} to ${showInt(high)}${data ? ', read from data' : ''}`),
        ),
        input,
      );
    }),
  );
}

/* ---- header, tabs, colours, theme ---- */

function showSummary() {
  const params = [...new Set(plan.nodeArgs.flat())].filter(v => plan.valueKind[v] === KIND.param);
  const chip = (value, name) => make('span', {class: 'chip'}, make('b', {}, value), ' ' + name);
  $('summary').replaceChildren(
    chip(showInt(nodeCount), 'nodes'),
    chip(showInt(plan.scopePath.length), 'modules'),
    chip(showCount(params.reduce((sum, v) => sum + elements(v, state.costs.exprs), 0)), 'parameters'),
    chip(showFlops(state.costs.total), 'per run'),
    ...(plan.stages
      ? [chip(showInt(plan.stages), 'stages')]
      : [chip(showInt(unsafe.filter(x => !x).length), 'places to cut')]),
  );
}

function startTabs() {
  const tabs = [...document.querySelectorAll('[role=tab]')];
  $('tab-stages').hidden = !plan.stages;
  $('tab-curve').hidden = $('tab-table').hidden = !!plan.stages;
  $('tab-segments').hidden = !plan.segments.length;
  const open = tab => {
    for (const t of tabs) {
      t.setAttribute('aria-selected', String(t === tab));
      t.tabIndex = t === tab ? 0 : -1;
      $(t.getAttribute('aria-controls')).hidden = t !== tab;
    }
    $('dock').dataset.tab = tab.id;
    drawCurve();
    drawRows();
  };
  for (const tab of tabs) tab.addEventListener('click', () => open(tab));
  $('tabs').addEventListener('keydown', event => {
    const by = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!by) return;
    const shown = tabs.filter(t => !t.hidden),
      at = shown.findIndex(t => t === document.activeElement);
    const next = shown[(at + by + shown.length) % shown.length];
    open(next);
    next.focus();
  });
  if (plan.stages) open($('tab-stages'));
}

function startColours() {
  const choices = [
    ['cut', 'Cut'],
    ['work', 'Work'],
    ['stages', 'Stages'],
    ['segments', 'Segments'],
  ].filter(([key]) => ({cut: !plan.stages, stages: plan.stages, segments: plan.segments.length})[key] ?? true);
  $('colours').append(
    ...choices.map(([key, words]) =>
      make(
        'label',
        {},
        make('input', {
          type: 'radio',
          name: 'colour',
          value: key,
          checked: key === state.colour,
          onchange: () => {
            state.colour = key;
            clearDrawn();
            drawSeen();
            colourAll();
            showLegend();
          },
        }),
        make('span', {}, words),
      ),
    ),
  );
}

function startTheme() {
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const set = theme => {
    document.documentElement.dataset.theme = theme;
    $('theme').setAttribute('aria-pressed', String(theme === 'dark'));
  };
  let chosen = false;
  set(dark.matches ? 'dark' : 'light');
  dark.addEventListener('change', () => chosen || set(dark.matches ? 'dark' : 'light'));
  $('theme').addEventListener('click', () => {
    chosen = true;
    set(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark');
  });
}

/* ---- the slider, keys, printing ---- */

const nextSafe = by => {
  for (let k = state.cut + by; k >= 0 && k < cutCount; k += by) if (!unsafe[k]) return k;
  return state.cut;
};

function startSlider() {
  $('slider').max = Math.max(0, cutCount - 1);
  $('slider').disabled = !cutCount;
  $('slider').addEventListener('input', () => setCut(Number($('slider').value), {show: false}));
  $('slider').addEventListener('change', revealCut);
  $('cut-before').addEventListener('click', () => setCut(nextSafe(-1), {show: true}));
  $('cut-next').addEventListener('click', () => setCut(nextSafe(1), {show: true}));
}

const isTyping = e => e.matches('input:not([type=range]):not([type=checkbox]):not([type=radio]), select, textarea');

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  if (event.key === '/') {
    field.focus();
    field.select();
  } else if (event.key === '?') $('help').showModal();
  else if (event.key === 'b') setCut(state.latency.best < 0 ? state.cut : state.latency.best, {show: true});
  else if (event.key === '[') setCut(nextSafe(-1), {show: true});
  else if (event.key === ']') setCut(nextSafe(1), {show: true});
  else return;
  event.preventDefault();
}

/* On paper the whole graph as it is open now, and the first rows of the table. */
function startPrinting() {
  addEventListener('beforeprint', () => {
    printing = true;
    pane.setAttribute('viewBox', `-10 -10 ${rootItem.w + 20} ${rootItem.h + 20}`);
    drawSeen();
    drawRows();
  });
  addEventListener('afterprint', () => {
    printing = false;
    pane.removeAttribute('viewBox');
    drawSeen();
    drawRows();
  });
}

/* A pipeline is cut already: what is about one cut in two would say nothing of it. */
function showPipeline() {
  for (const e of document.querySelectorAll('.of-cut')) e.hidden = true;
  $('link').hidden = !plan.symbols.length;
  $('pane-curve').hidden = true;
}

const firstCut = () =>
  plan.chosen >= 0 ? plan.chosen : state.latency.best >= 0 ? state.latency.best : cutCount ? 0 : -1;

function start() {
  $('title').textContent = plan.title;
  $('subtitle').textContent = `${plan.training ? 'training' : 'evaluation'} mode \u00b7 cleave ${plan.version}`;
  if (plan.stages) showPipeline();
  state.costs = costsAt(state.sizes);
  state.latency = latenciesOf(state.costs, state.link);
  startTheme();
  startColours();
  startGraph();
  startCurve();
  startTable();
  startSearch();
  startTabs();
  startLink();
  startSizes();
  startSlider();
  startPrinting();
  document.addEventListener('keydown', onKey);
  $('help-open').addEventListener('click', () => $('help').showModal());
  state.cut = plan.stages ? -1 : firstCut();
  openFirst();
  relayout(null);
  sizesChanged();
  showLegend();
  fit(false);
  document.documentElement.dataset.ready = 'yes';
}

start();
