/* The stages of a partition: what each takes, where it runs, what goes over its borders, how even the devices are. */

/* stageFacts in words; empty where nothing is known but the cost. Times are seconds here. */
const stageFacts = plan.stageFacts.map(
  ([device, forward, backward, waits, comes, goes, relayed, params, memory, inFlight]) => ({
    device,
    forward: forward / 1e6,
    backward: backward / 1e6,
    waits: waits / 1e6,
    comes,
    goes,
    relayed,
    params,
    memory,
    inFlight,
  }),
);
const deviceName = d => plan.devices[d] ?? `device ${d}`;
const parts = s => [
  ['forward', s.forward],
  ['backward', s.backward],
  ['waits', s.waits],
];
const stageTime = s => s.forward + s.backward + s.waits;

/* What stages cost: times where they are known, else what the caller said, else the work. */
function stageCosts(sums) {
  if (stageFacts.length) return {costs: stageFacts.map(stageTime), show: showTime};
  if (plan.stageCost.length) return {costs: plan.stageCost, show: x => scaled(x, ['', 'k', 'M', 'G', 'T'])};
  return {costs: sums.map(s => s.flops), show: showFlops};
}

const sumOf = all => all.reduce((a, b) => a + b, 0);

/* Devices with their stages in order. */
function devicesOf() {
  const found = new Map();
  stageFacts.forEach((s, i) => found.set(s.device, [...(found.get(s.device) || []), i]));
  return [...found].sort(([a], [b]) => a - b).map(([device, stages]) => ({device, stages}));
}

function balanceText(costs, show) {
  if (!stageFacts.length) {
    const mean = sumOf(costs) / costs.length;
    return mean > 0 ? `The slowest stage takes ${(Math.max(...costs) / mean).toFixed(2)} times the mean` : '';
  }
  const times = devicesOf().map(d => sumOf(d.stages.map(i => costs[i]))),
    most = Math.max(...times),
    bound = plan.lowerBound / 1e6;
  const words = `The slowest device takes ${show(most)} for one micro-batch`;
  return bound > 0 ? `${words}, ${(most / bound).toFixed(3)} times the lower bound of ${show(bound)}` : words;
}

/* A bar in parts, as long as their sum is of `most`. */
function stackedBar(pieces, most, hue) {
  const track = make('span', {class: 'bar-track stack', 'aria-hidden': 'true'});
  for (const [kind, x] of pieces) {
    const e = make('span', {class: `bar-part ${kind}`, title: `${kind} ${showTime(x)}`});
    e.style.width = `${most > 0 ? (x / most) * 100 : 0}%`;
    if (hue) e.style.setProperty('--hue', hue);
    track.append(e);
  }
  return track;
}

/* columns: {head, cell(row), number}. */
function tableOf(label, columns, rows) {
  const kind = c => (c.number ? {class: 'number'} : {});
  return make(
    'table',
    {class: 'stages', 'aria-label': label},
    make('thead', {}, make('tr', {}, ...columns.map(c => make('th', {scope: 'col', ...kind(c)}, c.head)))),
    make('tbody', {}, ...rows.map(r => make('tr', {}, ...columns.map(c => make('td', kind(c), c.cell(r)))))),
  );
}

const number = (head, cell) => ({head, cell, number: true});

function stageColumns(sums, costs, show) {
  const most = Math.max(...costs),
    total = sumOf(costs);
  const go = i => () => sums[i].last >= 0 && goTo(revealNode(sums[i].first));
  const dot = i => {
    const e = make('i', {class: 'dot'});
    e.style.background = hueOf(i);
    return e;
  };
  const bar = i =>
    stageFacts.length
      ? stackedBar(parts(stageFacts[i]), most, hueOf(i))
      : barOf(most ? costs[i] / most : 0, hueOf(i));
  const own = [
    {head: 'stage', cell: i => make('button', {type: 'button', class: 'link', onclick: go(i)}, dot(i), `stage ${i}`)},
    {head: '', cell: bar},
    number('cost', i => make('span', {class: 'cost', 'data-stage-cost': costs[i]}, show(costs[i]))),
    number('share', i => (total > 0 ? showShare(costs[i] / total) : '')),
    number('nodes', i => showInt(sums[i].nodes)),
    number('work', i => showFlops(sums[i].flops)),
  ];
  if (!stageFacts.length) return [...own, number('parameters', i => showBytes(sums[i].paramBytes))];
  own.splice(1, 0, {head: 'device', cell: i => deviceName(stageFacts[i].device)});
  const relayed = number('relayed', i => showBytes(stageFacts[i].relayed));
  return [
    ...own,
    number('parameters', i => showBytes(stageFacts[i].params)),
    number('memory', i => showBytes(stageFacts[i].memory)),
    number('in flight', i => showInt(stageFacts[i].inFlight)),
    number('in', i => showBytes(stageFacts[i].comes)),
    number('out', i => showBytes(stageFacts[i].goes)),
    ...(stageFacts.some(s => s.relayed) ? [relayed] : []),
  ];
}

/* Where a device has several stages, its own sums say how even the pipeline is. */
function deviceTable(costs, show) {
  const rows = devicesOf().map(d => ({...d, time: sumOf(d.stages.map(i => costs[i]))}));
  if (rows.length === stageFacts.length) return null;
  const most = Math.max(...rows.map(r => r.time));
  const pieces = r => ['forward', 'backward', 'waits'].map(k => [k, sumOf(r.stages.map(i => stageFacts[i][k]))]);
  return tableOf(
    'Devices',
    [
      {head: 'device', cell: r => deviceName(r.device)},
      {head: '', cell: r => stackedBar(pieces(r), most)},
      number('cost', r => make('span', {class: 'cost', 'data-device-cost': r.time}, show(r.time))),
      {head: 'stages', cell: r => r.stages.join(', ')},
    ],
    rows,
  );
}

function barLegend() {
  const key = kind => make('span', {class: 'key'}, make('i', {class: `bar-part ${kind}`}), kind);
  return make('p', {class: 'quiet bar-legend'}, key('forward'), key('backward'), key('waits'));
}

function showStages() {
  if (!plan.stages) return;
  const sums = groupSums(plan.stageOf, plan.stages);
  const {costs, show} = stageCosts(sums);
  $('balance').textContent = balanceText(costs, show);
  const tables = [tableOf('Stages', stageColumns(sums, costs, show), [...costs.keys()])];
  if (stageFacts.length) tables.push(deviceTable(costs, show), barLegend());
  $('stage-list').replaceChildren(...tables.filter(Boolean));
}
