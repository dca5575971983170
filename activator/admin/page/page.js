
'use strict';
const ROWS_OFTEN = 500, OFTEN_MS = 1000, SELDOM_MS = 5000, CURVES_MS = 10000, ANSWER_MS = 10000, CHANGE_MS = 30000, KEPT_MS = 15000;
const CURVES_MAX = 60, PODS_LISTED = 50, OLD_S = 10;
const RANGES = {'5m': [300, 'hour', 'last 5 min'], '1h': [3600, 'hour', 'last hour'], '24h': [86400, 'day', 'last 24 h']};
const SLOTS_SHOWN = 2000, REASONS_SHOWN = 10, LINES_SHOWN = 500, REQUESTS_SHOWN = 20, UNLIMITED = 2 ** 30;
const POD_COLUMNS = ['pod', 'address', 'state', 'in flight', 'responses', 'errors', 'first byte', 'reason', ''];
const WAITING_COLUMNS = ['', 'request', 'has waited', 'expected', 'user', 'level'];
const REQUEST_COLUMNS = ['time', 'request', 'status', 'took', 'where its time went', 'first token', 'tokens', 'user', 'pod', ''];
// On a narrow screen, these are told with their names.
const NAMED = new Set(['in flight', 'responses', 'errors', 'first byte', 'took', 'first token', 'tokens', 'user', 'has waited', 'expected', 'level']);
const SET_ASIDE = 'taken out of service by `drain-pod`';  // the reason of a drained pod
const STATES = ['failed', 'degraded', 'waiting', 'starting', 'serving', 'ready', 'asleep'];
const COLUMNS = [
  ['revision', row => row.key, 1], ['state', row => STATES.indexOf(row.state), 1], ['rate', row => row.rate, -1],
  ['requests', row => row.requests, -1], ['failed', row => row.failed, -1], ['in flight', row => row.in_flight, -1],
  ['queued', row => row.queued, -1], ['pods', row => row.ready, -1], ['', null, 0],
];
const find = name => document.querySelector(name);
const told = find('#told'), table = find('table'), search = find('#search'), filter = find('#state'), range = find('#range'), sure = find('#sure');
const rows = new Map();  // by key: what is shown of a revision
let sorted = {column: 1, way: 1}, slowest = false, open = '', wanted = '', past_groups = {}, last = null, asked_ms = -Infinity, kept_until_ms = 0, confirmed = null;

function ask(path) { return fetch(path, {cache: 'no-store', signal: AbortSignal.timeout(ANSWER_MS)}); }
// Kept by the event: the browser lays out the whole table before it says what is selected, 3 s in all for 500 new rows.
let selected = null;
document.addEventListener('selectionchange', () => {
  const selection = document.getSelection();
  selected = selection.isCollapsed ? null : selection.anchorNode;
});
function selects(node) { return selected !== null && node.contains(selected); }

// --- the table -----------------------------------------------------------------------------------------------------

COLUMNS.forEach(([name, value], number) => {
  const head = element('th'), button = value && element('button', '', name);
  head.scope = 'col';
  if (button) {
    button.type = 'button';
    button.addEventListener('click', () => {
      sorted = {column: number, way: sorted.column === number ? -sorted.way : COLUMNS[number][2]};
      order();
      keep_address();
    });
    head.append(button);
  } else head.textContent = name;
  find('thead tr').append(head);
});
STATES.forEach(state => filter.append(element('option', '', state)));

function make_row(key) {
  const row = {key, body: element('tbody'), line: element('tr'), name: element('button', 'name'), why: element('div', 'why'), cells: []};
  row.name.type = 'button';
  row.name.textContent = key;
  row.name.setAttribute('aria-expanded', 'false');
  row.name.addEventListener('click', () => toggle(key));
  const head = element('td');
  head.append(row.name, row.why);
  row.state = element('span', 'mark');
  row.age = element('span', 'age soft');
  row.spark = element('td');
  row.line.append(head);
  for (let number = 1; number < COLUMNS.length - 1; number++) {
    const cell = element('td');
    row.cells[number] = number === 1 ? row.state : cell;
    if (number === 1) cell.append(row.state, ' ', row.age);
    else cell.dataset.name = COLUMNS[number][0];
    row.line.append(cell);
  }
  row.line.append(row.spark);
  row.body.append(row.line);
  return row;
}
function update(row, now, since_s) {
  const before = row.data;
  now.rate = before && since_s > 0 ? Math.max(0, (now.requests - before.requests) / since_s) : (before || {}).rate;
  row.data = now;
  write(row.state, now.state);
  mark(row.state, 'mark ' + now.state);
  write(row.age, now.state_age_s < 60 ? '' : whole_minutes(now.state_age_s));  // a change each second would cost the browser
  if (!selects(row.why)) write(row.why, now.attention.join('; '));  // a start that is tried again has no cause for a moment
  mark(row.why, 'why ' + (now.state === 'failed' ? 'bad' : 'busy'));
  const texts = [, , rate(now.rate), now.requests, now.failed, now.in_flight, now.queued, now.ready + ' / ' + now.pods];
  for (let number = 2; number < texts.length; number++) write(row.cells[number], texts[number]);
  mark(row.cells[4], now.recent_failures ? 'bad' : '');
  mark(row.cells[6], now.queued ? 'busy' : '');
}
function order() {
  const value = COLUMNS[sorted.column][1], text = search.value.trim().toLowerCase();
  document.querySelectorAll('thead th').forEach((head, number) => {
    if (number === sorted.column) head.setAttribute('aria-sort', sorted.way > 0 ? 'ascending' : 'descending');
    else head.removeAttribute('aria-sort');
  });
  const shown = [...rows.values()].filter(row => (!filter.value || row.data.state === filter.value) &&
    (!text || [row.key, ...row.data.hosts].some(name => name.toLowerCase().includes(text))));
  shown.sort((one, other) => {
    const left = value(one.data), right = value(other.data);
    const by = left < right ? -1 : left > right ? 1 : 0;
    return by * sorted.way || other.data.queued - one.data.queued || (one.key < other.key ? -1 : 1);
  });
  const matches = new Set(shown);
  for (const row of rows.values()) row.body.hidden = !matches.has(row);
  find('#none').hidden = shown.length > 0;
  write(find('#none'), rows.size ? 'No revision matches.' : 'There is no revision: the file declares none, or none was found yet.');
  write(find('#count'), shown.length === rows.size ? '' : shown.length + ' of ' + rows.size);
  if (selects(table)) return;  // moving what is selected would lose the selection
  let previous = table.tHead;
  for (const row of shown) {
    if (previous.nextElementSibling !== row.body) {
      const focus = row.body.contains(document.activeElement) ? document.activeElement : null;
      previous.after(row.body);
      if (focus) focus.focus({preventScroll: true});
    }
    previous = row.body;
  }
}
function toggle(key) {
  const before = open;
  wanted = '';
  open = open === key ? '' : key;
  for (const key_of_row of [before, open]) {
    const row = rows.get(key_of_row);
    if (!row) continue;
    row.name.setAttribute('aria-expanded', String(key_of_row === open));
    if (key_of_row === open) opened(row);
    else if (row.details) { row.details.remove(); row.details = null; }
  }
  if (open) { details(); asked_ms = -Infinity; }
  keep_address();
}

// --- the details of one revision -----------------------------------------------------------------------------------

function opened(row) {
  const box = element('td'), parts = {};
  row.details = element('tr', 'details');
  box.colSpan = COLUMNS.length;
  for (const name of ['facts', 'problems', 'buttons', 'waiting', 'curves', 'slots', 'requests', 'scaling', 'cold', 'output'])
    box.append(parts[name] = element('div'));
  parts.curves.className = 'curves';
  row.parts = parts;
  row.after = 0;
  pods_head(row);
  requests_head(row);
  row.details.append(box);
  row.body.append(row.details);
  if (row.data.program) {
    for (const [word, path] of [['Load', '/load/'], ['Unload', '/unload/'], ['Restart', '/restart/']]) {
      const button = element('button', '', word);
      button.type = 'button';
      const act = () => change(path + row.key, button, word + ' ' + row.key);
      button.addEventListener('click', () => word === 'Unload' && row.data.queued ? confirm_first(
        row.data.queued + ' requests wait for ' + row.key + '. Unload it all the same?', act) : act());
      parts.buttons.append(button, ' ');
    }
    row.log = element('pre', 'output');
    row.log.tabIndex = 0;
    row.log.setAttribute('role', 'log');
    row.log.setAttribute('aria-label', 'Output of ' + row.key);
    parts.output.append(element('h2', '', 'Output'), row.log);
  }
}
async function details() {
  const row = rows.get(open);
  if (!row || !row.details) return;
  const answer = await ask('/debug/revisions?revision=' + encodeURIComponent(row.key));
  const [revision] = answer.ok ? (await answer.json()).revisions : [];
  if (!revision || !row.details) return;
  const {facts, problems, waiting, scaling, cold} = row.parts;
  write(facts, 'hosts ' + (revision.hosts.join(' ') || 'none') + ' · ' + revision.policy + ' · ' + revision.protocol + ' · ' +
    (revision.container_concurrency ? 'at most ' + revision.container_concurrency + ' in a pod' : 'no limit') + ' · table ' +
    revision.table.length + ' of ' + revision.table.capacity + ' slots, ' + Math.round(100 * revision.table.fragmentation) + ' % empty' +
    measured(revision.memory).map(one => ' · ' + one).join(''));
  const reasons = [];
  if (revision.failure) reasons.push('cannot start: ' + revision.failure);
  if (revision.waits_for) reasons.push(revision.queued + ' requests wait for ' + revision.waits_for);
  if (revision.group && revision.group.waits) reasons.push('group ' + revision.group.name + ': ' + revision.group.waits.explanation);
  reasons.push(...(revision.problems || []));
  const failed = Object.entries(revision.failed).filter(([, count]) => count);
  if (failed.length) reasons.push('refused: ' + failed.map(([name, count]) => count + ' ' + name).join(', '));
  const unwell = [...revision.slots, ...revision.without_slot].filter(one => one.reason && one.reason !== SET_ASIDE);
  for (const one of unwell.slice(0, REASONS_SHOWN)) reasons.push(one.pod + ' ' + one.state + ': ' + one.reason);
  lines(problems, reasons, 'busy');
  draw_waiting(waiting, revision.waiting_requests, revision.queued);
  row.revision = revision;
  draw_found_pods(row);
  const why = revision.scaling;
  const until = why && unloading(why.unloads_in_s);
  lines(scaling, why ? ['wanted ' + why.wanted + ' (' + why.reason + '): ' + why.explanation +
    (until ? ' Without a request it is ' + until + '.' : '')].concat(why.changed ?
    ['last change ' + why.changed.age_s.toFixed(0) + ' s ago: ' + why.changed.from + ' to ' + why.changed.to + ': ' +
      why.changed.explanation] : []) : [], '');
  draw_cold(cold, Object.entries(row.data.cold));
  await draw_requests(row);
  if (row.log) await output(row);
}
function lines(box, texts, words) {
  while (box.childElementCount > texts.length) box.lastElementChild.remove();
  texts.forEach((text, number) => write(box.children[number] || box.appendChild(element('div', words)), text));
}
function draw_waiting(box, found, queued) {
  const text = JSON.stringify([found, queued]);
  if (box.dataset.shown === text || selects(box)) return;
  box.dataset.shown = text;
  box.replaceChildren();
  if (!found.length) return;
  const shown = element('table', 'small wraps'), head = shown.createTHead().insertRow(), body = shown.createTBody();
  for (const name of WAITING_COLUMNS) head.appendChild(element('th', '', name)).scope = 'col';
  found.forEach((request, number) => {
    const made = body.insertRow();
    const parts = [number + 1, request.method + ' ' + request.target, lasting(request.waited_s), lasting(request.expected_s), request.user, request.level || ''];
    parts.forEach((part, column) => {
      const cell = made.insertCell();
      cell.append(part);
      if (NAMED.has(WAITING_COLUMNS[column])) cell.dataset.name = WAITING_COLUMNS[column];
    });
  });
  box.append(element('h2', '', 'Waiting requests'), shown);
  if (queued > found.length) box.append(element('p', 'legend', 'and ' + (queued - found.length) + ' more'));
}
function pods_head(row) {
  const head = element('div', 'head'), label = element('label', 'soft', 'Find ');
  row.find = label.appendChild(element('input'));
  row.find.type = 'search';
  row.find.placeholder = 'pod or address';
  row.find.addEventListener('input', () => draw_found_pods(row));
  head.append(element('h2', '', 'Pods'), label);
  row.more = element('div', 'soft');
  row.parts.slots.append(head, row.parts.pods = element('div'), row.more);
}
function draw_found_pods(row) {  // few pods as a table, many as squares
  const revision = row.revision, all = [...revision.slots, ...revision.without_slot], text = row.find.value.trim().toLowerCase();
  row.find.parentNode.hidden = all.length <= PODS_LISTED && !text;
  if (all.length > PODS_LISTED && !text) { draw_slots(row, all); return; }
  const found = all.filter(pod => pod.pod.toLowerCase().includes(text) || pod.address.toLowerCase().includes(text));
  draw_pods(row, row.parts.pods, found.slice(0, PODS_LISTED));
  write(row.more, found.length > PODS_LISTED ? 'and ' + (found.length - PODS_LISTED) + ' more' : found.length || !text ? '' : 'none');
}
function draw_pods(row, box, pods) {
  if (!box.querySelector('table')) {
    row.pods = new Map();
    const shown = element('table', 'small wraps pods'), head = shown.createTHead().insertRow();
    for (const name of POD_COLUMNS) head.appendChild(element('th', '', name)).scope = 'col';
    shown.append(element('tbody'));
    box.replaceChildren(shown);
  }
  const body = box.querySelector('tbody'), seen = new Set(pods.map(pod => pod.pod));
  for (const [name, shown] of row.pods) if (!seen.has(name)) { shown.line.remove(); row.pods.delete(name); }
  for (const pod of pods) {
    let shown = row.pods.get(pod.pod);
    if (!shown) {
      shown = {line: body.insertRow(), cells: [], mark: element('span'), button: element('button')};
      for (const name of POD_COLUMNS) {
        const cell = shown.line.insertCell();
        if (NAMED.has(name)) cell.dataset.name = name;
        shown.cells.push(cell);
      }
      shown.cells[2].append(shown.mark);
      shown.cells[8].append(shown.button);
      shown.button.type = 'button';
      row.pods.set(pod.pod, shown);
    }
    const aside = pod.reason === SET_ASIDE, path = aside ? '/enable-pod/' : '/drain-pod/', word = aside ? 'Enable' : 'Drain';
    const limit = pod.limit === undefined || pod.limit >= UNLIMITED ? '' : ' / ' + pod.limit;
    const texts = [pod.pod, pod.address, , pod.in_flight === undefined ? '' : pod.in_flight + limit, pod.responses || '', pod.errors || '',
      pod.responses ? seconds(pod.first_byte_total_s / pod.responses) : '', pod.reason || ''];
    for (const number in texts) if (!selects(shown.cells[number])) write(shown.cells[number], texts[number]);
    write(shown.mark, (aside ? 'drained' : pod.state) + (pod.state_age_s >= OLD_S ? ' for ' + lasting(pod.state_age_s) : ''));
    mark(shown.mark, 'pod ' + (aside ? 'draining' : pod.state));
    mark(shown.cells[5], pod.errors && row.data.recent_failures ? 'bad' : '');
    shown.button.hidden = row.data.program;  // `restart` and `unload` are for programs
    write(shown.button, word);
    shown.button.setAttribute('aria-label', word + ' ' + pod.pod);
    shown.button.onclick = () => change(path + row.key + '?pod=' + encodeURIComponent(pod.address), shown.button, word + ' ' + pod.pod);
  }
}
function draw_slots(row, slots) {
  if (!row.parts.pods.querySelector('ul')) row.parts.pods.replaceChildren(element('ul', 'slots'));
  const list = row.parts.pods.firstElementChild;
  while (list.childElementCount > Math.min(slots.length, SLOTS_SHOWN)) list.lastElementChild.remove();
  slots.slice(0, SLOTS_SHOWN).forEach((pod, number) => {
    let shown = list.children[number];
    if (!shown) { shown = list.appendChild(element('li')); shown.append(element('i'), element('span', 'unseen')); }
    const in_flight = pod.in_flight || 0, limit = pod.limit < UNLIMITED ? Math.max(pod.limit, 1) : Math.max(in_flight, 1);
    mark(shown, 'slot ' + pod.state);
    shown.firstElementChild.style.height = Math.min(100 * in_flight / limit, 100) + '%';
    const text = pod.pod + ' at ' + pod.address + ', ' + pod.state + ', ' + in_flight + ' in flight' +
      (pod.responses ? ', ' + pod.responses + ' responses, ' + pod.errors + ' errors, first byte after ' +
        seconds(pod.first_byte_total_s / pod.responses) : '') +
      (pod.reason ? ', ' + pod.reason : '');
    if (shown.title !== text) { shown.title = text; shown.lastElementChild.textContent = text; }
  });
  write(row.more, slots.length > SLOTS_SHOWN ? 'and ' + (slots.length - SLOTS_SHOWN) + ' more' : slots.length ? '' : 'none');
}
function draw_cold(box, phases) {
  const text = JSON.stringify(phases);
  if (box.dataset.shown === text || selects(box)) return;
  box.dataset.shown = text;
  box.replaceChildren();
  if (!phases.length) return;
  const shown = element('table', 'small'), head = shown.appendChild(element('tr'));
  for (const name of ['phase', 'starts', 'mean', 'p50', 'p99']) head.append(element('th', '', name));
  for (const [name, times] of phases) {
    const made = shown.appendChild(element('tr'));
    for (const part of [name, times.count, seconds(times.mean_s), seconds(times.p50_s), seconds(times.p99_s)]) made.append(element('td', '', part));
  }
  box.append(element('h2', '', 'Starts from zero, by phase'), shown);
}
function requests_head(row) {
  const head = element('div', 'head'), button = element('button');
  button.type = 'button';
  button.addEventListener('click', () => { slowest = !slowest; keep_address(); draw_requests(row).catch(() => {}); });
  head.append(element('h2'), button);
  head.hidden = true;
  row.parts.requests.append(head, element('div'));
}
async function draw_requests(row) {
  const [top, box] = row.parts.requests.children, [title, button] = top.children, by_time = slowest;
  if (!row.data.recorded) {
    write(box, 'Requests are not recorded; `record: {}` in the declaration of the revision lists the last and the slowest here.');
    mark(box, 'legend');
    return;
  }
  const answer = await ask('/debug/requests?n=' + REQUESTS_SHOWN + (by_time ? '&order=slowest' : '') +
    '&revision=' + encodeURIComponent(row.key));
  if (!answer.ok || !row.details || by_time !== slowest) return;
  const found = (await answer.json()).requests, text = JSON.stringify([by_time, found]);
  if (box.dataset.shown === text || selects(box)) return;
  box.dataset.shown = text;
  write(title, by_time ? 'Slowest requests' : 'Last requests');
  write(button, by_time ? 'Show the last' : 'Show the slowest');
  top.hidden = !found.length;
  mark(box, '');
  box.replaceChildren();
  if (!found.length) return;
  const shown = element('table', 'small wraps'), head = shown.createTHead().insertRow(), body = shown.createTBody();
  for (const name of REQUEST_COLUMNS) head.appendChild(element('th', '', name)).scope = 'col';
  const longest_s = greatest(found.map(request => request.duration_s));
  for (const request of found) {
    const made = body.insertRow(), tokens = request.tokens;
    const parts = [request.time.slice(11, 19), request.method + ' ' + request.target, (request.status || '–') + ' ' + (request.reason || ''),
      seconds(request.duration_s), phases(request, longest_s), request.first_token_s ? seconds(request.first_token_s) : '',
      tokens ? tokens.prompt + ' + ' + tokens.completion : '', request.user || '', request.pod || ''];
    parts.forEach((part, number) => {
      const cell = made.insertCell();
      cell.append(part);
      if (NAMED.has(REQUEST_COLUMNS[number])) cell.dataset.name = REQUEST_COLUMNS[number];
    });
    const last = made.insertCell();
    if (request.has_capture) { const link = last.appendChild(element('a', '', 'capture')); link.setAttribute('href', '/debug/requests/' + request.id); }
  }
  const legend = element('p', 'legend');
  for (const name of PHASES) legend.append(element('i', name), name + ' ');
  box.append(shown, legend);
}
async function output(row) {
  const answer = await ask('/logs/' + row.key + '?after=' + row.after);
  if (!answer.ok || !row.log) return;
  const answered = await answer.json(), box = row.log, follows = box.scrollTop + box.clientHeight >= box.scrollHeight - 4;
  for (const line of answered.lines) box.append(element('div', line.stream === 'stderr' ? 'busy' : '', line.process + ' | ' + line.text));
  row.after = answered.last === undefined ? row.after : answered.last;
  if (!selects(box)) while (box.childElementCount > LINES_SHOWN) box.firstElementChild.remove();
  if (follows) box.scrollTop = box.scrollHeight;
}

// --- the curves of the chosen range -----------------------------------------------------------------------------------

function in_view() {
  const found = [];
  for (const row of rows.values()) {
    if (row.body.hidden || found.length >= CURVES_MAX) continue;
    const {top, bottom} = row.line.getBoundingClientRect();
    if (bottom > -200 && top < innerHeight + 200) found.push(row);
  }
  return found;
}
async function load_curves() {
  const visible = in_view();
  if (open && rows.get(open) && !visible.includes(rows.get(open))) visible.push(rows.get(open));
  if (!visible.length) return;
  const [span_s, kept] = RANGES[range.value];
  const query = visible.map(row => 'revision=' + encodeURIComponent(row.key)).join('&');
  const answer = await ask('/debug/history?range=' + kept + '&' + query);
  if (!answer.ok) return;
  const answered = await answer.json();
  for (const row of visible) draw_curves(row, answered.revisions[row.key], span_s);
  past_groups = answered.groups || {};
  draw_lanes();
}
function within(past, span_s) {
  const first = past.age_s.findIndex(age_s => age_s <= span_s), from = first < 0 ? past.age_s.length : first;
  return Object.fromEntries(Object.entries(past).map(([name, values]) => [name, values.slice(from)]));
}
function draw_curves(row, all, span_s) {
  const past = all && all.age_s ? within(all, span_s) : {age_s: []};
  if (!past.age_s.length) { row.spark.replaceChildren(); if (row.details) row.parts.curves.replaceChildren(); return; }
  row.spark.replaceChildren(spark(past, span_s));
  if (!row.details || selects(row.parts.curves) || row.parts.curves.matches(':hover')) return;
  const few = ['line1', 'line2'];
  row.parts.curves.replaceChildren(
    graph('Requests per second', [['all', past.rate], ['failed', past.failures]], few, rate, past.age_s, span_s),
    graph('Time', [['p50', past.p50_s], ['p99', past.p99_s]], ['line1', 'line3'], seconds, past.age_s, span_s),
    graph('Requests and pods', [['in flight', past.in_flight], ['queued', past.queued], ['ready pods', past.ready]],
      ['line1', 'line4', 'line3'], count, past.age_s, span_s));
}

// --- groups --------------------------------------------------------------------------------------------------------

function draw_groups(groups) {
  const box = find('#groups');
  box.hidden = !groups.length;
  if (selects(box)) return;
  for (const group of groups) for (const one of group.holders) one.until = unloading(one.unloads_in_s);
  const text = JSON.stringify(groups.map(group => ({...group, waiting: group.waiting.map(one => one.revision + one.explanation),
    holders: group.holders.map(one => ({...one, unloads_in_s: 0}))})));
  if (box.dataset.shown === text) return;
  box.dataset.shown = text;
  box.replaceChildren(...groups.map(group => {
    const made = element('div'), names = Object.keys(group.budget), bar = element('div', 'budget');
    const budgets = names.map(name => name + ' ' + amount(group.used[name]) + ' of ' + amount(group.budget[name])).join(', ');
    made.append(element('h2', '', 'Group ' + group.name), element('div', 'soft',
      (budgets || 'one revision at a time') + ' · ' + group.discipline + ' · ' + group.swaps + ' swaps'));
    for (const one of group.holders) {
      const states = ['running', 'leaving', 'sleeping'].filter(state => one[state]).map(state => one[state] + ' ' + state);
      const part = element('span', one.leaving ? 'moving' : one.running ? 'loaded' : 'soft', one.revision + ': ' +
        states.concat(one.until || []).join(', '));
      part.title = [part.textContent, ...measured(one.memory)].join(', ');
      part.style.flex = '1 1 0';
      bar.append(part);
    }
    const full = names.length ? Math.max(...names.map(name => group.used[name] / group.budget[name])) : 1;
    const rest = element('span');
    rest.style.flex = (group.holders.length * (1 / Math.max(full, 0.02) - 1) || (group.holders.length ? 0 : 1)) + ' 1 0';
    bar.append(rest);
    made.append(bar);
    for (const one of group.waiting) made.append(element('div', 'busy', one.revision + ' ' + one.explanation));
    made.append(element('div', 'past'));
    made.lastElementChild.dataset.group = group.name;
    return made;
  }));
  draw_lanes();
}
function measured(memory) { return Object.entries(memory || {}).map(([name, used]) => 'uses ' + name + ' ' + amount(used)); }
function draw_lanes() {
  for (const box of document.querySelectorAll('.past'))
    box.replaceChildren(timeline(past_groups[box.dataset.group] || [], Math.min(RANGES[range.value][0], 3600)));
}

// --- what changes something ----------------------------------------------------------------------------------------

async function change(path, button, what) {
  button.disabled = true;
  try {
    const answer = await fetch(path, {method: 'POST', headers: {'Activator-Admin': '1'}, signal: AbortSignal.timeout(CHANGE_MS)});
    const result = await answer.json(), problems = result.problems || [], restart = result.needs_restart || [];
    told.textContent = what + ': ' + (problems.length ? problems.join('; ') :
      restart.length ? 'done; only a new start applies ' + restart.join(', ') : 'done');
    mark(told, problems.length || restart.length ? 'bad' : 'good');
  } catch (error) {
    told.textContent = what + ': ' + (error.name === 'TimeoutError' ?
      'no answer within ' + CHANGE_MS / 1000 + ' s; it may be done all the same' : error.message);
    mark(told, 'bad');
  }
  kept_until_ms = performance.now() + KEPT_MS;  // long enough to read a problem
  button.disabled = false;
}
function confirm_first(question, act) {
  write(find('#question'), question);
  confirmed = act;
  sure.showModal();
}
find('#yes').addEventListener('click', () => { sure.close(); confirmed(); });
find('#no').addEventListener('click', () => sure.close());
find('#reload').addEventListener('click', event => change('/reload', event.target, 'Reload'));
find('#drain').addEventListener('click', event => confirm_first(
  'Finish what is in flight, take nothing new, and exit?', () => change('/drain', event.target, 'Drain')));

// --- the address of this view ---------------------------------------------------------------------------------------

function keep_address() {
  const shown = new URLSearchParams();
  for (const [name, value] of [['revision', open || wanted], ['search', search.value], ['state', filter.value],
    ['requests', slowest ? 'slowest' : '']]) if (value) shown.set(name, value);
  if (range.value !== '1h') shown.set('range', range.value);
  if (sorted.column !== 1 || sorted.way !== 1) shown.set('sort', (sorted.way < 0 ? '-' : '') + COLUMNS[sorted.column][0]);
  const text = String(shown);
  if (location.hash.slice(1) !== text) history.replaceState(null, '', text ? '#' + text : location.pathname);
}
function go_to_address() {
  const shown = new URLSearchParams(location.hash.slice(1)), sort = shown.get('sort') || 'state';
  search.value = shown.get('search') || '';
  filter.value = STATES.includes(shown.get('state')) ? shown.get('state') : '';
  range.value = Object.hasOwn(RANGES, shown.get('range')) ? shown.get('range') : '1h';
  const column = COLUMNS.findIndex(([name, value]) => value && name === sort.replace(/^-/, ''));
  sorted = {column: Math.max(column, 0), way: sort.startsWith('-') ? -1 : 1};
  slowest = shown.get('requests') === 'slowest';
  wanted = shown.get('revision') || '';
  write(table.tHead.rows[0].lastElementChild, RANGES[range.value][2]);
  order();
  open_wanted();
}
function open_wanted() {
  if (wanted === open) { wanted = ''; return; }
  if (wanted && !rows.has(wanted)) return;  // it may come
  const key = wanted || open;
  wanted = '';
  toggle(key);
}
function choose_range() {
  write(table.tHead.rows[0].lastElementChild, RANGES[range.value][2]);
  asked_ms = -Infinity;
  keep_address();
  load_curves().catch(() => { asked_ms = -Infinity; });
}
addEventListener('hashchange', go_to_address);
range.addEventListener('change', choose_range);

// --- keys ----------------------------------------------------------------------------------------------------------

for (const [field, kind] of [[search, 'input'], [filter, 'change']])
  field.addEventListener(kind, () => { order(); keep_address(); });
find('#filters').addEventListener('submit', event => event.preventDefault());
document.addEventListener('keydown', event => {
  if (sure.open || event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches('input, select');
  if (event.key === '/' && !typing) { event.preventDefault(); search.focus(); }
  if (event.key === 'Escape' && open) { const row = rows.get(open); toggle(open); if (row) row.name.focus(); }
  if ((event.key !== 'ArrowDown' && event.key !== 'ArrowUp') || event.target.matches('select, pre')) return;
  const names = [...table.querySelectorAll('tbody:not([hidden]) .name')], at = names.indexOf(document.activeElement);
  const next = names[at < 0 ? 0 : at + (event.key === 'ArrowDown' ? 1 : -1)];
  if (next) { event.preventDefault(); next.focus(); }
});

// --- again and again -----------------------------------------------------------------------------------------------

async function poll() {
  const began_ms = performance.now();
  const answer = await ask('/debug/overview').catch(error => { kept_until_ms = 0; throw error; });
  if (!answer.ok) { kept_until_ms = 0; throw new Error('status ' + answer.status); }
  const all = await answer.json(), since_s = last === null ? 0 : (began_ms - last) / 1000, keys = new Set();
  for (const now of all.revisions) {
    keys.add(now.key);
    let row = rows.get(now.key);
    if (!row) { row = make_row(now.key); rows.set(now.key, row); table.append(row.body); }
    update(row, now, since_s);
  }
  for (const [key, row] of rows) if (!keys.has(key)) { row.body.remove(); rows.delete(key); if (open === key) open = ''; }
  order();
  if (wanted) open_wanted();
  draw_groups(all.groups || []);
  tell_run(all);
  if (performance.now() >= kept_until_ms) {
    write(told, all.revisions.length + ' revisions, ' + all.clients + ' client connections' +
      (all.streams ? ' (' + all.streams + ' HTTP/2 streams)' : '') + (all.workers > 1 ? ', ' + all.workers + ' workers' : '') +
      (all.draining ? ', draining' : ''));
    mark(told, 'soft');
  }
  last = began_ms;
  await details();
  if (performance.now() - asked_ms > CURVES_MS) { asked_ms = performance.now(); await load_curves(); }
}
function tell_run(all) {
  const read = all.reload, problems = read ? read.problems : [];
  write(find('#run'), 'version ' + all.version + ' · up for ' + lasting(all.uptime_s) + (read ? ' · file read again ' + lasting(read.age_s) +
    ' ago' + (problems.length ? ', and refused: ' + problems.join('; ') : '') : ''));
  mark(find('#run'), problems.length ? 'bad' : 'soft');
}
async function again() {
  if (!document.hidden) {
    try { await poll(); } catch (error) { write(told, 'no answer: ' + error.message); mark(told, 'bad'); last = null; }
  }
  setTimeout(again, rows.size > ROWS_OFTEN ? SELDOM_MS : OFTEN_MS);
}
addEventListener('scroll', () => { if (performance.now() - asked_ms > 1000) asked_ms = -Infinity; }, {passive: true});
document.addEventListener('visibilitychange', () => { if (!document.hidden) asked_ms = -Infinity; });
go_to_address();
again();
