/* The table of candidates: sorted, filtered, and only the rows that are seen are there. */

const ROW = 30;
const body = $('rows'),
  scroller = $('table-scroll');

/* of: what a column sorts by; show: how that is written. */
const cost = (key, name, show) => ({key, name, of: k => state.costs[key][k], show, number: true});
const same = x => x;
const COLUMNS = [
  {key: 'position', name: 'after', of: same, show: showInt, number: true},
  {key: 'name', name: 'node', of: k => plan.nodeName[k], show: same},
  {key: 'module', name: 'module', of: k => scopePath(plan.nodeScope[k]), show: same},
  {key: 'latency', name: 'latency', of: k => state.latency.total[k], show: showTime, number: true},
  cost('bytes', 'bytes', showBytes),
  {
    key: 'formula',
    name: 'formula',
    of: k => state.costs.bytes[k],
    show: (bytes, k) => formulas[k] ?? '',
    hidden: !plan.symbols.length,
    wide: true,
  },
  {key: 'tensors', name: 'tensors', of: k => plan.tensors[k], show: same, number: true},
  {key: 'work', name: 'work before', of: k => workShare(k), show: showShare, number: true},
  cost('prefixParams', 'params before', showCount),
  cost('suffixParams', 'params after', showCount),
  cost('prefixMemory', 'memory before', showBytes),
  cost('suffixMemory', 'memory after', showBytes),
  {key: 'note', name: 'note', of: k => noteOf(k), show: same, wide: true},
].filter(c => !c.hidden);

const workShare = k => (state.costs.total ? state.costs.prefixFlops[k] / state.costs.total : (k + 1) / nodeCount);
const noteOf = k =>
  unsafe[k] || [k === plan.chosen && 'chosen', k === state.latency.best && 'best latency'].filter(Boolean).join(', ');

const listing = {order: [], sort: 'position', down: false};

function compare(a, b) {
  if (typeof a === 'string') return a < b ? -1 : a > b ? 1 : 0;
  const x = isFinite(a) ? a : Infinity,
    y = isFinite(b) ? b : Infinity;
  return x === y ? 0 : x - y;
}

function listRows() {
  const wanted = $('filter').value.trim().toLowerCase(),
    safe = $('safe-only').checked,
    single = $('single-only').checked;
  const column = COLUMNS.find(c => c.key === listing.sort),
    order = [];
  for (let k = 0; k < cutCount; k++) {
    if ((safe && unsafe[k]) || (single && plan.tensors[k] !== 1)) continue;
    if (wanted && !rowText(k).includes(wanted)) continue;
    order.push(k);
  }
  if (listing.sort !== 'position') order.sort((a, b) => compare(column.of(a), column.of(b)) || a - b);
  if (listing.down) order.reverse();
  listing.order = order;
  $('row-count').textContent = `${showInt(order.length)} of ${showInt(cutCount)}`;
  $('table').setAttribute('aria-rowcount', order.length + 1);
  drawHead();
  drawRows();
}

const rowText = k => `${plan.nodeName[k]} ${scopePath(plan.nodeScope[k])} ${noteOf(k)}`.toLowerCase();

function drawHead() {
  $('head-row').replaceChildren(
    ...COLUMNS.map(c => {
      const sorted = c.key === listing.sort;
      return make(
        'th',
        {
          scope: 'col',
          class: c.number ? 'number' : '',
          'aria-sort': sorted ? (listing.down ? 'descending' : 'ascending') : 'none',
        },
        make(
          'button',
          {type: 'button', 'data-sort': c.key, onclick: () => sortBy(c.key)},
          c.name,
          make('span', {class: 'arrow', 'aria-hidden': 'true'}, sorted ? (listing.down ? '\u2193' : '\u2191') : ''),
        ),
      );
    }),
  );
}

function sortBy(key) {
  listing.down = listing.sort === key ? !listing.down : false;
  listing.sort = key;
  listRows();
  const button = document.querySelector(`[data-sort="${key}"]`);
  if (button) button.focus({preventScroll: true});
}

function drawRows() {
  const from = printing ? 0 : Math.max(0, Math.floor(scroller.scrollTop / ROW) - 6);
  const to = Math.min(
    listing.order.length,
    printing ? PRINT_ROWS : from + Math.ceil((scroller.clientHeight || 300) / ROW) + 14,
  );
  const spacer = rows =>
    make('tr', {class: 'spacer', 'aria-hidden': 'true'}, make('td', {colspan: COLUMNS.length, height: rows * ROW}));
  const rows = [];
  for (let i = from; i < to; i++) rows.push(rowElement(listing.order[i], i));
  body.replaceChildren(spacer(from), ...rows, spacer(printing ? 0 : listing.order.length - to));
}
const PRINT_ROWS = 60;

function rowElement(k, i) {
  const kind = [unsafe[k] && 'bad', k === state.latency.best && 'best', k === state.cut && 'now']
    .filter(Boolean)
    .join(' ');
  const widest = state.maxBytes || 1;
  return make(
    'tr',
    {class: kind, 'data-cut': k, 'aria-rowindex': i + 2, 'aria-selected': String(k === state.cut)},
    ...COLUMNS.map(c => {
      const shown = String(c.show(c.of(k), k));
      const cell = make(
        'td',
        {class: (c.number ? 'number ' : '') + c.key + (c.wide ? ' wide' : ''), title: shown.length > 24 ? shown : null},
        shown,
      );
      if (c.key === 'bytes') cell.append(byteBar(state.costs.bytes[k] / widest));
      return cell;
    }),
  );
}

function byteBar(share) {
  const bar = make('span', {class: 'byte-bar', 'aria-hidden': 'true'});
  bar.style.width = `${(isFinite(share) ? clamp(share, 0, 1) : 1) * 100}%`;
  return bar;
}

/* Up and down go through the rows as they are sorted. */
function onTableKey(event) {
  const step = {ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity}[event.key];
  if (step === undefined || !listing.order.length) return;
  event.preventDefault();
  const at = listing.order.indexOf(state.cut);
  setCut(listing.order[clamp((at < 0 ? -Math.sign(step) : at) + step, 0, listing.order.length - 1)], {show: true});
  showRow();
}

function showRow() {
  const i = listing.order.indexOf(state.cut);
  if (i < 0) return;
  const top = i * ROW;
  if (top < scroller.scrollTop) scroller.scrollTop = top;
  else if (top + 2 * ROW > scroller.scrollTop + scroller.clientHeight)
    scroller.scrollTop = top + 3 * ROW - scroller.clientHeight;
  drawRows();
}

function startTable() {
  scroller.addEventListener('scroll', () => requestAnimationFrame(drawRows));
  scroller.addEventListener('keydown', onTableKey);
  body.addEventListener('click', event => {
    const row = event.target.closest('[data-cut]');
    if (row) setCut(Number(row.dataset.cut), {show: true});
  });
  for (const id of ['filter', 'safe-only', 'single-only']) $(id).addEventListener('input', listRows);
}
