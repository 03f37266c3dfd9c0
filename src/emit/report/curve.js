/* The latency curve: for every frontier the time before the cut, on the link and after it, one above the other. */

const curve = $('curve');
const INSET = 9; /* the thumb of the slider under it stands at its middle */

/* Frontiers that share a column of pixels are drawn by the worst and the best of them. */
function columns(width) {
  const n = Math.min(cutCount, Math.max(2, Math.floor(width / 1.5))),
    out = [];
  for (let c = 0; c < n; c++) {
    const from = Math.floor((c * cutCount) / n),
      to = Math.max(from + 1, Math.floor(((c + 1) * cutCount) / n));
    let low = -1;
    for (let k = from; k < to; k++)
      if (isFinite(state.latency.total[k]) && (low < 0 || state.latency.total[k] < state.latency.total[low])) low = k;
    if (low >= 0) out.push(low);
  }
  return out;
}

/* The top of the scale: everything, unless a few cuts are far worse than the rest. */
function topOfScale(shown) {
  const all = shown.map(k => state.latency.total[k]).sort((a, b) => a - b);
  if (!all.length) return 1;
  const most = all[all.length - 1],
    usual = all[Math.floor(all.length * 0.6)];
  return (
    Math.min(most, Math.max(usual * 4, state.latency.best < 0 ? 0 : state.latency.total[state.latency.best] * 4)) * 1.12
  );
}

function niceStep(top, lines) {
  const raw = top / lines,
    power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map(x => x * power).find(x => x >= raw);
}

const cutX = (k, width) => INSET + (cutCount < 2 ? 0.5 : k / (cutCount - 1)) * (width - 2 * INSET);

const partsOf = k => [
  state.costs.prefixFlops[k] / state.link.prefixSpeed,
  state.costs.bytes[k] / state.link.bandwidth,
  state.costs.suffixFlops[k] / state.link.suffixSpeed,
];

function drawCurve() {
  const width = curve.clientWidth,
    height = curve.clientHeight;
  if (!width || !height) return;
  curve.setAttribute('viewBox', `0 0 ${width} ${height}`);
  const shown = columns(width - 2 * INSET),
    top = topOfScale(shown),
    floor = height - 12,
    head = 26;
  const y = t => floor - Math.min(t / top, 1.03) * (floor - head);
  curve.replaceChildren(
    ...areas(shown, width, y, floor),
    ...grid(top, y, width),
    ...unsafeMarks(width, floor),
    ...wholeLines(y, top, width),
    ...marks(width, y, floor, head),
  );
}

function grid(top, y, width) {
  const out = [],
    step = niceStep(top, 3);
  for (let t = step; t < top && step > 0; t += step)
    out.push(
      make('line', {class: 'grid', x1: INSET, x2: width - INSET, y1: y(t), y2: y(t)}),
      make('text', {class: 'axis', x: INSET, y: y(t) - 4}, showTime(t)),
    );
  return out;
}

function areas(shown, width, y, floor) {
  if (!shown.length) return [make('text', {class: 'axis', x: INSET, y: 40}, 'There is nothing to cut.')];
  const names = ['prefix', 'boundary', 'suffix'],
    out = [];
  let below = shown.map(() => 0);
  names.forEach((name, i) => {
    const above = shown.map((k, j) => below[j] + partsOf(k)[i]);
    const line = above.map((t, j) => `${cutX(shown[j], width)} ${y(t)}`);
    const base = below.map((t, j) => `${cutX(shown[j], width)} ${y(t)}`).reverse();
    out.push(make('path', {class: 'area ' + name, d: `M${line.join('L')}L${base.join('L')}Z`}));
    below = above;
  });
  out.push(make('path', {class: 'total', d: 'M' + below.map((t, j) => `${cutX(shown[j], width)} ${y(t)}`).join('L')}));
  return out;
}

/* A strip under the curve where the plan cannot be cut. */
function unsafeMarks(width, floor) {
  let d = '',
    from = -1;
  const half = cutCount > 1 ? (width - 2 * INSET) / (cutCount - 1) / 2 : 4;
  for (let k = 0; k <= cutCount; k++) {
    const bad = k < cutCount && unsafe[k];
    if (bad && from < 0) from = k;
    if (!bad && from >= 0) {
      const a = Math.max(INSET, cutX(from, width) - half),
        b = Math.min(width - INSET, cutX(k - 1, width) + half);
      d += `M${a} ${floor + 5}H${Math.max(b, a + 1)}`;
      from = -1;
    }
  }
  return d ? [make('path', {class: 'unsafe', d}, make('title', {}, 'the plan cannot be cut here'))] : [];
}

/* Both alternatives to a cut: everything before the link, and everything after it. */
function wholeTimes() {
  const {costs, link} = state;
  return [
    {name: 'all before the link', time: costs.total / link.prefixSpeed},
    {name: 'all after the link', time: inputBytes(costs) / link.bandwidth + costs.total / link.suffixSpeed},
  ];
}

function wholeLines(y, top, width) {
  return wholeTimes().flatMap((w, i) =>
    w.time >= top
      ? []
      : [
          make('line', {class: 'whole', x1: INSET, x2: width - INSET, y1: y(w.time), y2: y(w.time)}),
          make(
            'text',
            {
              class: 'axis whole-name',
              x: i ? width - INSET : INSET + 76,
              y: y(w.time) - 4,
              'text-anchor': i ? 'end' : 'start',
            },
            w.name,
          ),
        ],
  );
}

function marks(width, y, floor, head) {
  const out = [],
    best = state.latency.best;
  if (best >= 0) {
    const x = cutX(best, width),
      label = `best ${showTime(state.latency.total[best])}`;
    const right = x > width - 110;
    out.push(
      make('line', {class: 'best-line', x1: x, x2: x, y1: 20, y2: floor}),
      make('circle', {class: 'best', cx: x, cy: y(state.latency.total[best]), r: 5, 'data-best': best}),
      make(
        'text',
        {class: 'best-name', x: right ? x - 6 : x + 6, y: 15, 'text-anchor': right ? 'end' : 'start'},
        label,
      ),
    );
  }
  if (state.cut >= 0) {
    const x = cutX(state.cut, width),
      t = state.latency.total[state.cut];
    out.push(make('line', {class: 'now-line', x1: x, x2: x, y1: head - 8, y2: floor}));
    if (isFinite(t)) out.push(make('circle', {class: 'now', cx: x, cy: y(t), r: 4.5}));
  }
  return out;
}

/* ---- pointing ---- */

function cutUnder(event) {
  const box = curve.getBoundingClientRect();
  const share = (event.clientX - box.left - INSET) / Math.max(1, box.width - 2 * INSET);
  return clamp(Math.round(share * (cutCount - 1)), 0, cutCount - 1);
}

/* With thousands of cuts a pixel holds several: the best safe one near the pointer is meant. */
function cutMeant(event) {
  const k = cutUnder(event),
    reach = Math.ceil((cutCount / Math.max(1, curve.clientWidth)) * 3);
  let best = k;
  for (let i = Math.max(0, k - reach); i <= Math.min(cutCount - 1, k + reach); i++)
    if (!unsafe[i] && (unsafe[best] || state.latency.total[i] < state.latency.total[best])) best = i;
  return best;
}

function tellCut(event) {
  const tip = $('curve-tip');
  if (!cutCount) return;
  const k = cutMeant(event),
    [before, link, after] = partsOf(k);
  tip.replaceChildren(
    make('strong', {}, plan.nodeName[k]),
    ` ${showTime(state.latency.total[k])}`,
    make('br'),
    `${showTime(before)} + ${showTime(link)} + ${showTime(after)}`,
    make('br'),
    unsafe[k] ? shortened(unsafe[k], 90) : `${showBytes(state.costs.bytes[k])} cross`,
  );
  tip.hidden = false;
  const box = curve.getBoundingClientRect(),
    x = event.clientX - box.left;
  tip.style.left = `${clamp(x + 12, 0, box.width - tip.offsetWidth)}px`;
}

function startCurve() {
  curve.addEventListener('click', event => cutCount && setCut(cutMeant(event), {show: true}));
  curve.addEventListener('pointermove', tellCut);
  curve.addEventListener('pointerleave', () => {
    $('curve-tip').hidden = true;
  });
  new ResizeObserver(() => drawCurve()).observe(curve);
}
