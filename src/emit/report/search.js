/* Search over modules, nodes, parameters and inputs, with a jump to what was found. */

const FOUND_MAX = 60;
const field = $('search'),
  found = $('found');

/* 0: no match; the more the better. */
function score(name, wanted) {
  const at = name.indexOf(wanted);
  if (at < 0) return 0;
  const whole = name.length === wanted.length ? 4 : 0;
  const start = at === 0 || '._:'.includes(name[at - 1]) ? 2 : 0;
  return 1 + whole + start + 1 / (2 + name.length);
}

const SEARCHED = [
  {
    kind: 'module',
    count: () => plan.scopePath.length,
    names: i => [scopePath(i), scopeClass(i)],
    title: i => scopePath(i) || plan.title,
    note: i => scopeClass(i),
    go: i => revealScope(i),
  },
  {
    kind: 'operator',
    count: () => nodeCount,
    names: i => [plan.nodeName[i], text(plan.nodeOp[i])],
    title: i => plan.nodeName[i],
    note: i => scopePath(plan.nodeScope[i]),
    go: i => revealNode(i),
  },
  {
    kind: 'parameter',
    count: () => plan.valueKind.length,
    names: v => (isModuleTensor(v) ? [text(plan.valueName[v])] : []),
    title: v => text(plan.valueName[v]),
    note: v => shapeText(v),
    go: v => revealNode(clamp(firstUse[v], 0, nodeCount - 1)),
  },
  {
    kind: 'input',
    count: () => plan.inputs.length,
    names: i => [text(plan.valueName[plan.inputs[i]])],
    title: i => text(plan.valueName[plan.inputs[i]]) || 'input ' + i,
    note: i => typeText(plan.inputs[i]),
    go: i => inputItems[i],
  },
];

function lookFor(wanted) {
  const out = [];
  for (const source of SEARCHED)
    for (let i = 0, n = source.count(); i < n; i++) {
      const best = Math.max(0, ...source.names(i).map(name => score(name.toLowerCase(), wanted)));
      if (best) out.push({source, i, best: best + (source.kind === 'module' ? 0.5 : 0)});
    }
  return out.sort((a, b) => b.best - a.best).slice(0, FOUND_MAX);
}

let results = [],
  marked = 0;

function showFound() {
  const wanted = field.value.trim().toLowerCase();
  results = wanted ? lookFor(wanted) : [];
  marked = 0;
  found.replaceChildren(
    ...results.map((r, i) =>
      make(
        'li',
        {
          role: 'option',
          id: 'found-' + i,
          onpointerdown: event => {
            event.preventDefault();
            jump(i);
          },
        },
        make('span', {class: 'kind ' + r.source.kind}, r.source.kind),
        make('span', {class: 'what'}, r.source.title(r.i)),
        make('span', {class: 'where'}, r.source.note(r.i)),
      ),
    ),
  );
  if (wanted && !results.length) found.append(make('li', {class: 'none'}, 'Nothing has that name.'));
  found.hidden = !wanted;
  field.setAttribute('aria-expanded', String(Boolean(wanted)));
  mark(0);
}

function mark(i) {
  if (!results.length) return;
  marked = (i + results.length) % results.length;
  [...found.children].forEach((e, j) => e.setAttribute('aria-selected', String(j === marked)));
  found.children[marked].scrollIntoView({block: 'nearest'});
  field.setAttribute('aria-activedescendant', 'found-' + marked);
}

function jump(i) {
  const r = results[i];
  if (!r) return;
  closeFound();
  goTo(r.source.go(r.i));
  pane.focus({preventScroll: true});
}

/* Opens what is around a box, brings it into view and selects it. */
function goTo(item) {
  relayout(null);
  select(item);
  show(item);
}

function closeFound() {
  found.hidden = true;
  field.setAttribute('aria-expanded', 'false');
}

function startSearch() {
  field.addEventListener('input', showFound);
  field.addEventListener('focus', () => field.value && showFound());
  field.addEventListener('blur', closeFound);
  field.addEventListener('keydown', event => {
    if (event.key === 'ArrowDown') mark(marked + 1);
    else if (event.key === 'ArrowUp') mark(marked - 1);
    else if (event.key === 'Enter') jump(marked);
    else if (event.key === 'Escape') {
      field.value = '';
      closeFound();
      pane.focus({preventScroll: true});
    } else return;
    event.preventDefault();
  });
}
