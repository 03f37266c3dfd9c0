/* The panel: text and numbers about the cut, a box, segments, and the legend. */

/* ---- the cut ---- */

const SIDES = [
  {fact: 'flops', name: 'work', show: showFlops},
  {fact: 'params', name: 'parameters', show: showCount},
  {fact: 'memory', name: 'memory', show: showBytes},
  {fact: 'nodes', name: 'nodes', show: showInt},
];

function sidesOf(fact, k) {
  const {costs} = state;
  switch (fact) {
    case 'flops':
      return [costs.prefixFlops[k], costs.suffixFlops[k]];
    case 'params':
      return [costs.prefixParams[k], costs.suffixParams[k]];
    case 'memory':
      return [costs.prefixMemory[k], costs.suffixMemory[k]];
    default:
      return [k + 1, nodeCount - k - 1];
  }
}

function sideRow({fact, name, show}, k) {
  const [before, after] = sidesOf(fact, k),
    sum = before + after;
  const bar = make(
    'span',
    {class: 'two', 'aria-hidden': 'true'},
    make('span', {class: 'prefix'}),
    make('span', {class: 'suffix'}),
  );
  bar.firstChild.style.flexGrow = sum > 0 ? before / sum : 0.5;
  bar.lastChild.style.flexGrow = sum > 0 ? after / sum : 0.5;
  const cell = (side, value) => make('td', {'data-fact': `${side}_${fact}`, 'data-value': value}, show(value));
  return make('tr', {}, cell('prefix', before), make('th', {scope: 'row'}, name, bar), cell('suffix', after));
}

function showCut() {
  const k = state.cut;
  $('slider').value = Math.max(0, k);
  if (k < 0) {
    $('cut-name').textContent = 'This plan has no place to cut';
    return;
  }
  const module = scopePath(plan.nodeScope[k]),
    reason = unsafe[k];
  $('cut-name').textContent = plan.nodeName[k];
  $('cut-name').title = plan.nodeName[k];
  $('cut-place').textContent = module ? `in ${module}` : 'in the model itself';
  $('cut-place').title = module;
  showFact('cut-bytes', 'boundary_bytes', state.costs.bytes[k], showBytes);
  showFact('cut-latency', 'latency', state.latency.total[k], showTime);
  $('cut-formula').textContent = formulas[k] && plan.symbols.length ? formulas[k] : '';
  $('cut-formula').hidden = !$('cut-formula').textContent;
  $('cut-sides').replaceChildren(...SIDES.map(s => sideRow(s, k)));
  $('cut-unsafe').hidden = !reason;
  $('cut-unsafe').textContent = reason ? `Cannot be cut here: ${reason}` : '';
  $('cut-badges').replaceChildren(...badges(k));
  showCrossing(k);
  const spokenCut = `after ${plan.nodeName[k]}, ${showBytes(state.costs.bytes[k])}, ${showTime(state.latency.total[k])}`;
  $('slider').setAttribute('aria-valuetext', reason ? `${spokenCut}, cannot be cut` : spokenCut);
  $('bar-name').textContent = `after ${plan.nodeName[k]}`;
  $('bar-facts').textContent = `${showBytes(state.costs.bytes[k])} \u00b7 ${showTime(state.latency.total[k])}`;
}

function showFact(id, fact, value, show) {
  const e = $(id);
  e.textContent = show(value);
  e.dataset.fact = fact;
  e.dataset.value = value;
}

function badges(k) {
  const out = [];
  if (k === state.latency.best) out.push(['best', 'best latency']);
  if (k === plan.chosen) out.push(['chosen', 'chosen']);
  if (unsafe[k]) out.push(['bad', 'unsafe']);
  if (plan.trainable[k]) out.push(['plain', 'trainable suffix']);
  return out.map(([kind, words]) => make('span', {class: 'badge ' + kind}, words));
}

const CROSSING_MAX = 40;
function showCrossing(k) {
  const values = crossingValues(k).sort((a, b) => state.costs.valueBytes[b] - state.costs.valueBytes[a]);
  $('crossing-count').textContent =
    `${showInt(values.length)} ${values.length === 1 ? 'tensor crosses' : 'tensors cross'}`;
  $('crossing-list').replaceChildren(
    ...values
      .slice(0, CROSSING_MAX)
      .map(v =>
        make(
          'li',
          {},
          valueButton(v),
          make('span', {class: 'type'}, typeText(v)),
          make('span', {class: 'size'}, showBytes(state.costs.valueBytes[v])),
        ),
      ),
  );
  if (values.length > CROSSING_MAX)
    $('crossing-list').append(make('li', {}, `and ${showInt(values.length - CROSSING_MAX)} more`));
}

/* A value's label; pressing it goes to where the value comes from. */
function valueButton(v) {
  const go = () =>
    goTo(
      plan.valueDef[v] >= 0
        ? revealNode(plan.valueDef[v])
        : plan.valueKind[v] === KIND.input
          ? inputItems[plan.inputs.indexOf(v)]
          : revealNode(clamp(firstUse[v], 0, nodeCount - 1)),
    );
  const name = plan.valueKind[v] === KIND.input ? text(plan.valueName[v]) : '';
  return make('button', {type: 'button', class: 'link mono', onclick: go}, valueLabel(v) + (name ? ` ${name}` : ''));
}

/* ---- details of a box ---- */

const fact = (name, ...what) => [make('dt', {}, name), make('dd', {}, ...what)];

function showDetails(item) {
  const pane = $('details');
  if (!item) {
    pane.replaceChildren(
      make('p', {class: 'quiet'}, 'Select a box in the graph to see what it does, or press / to search.'),
    );
    return;
  }
  const facts =
    item.kind === 'op'
      ? nodeFacts(item)
      : item.kind === 'input' || item.kind === 'output'
        ? endFacts(item)
        : groupFacts(item);
  const title = item.kind === 'op' ? plan.nodeName[item.node] : itemTitle(item);
  pane.replaceChildren(
    make(
      'h3',
      {},
      title,
      make('span', {class: 'class'}, item.kind === 'op' ? text(plan.nodeOp[item.node]) : itemClass(item)),
    ),
    ...actions(item),
    make('dl', {}, ...facts.flat()),
    ...(item.kind === 'op' ? nodeText(item.node) : []),
  );
}

function actions(item) {
  if (item.first < 0 || item.first >= nodeCount) return [];
  const out = [];
  if (item.last < cutCount)
    out.push(make('button', {type: 'button', id: 'cut-here', onclick: () => cutAfter(item)}, 'Cut after this'));
  if (canOpen(item) && item !== rootItem)
    out.push(
      make(
        'button',
        {
          type: 'button',
          onclick: () => {
            toggleItem(item);
            showDetails(item);
          },
        },
        item.open ? 'Close' : 'Open',
      ),
    );
  return [make('div', {class: 'actions'}, ...out)];
}

function cutAfter(item) {
  if (item.last >= 0 && item.last < cutCount) setCut(item.last, {show: false});
}

function pathFact(scope) {
  const chain = scopeChain(scope);
  if (!chain.length) return [];
  return fact(
    'module',
    ...chain
      .map((s, i) =>
        make(
          'button',
          {type: 'button', class: 'link', onclick: () => goTo(revealScope(s))},
          i ? pathBelow(s, {scope: chain[i - 1]}) : scopePath(s),
        ),
      )
      .flatMap((b, i) => (i ? [' \u203a ', b] : [b])),
  );
}

const shareOfWork = flops => (state.costs.total ? ` (${showShare(flops / state.costs.total)})` : '');

function groupFacts(item) {
  const flops = itemFlops(item),
    out = [];
  if (item.scope >= 0 && item !== rootItem) out.push(pathFact(item.scope));
  out.push(
    fact('nodes', `${showInt(item.last - item.first + 1)}, from ${showInt(item.first)} to ${showInt(item.last)}`),
  );
  out.push(fact('work', showFlops(flops) + shareOfWork(flops)));
  out.push(fact('parameters', `${showCount(paramCount(item))} in ${showInt(itemParams(item).length)} tensors`));
  const result = itemResult(item);
  if (result >= 0) out.push(fact('result', valueButton(result), ' ', make('span', {class: 'type'}, typeText(result))));
  const calls = callTree.calls.get(item.scope) || 0;
  if (item.kind === 'module' && calls > 1)
    out.push(fact('called', `${showInt(calls)} times; this is call ${item.call}`));
  return [...out, ...memberFacts(item)];
}

function endFacts(item) {
  if (item.kind === 'output')
    return [
      fact(
        'values',
        ...plan.outputs
          .slice(0, 40)
          .flatMap(v => [make('div', {}, valueButton(v), ' ', make('span', {class: 'type'}, typeText(v)))]),
      ),
    ];
  return [
    fact('input', make('span', {class: 'type'}, typeText(item.value))),
    fact('bytes', showBytes(state.costs.valueBytes[item.value])),
    fact('used', plan.valueLast[item.value] < 0 ? 'never' : `from node ${showInt(firstUse[item.value])} on`),
  ];
}

function valueList(values) {
  return values
    .slice(0, 30)
    .map(v =>
      make(
        'div',
        {class: 'value'},
        valueButton(v),
        ' ',
        make('span', {class: 'type'}, typeText(v)),
        isTensor(v) ? make('span', {class: 'size'}, showBytes(state.costs.valueBytes[v])) : null,
        plan.valueKind[v] === KIND.param
          ? make('span', {class: 'badge plain'}, plan.valueFlags[v] & FLAG.trainable ? 'trainable' : 'frozen')
          : null,
      ),
    );
}

function nodeFacts(item) {
  const n = item.node,
    flops = state.costs.nodeFlops[n],
    out = [pathFact(plan.nodeScope[n])];
  const args = [...new Set(plan.nodeArgs[n])],
    flags = nodeFlags(n);
  out.push(
    fact('position', `${showInt(n)} of ${showInt(nodeCount)}`),
    fact('work', showFlops(flops) + shareOfWork(flops)),
  );
  if (args.some(moves)) out.push(fact('reads', ...valueList(args.filter(moves))));
  if (args.some(v => !moves(v))) out.push(fact('parameters', ...valueList(args.filter(v => !moves(v)))));
  if (plan.nodeResults[n].length) out.push(fact('gives', ...valueList(plan.nodeResults[n])));
  if (plan.nodeAt[n] >= 0) out.push(fact('source', make('span', {class: 'mono'}, text(plan.nodeAt[n]))));
  if (flags.length) out.push(fact('marks', flags.join(', ')));
  return [...out, ...memberFacts(item)];
}

/* Which stage or segment a box belongs to. */
function memberFacts(item) {
  const out = [];
  if (plan.stages) {
    const stage = mixOf(item, plan.stageOf);
    const at = stage < 0 || !stageFacts.length ? '' : `, ${deviceName(stageFacts[stage].device)}`;
    out.push(fact('stage', stage < 0 ? 'several' : `${stage}${at}`));
  }
  if (plan.segments.length) {
    const segment = mixOf(item, plan.segmentOf);
    const [compiled, reason] = segment < 0 ? [0, null] : plan.segments[segment];
    out.push(
      fact(
        'segment',
        segment < 0 ? 'several' : `${segment}, ${compiled ? 'compiled' : 'not compiled'}${reason ? ': ' + reason : ''}`,
      ),
    );
  }
  return out;
}

const nodeText = n =>
  plan.nodeLine[n]
    ? [make('pre', {class: 'line', tabindex: 0, 'aria-label': 'the node in the text of the plan'}, plan.nodeLine[n])]
    : [];

/* ---- stages and segments ---- */

function groupSums(of, count) {
  const out = Array.from({length: count}, () => ({nodes: 0, flops: 0, first: nodeCount, last: -1, params: new Set()}));
  of.forEach((g, n) => {
    out[g].nodes++;
    out[g].flops += state.costs.nodeFlops[n];
    out[g].first = Math.min(out[g].first, n);
    out[g].last = n;
    for (const v of plan.nodeArgs[n]) if (plan.valueKind[v] === KIND.param) out[g].params.add(v);
  });
  for (const g of out) g.paramBytes = [...g.params].reduce((sum, v) => sum + state.costs.valueBytes[v], 0);
  return out;
}

function barOf(share, hue) {
  const bar = make('span', {class: 'bar-fill'});
  bar.style.width = `${clamp(share, 0, 1) * 100}%`;
  if (hue) bar.style.background = hue;
  return make('span', {class: 'bar-track', 'aria-hidden': 'true'}, bar);
}

function groupRow(name, sums, ...cells) {
  const go = () => sums.last >= 0 && goTo(revealNode(sums.first));
  return make(
    'li',
    {},
    make('button', {type: 'button', class: 'link', onclick: go}, name),
    ...cells,
    make(
      'span',
      {class: 'quiet'},
      `${showInt(sums.nodes)} nodes \u00b7 ${showFlops(sums.flops)} \u00b7 ${showBytes(sums.paramBytes)} of parameters`,
    ),
  );
}

function showSegments() {
  if (!plan.segments.length) return;
  const sums = groupSums(plan.segmentOf, plan.segments.length);
  const done = plan.segments.reduce((sum, s, i) => sum + (s[0] ? sums[i].flops : 0), 0);
  $('compiled-share').textContent = state.costs.total
    ? `${showShare(done / state.costs.total)} of the work is compiled`
    : '';
  $('segment-list').replaceChildren(
    ...plan.segments.map(([compiled, reason], i) =>
      groupRow(
        compiled ? `segment ${i}` : 'tape',
        sums[i],
        make('span', {class: 'badge ' + (compiled ? 'compiled' : 'fallback')}, compiled ? 'compiled' : 'not compiled'),
        make('span', {class: 'reason'}, reason || ''),
      ),
    ),
  );
}

/* ---- legend ---- */

function showLegend() {
  const key = (kind, words) => make('span', {class: 'key'}, make('i', {class: kind}), words);
  const legends = {
    cut: [key('prefix', 'prefix'), key('suffix', 'suffix'), key('boundary', 'boundary')],
    work: [key('heat', 'more work')],
    stages: Array.from({length: Math.min(plan.stages, 12)}, (_, i) => {
      const e = key('stage', `stage ${i}`);
      e.firstChild.style.background = hueOf(i);
      return e;
    }),
    segments: [key('compiled', 'compiled'), key('fallback', 'not compiled')],
  };
  $('legend').replaceChildren(...legends[state.colour]);
}
