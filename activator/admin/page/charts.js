
'use strict';
// What both the table and the details draw: text, amounts, curves and the timeline of a group.
const SPARK_POINTS = 60, WIDE = 300, HIGH = 80;
const STEPS = [1, 1.5, 2, 3, 4, 5, 6, 8, 10];  // the first digits of the greatest value of an axis
const PHASES = ['waited', 'connected', 'pod', 'answer'];  // of a request, in this order

// --- elements: what has not changed is not written -----------------------------------------------------------------

function element(name, words, text) {
  const made = document.createElement(name);
  if (words) made.className = words;
  if (text !== undefined) made.textContent = text;
  return made;
}
function write(node, text) { text = String(text); if (node.textContent !== text) node.textContent = text; }
function mark(node, words) { if (node.className !== words) node.className = words; }
function scalable(name, words) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name);
  made.setAttribute('class', words);
  return made;
}
function drawing(words, wide, high) {
  const made = scalable('svg', words);
  made.setAttribute('viewBox', '0 0 ' + wide + ' ' + high);
  made.setAttribute('preserveAspectRatio', 'none');
  made.setAttribute('role', 'img');
  return made;
}

// --- amounts -------------------------------------------------------------------------------------------------------

function greatest(...lists) { return Math.max(1e-9, ...lists.map(list => Math.max(0, ...list.map(value => value || 0)))); }
function amount(value) {
  for (const [unit, size] of [['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10]])
    if (value >= size) return Number((value / size).toPrecision(3)) + ' ' + unit;
  return String(value);
}
function seconds(value) {
  if (value === null || value === undefined) return '–';
  return value < 1 ? Number((value * 1000).toPrecision(3)) + ' ms' : Number(value.toPrecision(3)) + ' s';
}
function lasting(value_s) {
  for (const [unit, size] of [['d', 86400], ['h', 3600], ['min', 60]])
    if (value_s >= 2 * size) return Math.floor(value_s / size) + ' ' + unit;
  return Math.floor(value_s) + ' s';
}
function whole_minutes(value_s) { return value_s < 7200 ? Math.floor(value_s / 60) + ' min' : lasting(value_s); }
function unloading(left_s) {  // in steps, since each change costs the browser
  if (left_s === null || left_s === undefined) return '';
  return 'unloaded in ' + (left_s < 60 ? 10 * Math.ceil(left_s / 10) + ' s' : whole_minutes(left_s));
}
function rate(value) { return value === undefined ? '' : value < 10 ? value.toFixed(1) : value.toFixed(0); }
function count(value) { return String(Number(value.toPrecision(4))); }
function round_up(value) {
  if (value <= 1e-9) return 1;
  const size = 10 ** Math.floor(Math.log10(value));
  return size * STEPS.find(step => step * size >= value * (1 - 1e-9));
}

// --- curves --------------------------------------------------------------------------------------------------------

function line(ages_s, values, words, most, span_s, wide, high) {
  const made = scalable('polyline', words);
  const at = (value, index) => (wide * (1 - ages_s[index] / span_s)).toFixed(1) + ',' + (high - 1 - (high - 2) * value / most).toFixed(1);
  made.setAttribute('points', values.map((value, index) => value === null ? '' : at(value, index)).join(' '));
  return made;
}
function spark(past, span_s) {
  const made = drawing('spark', 90, 20), few = list => list.slice(-SPARK_POINTS);
  const [ages_s, rates, bad] = [past.age_s, past.rate, past.failures].map(few), most = greatest(rates, bad);
  const shown_s = Math.min(span_s, ages_s[0] || span_s);
  made.setAttribute('aria-label', 'requests per second, at most ' + rate(most));
  made.append(line(ages_s, rates, 'line1', most, shown_s, 90, 20), line(ages_s, bad, quiet('line2', bad), most, shown_s, 90, 20));
  return made;
}
function quiet(words, values) { return words === 'line2' && !values.some(value => value) ? 'line0' : words; }  // red is for trouble
// One chart: `series` are names and values, `words` the classes of their lines. The legend has the values under the
// pointer, or else the last ones.
function graph(title, series, words, format, ages_s, span_s) {
  const made = element('figure'), head = element('figcaption'), plot = element('div', 'plot');
  const most = round_up(greatest(...series.map(([, values]) => values))), picture = drawing('curve', WIDE, HIGH);
  const pointer = scalable('line', 'pointer'), when = element('span', 'soft');
  const lines = series.map(([, values], number) => quiet(words[number], values));
  const legend = lines.map(one => element('span', one.replace('line', 'key')));
  head.append(element('b', '', title), ' ');
  series.forEach(([, values], number) => {
    picture.append(line(ages_s, values, lines[number], most, span_s, WIDE, HIGH));
    head.append(legend[number], ' ');
  });
  head.append(when);
  const showValues = index => series.forEach(([name, values], number) => {
    const value = index < 0 ? [...values].reverse().find(one => one !== null) : values[index];
    write(legend[number], name + ' ' + (value === undefined || value === null ? '–' : format(value)));
  });
  const leave = () => { showValues(-1); write(when, ''); pointer.setAttribute('visibility', 'hidden'); };
  plot.addEventListener('pointermove', event => {
    const {left, width} = picture.getBoundingClientRect(), wanted_s = span_s * (1 - (event.clientX - left) / width);
    let index = 0;
    ages_s.forEach((age_s, number) => { if (Math.abs(age_s - wanted_s) < Math.abs(ages_s[index] - wanted_s)) index = number; });
    const across = (WIDE * (1 - ages_s[index] / span_s)).toFixed(1);
    for (const [name, value] of [['x1', across], ['x2', across], ['y1', 0], ['y2', HIGH], ['visibility', 'visible']]) pointer.setAttribute(name, value);
    showValues(index);
    write(when, lasting(ages_s[index]) + ' ago');
  });
  plot.addEventListener('pointerleave', leave);
  leave();
  picture.append(pointer);
  picture.setAttribute('aria-label', head.textContent + ', axis to ' + format(most) + ', last ' + lasting(span_s));
  plot.append(element('span', 'most', format(most)), element('span', 'least', format(0)), picture, axis(span_s));
  made.append(head, plot);
  return made;
}
function axis(span_s) {
  const made = element('div', 'axis');
  const step_s = span_s < 600 ? 60 : span_s / 4;
  for (let age_s = span_s; age_s > 0; age_s -= step_s) made.append(element('span', '', '−' + lasting(age_s)));
  made.append(element('span', '', 'now'));
  return made;
}

// --- the timeline of a group ---------------------------------------------------------------------------------------

function timeline(lanes, span_s) {
  const made = element('div', 'lanes'), legend = element('p', 'legend');
  for (const state of ['loading', 'serving', 'leaving', 'asleep']) legend.append(element('i', 'span ' + state), state + ' ');
  for (const lane of lanes) {
    const track = element('div', 'track'), spans = lane.spans.filter(span => span.to_age_s < span_s), labels = [];
    if (!spans.length) continue;
    for (const span of spans) {
      const from_s = Math.min(span.from_age_s, span_s), part = track.appendChild(element('span', 'span ' + span.state));
      part.style.left = 100 * (1 - from_s / span_s) + '%';
      part.style.width = 100 * (from_s - span.to_age_s) / span_s + '%';
      part.title = span.state + ' for ' + lasting(span.from_age_s - span.to_age_s) + (span.to_age_s ? ', until ' + lasting(span.to_age_s) + ' ago' : '');
      labels.push(part.title);
    }
    track.setAttribute('role', 'img');
    track.setAttribute('aria-label', lane.revision + ': ' + labels.join('; '));
    made.append(element('span', 'lane', lane.revision), track);
  }
  if (!made.childElementCount) return element('div');
  made.append(element('span'), axis(span_s), element('span'), legend);
  return made;
}

// --- where the time of a request went ------------------------------------------------------------------------------

function phases(request, longest_s) {
  const made = element('div', 'phases'), first_s = request.first_byte_s || request.duration_s;
  const waited_s = request.wait_s || 0, connect_s = request.connect_s || 0, pod_s = Math.max(0, first_s - waited_s - connect_s);
  const labels = [waited_s, connect_s, pod_s, Math.max(0, request.duration_s - first_s)].map((value_s, index) => {
    const part = made.appendChild(element('i', PHASES[index]));
    part.style.width = 100 * value_s / longest_s + '%';
    return PHASES[index] + ' ' + seconds(value_s);
  });
  made.title = labels.join(', ');
  made.append(element('span', 'unseen', made.title));
  return made;
}
