
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
  const at = (value, place) => (wide * (1 - ages_s[place] / span_s)).toFixed(1) + ',' + (high - 1 - (high - 2) * value / most).toFixed(1);
  made.setAttribute('points', values.map((value, place) => value === null ? '' : at(value, place)).join(' '));
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
function graph(title, series, words, shown, ages_s, span_s) {
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
  const showValues = place => series.forEach(([name, values], number) => {
    const value = place < 0 ? [...values].reverse().find(one => one !== null) : values[place];
    write(legend[number], name + ' ' + (value === undefined || value === null ? '–' : shown(value)));
  });
  const leave = () => { showValues(-1); write(when, ''); pointer.setAttribute('visibility', 'hidden'); };
  plot.addEventListener('pointermove', event => {
    const {left, width} = picture.getBoundingClientRect(), wanted_s = span_s * (1 - (event.clientX - left) / width);
    let place = 0;
    ages_s.forEach((age_s, number) => { if (Math.abs(age_s - wanted_s) < Math.abs(ages_s[place] - wanted_s)) place = number; });
    const across = (WIDE * (1 - ages_s[place] / span_s)).toFixed(1);
    for (const [name, value] of [['x1', across], ['x2', across], ['y1', 0], ['y2', HIGH], ['visibility', 'visible']]) pointer.setAttribute(name, value);
    showValues(place);
    write(when, lasting(ages_s[place]) + ' ago');
  });
  plot.addEventListener('pointerleave', leave);
  leave();
  picture.append(pointer);
  picture.setAttribute('aria-label', head.textContent + ', axis to ' + shown(most) + ', last ' + lasting(span_s));
  plot.append(element('span', 'most', shown(most)), element('span', 'least', shown(0)), picture, axis(span_s));
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
    const track = element('div', 'track'), spans = lane.spans.filter(one => one.to_age_s < span_s), told = [];
    if (!spans.length) continue;
    for (const one of spans) {
      const from_s = Math.min(one.from_age_s, span_s), part = track.appendChild(element('span', 'span ' + one.state));
      part.style.left = 100 * (1 - from_s / span_s) + '%';
      part.style.width = 100 * (from_s - one.to_age_s) / span_s + '%';
      part.title = one.state + ' for ' + lasting(one.from_age_s - one.to_age_s) + (one.to_age_s ? ', until ' + lasting(one.to_age_s) + ' ago' : '');
      told.push(part.title);
    }
    track.setAttribute('role', 'img');
    track.setAttribute('aria-label', lane.revision + ': ' + told.join('; '));
    made.append(element('span', 'lane', lane.revision), track);
  }
  if (!made.childElementCount) return element('div');
  made.append(element('span'), axis(span_s), element('span'), legend);
  return made;
}

// --- where the time of a request went ------------------------------------------------------------------------------

function phases(one, longest_s) {
  const made = element('div', 'phases'), first_s = one.first_byte_s || one.duration_s;
  const waited_s = one.wait_s || 0, connect_s = one.connect_s || 0, pod_s = Math.max(0, first_s - waited_s - connect_s);
  const told = [waited_s, connect_s, pod_s, Math.max(0, one.duration_s - first_s)].map((value_s, place) => {
    const part = made.appendChild(element('i', PHASES[place]));
    part.style.width = 100 * value_s / longest_s + '%';
    return PHASES[place] + ' ' + seconds(value_s);
  });
  made.title = told.join(', ');
  made.append(element('span', 'unseen', made.title));
  return made;
}
