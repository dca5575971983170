"""The live page, `GET /` for browsers: one document without anything from elsewhere, fed by `/debug/revisions`.

Rules
  1. What is shown gets in as text (`textContent`), never as markup, and the policy the page is sent with allows only
     its own script: neither a name nor a program's last output can become part of the page.
  2. It asks once a second while it is visible, and says so when there is no answer.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Final

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --soft: #888; --good: #2a9d5c; --busy: #d98e04; --bad: #cf3f3f; }
body { font: 14px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 1.5rem auto; padding: 0 1rem; }
h1 { font-size: 1.2rem; margin: 0; } h2 { font-size: 1rem; margin: 0; }
header { display: flex; gap: 1rem; align-items: baseline; flex-wrap: wrap; }
section { border-top: 1px solid var(--line); padding: .8rem 0; }
.soft { color: var(--soft); } .bad { color: var(--bad); } .busy { color: var(--busy); }
.figures { display: flex; gap: 1.5rem; flex-wrap: wrap; margin: .3rem 0; }
.figures b { font-variant-numeric: tabular-nums; }
.slots { display: flex; flex-wrap: wrap; gap: 2px; margin-top: .4rem; }
.slot { width: 14px; height: 14px; border-radius: 2px; border: 1px solid var(--line); position: relative; }
.slot i { position: absolute; left: 0; right: 0; bottom: 0; background: currentColor; }
.ready { color: var(--good); } .recovering { color: var(--busy); } .quarantined, .not_ready { color: var(--bad); }
.pending, .draining { color: var(--soft); }
.quarantined, .not_ready { background: #cf3f3f33; } .pending { border-style: dashed; }
svg { display: block; width: 100%; height: 40px; margin-top: .4rem; }
polyline { fill: none; stroke-width: 1.5; vector-effect: non-scaling-stroke; }
"""

_SCRIPT: Final = """
'use strict';
const SAMPLES = 120, SLOTS_SHOWN = 2000, REASONS_SHOWN = 5, history = new Map();
const main = document.querySelector('main'), told = document.querySelector('#told');
function element(name, words, text) {
  const made = document.createElement(name);
  if (words) made.className = words;
  if (text !== undefined) made.textContent = text;
  return made;
}
function figure(name, value, words) {
  const made = element('span', words, name + ' ');
  made.append(element('b', '', String(value)));
  return made;
}
function slot(one) {
  const made = element('span', 'slot ' + one.state), fill = element('i');
  const limit = one.limit >= 2 ** 30 ? Math.max(one.in_flight, 1) : Math.max(one.limit, 1);
  fill.style.height = Math.min(100 * one.in_flight / limit, 100) + '%';
  made.title = 'slot ' + one.slot + ': ' + one.pod + ' at ' + one.address + ', ' + one.state + ', ' +
    one.in_flight + ' in flight' + (one.reason ? ', ' + one.reason : '');
  made.append(fill);
  return made;
}
function curve(points, colour, most) {
  const line = document.createElementNS('http://www.w3.org/2000/svg', 'polyline');
  line.setAttribute('points', points.map((value, place) => place + ',' + (40 - 38 * value / most)).join(' '));
  line.style.stroke = colour;
  return line;
}
function curves(key, revision) {
  const past = history.get(key) || {in_flight: [], queued: []};
  history.set(key, past);
  for (const name of ['in_flight', 'queued']) {
    past[name].push(revision[name]);
    if (past[name].length > SAMPLES) past[name].shift();
  }
  const made = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  made.setAttribute('viewBox', '0 0 ' + (SAMPLES - 1) + ' 40');
  made.setAttribute('preserveAspectRatio', 'none');
  const most = Math.max(1, ...past.in_flight, ...past.queued);
  made.append(curve(past.in_flight, 'var(--good)', most), curve(past.queued, 'var(--busy)', most));
  return made;
}
function shown(revision) {
  const made = element('section'), key = revision.namespace + '/' + revision.name;
  const title = element('h2', '', key + ' ');
  title.append(element('span', 'soft', revision.policy + ', ' +
    (revision.protocol === 'h1' ? '' : revision.protocol + ', ') + revision.hosts.join(' ')));
  const figures = element('div', 'figures'), failed = Object.values(revision.failed).reduce((a, b) => a + b, 0);
  figures.append(
    figure('in flight', revision.in_flight, 'ready'), figure('queued', revision.queued, revision.queued ? 'busy' : ''),
    figure('requests', revision.requests), figure('failed', failed, failed ? 'bad' : ''),
    figure('pods', revision.slots.length),
    figure('empty slots', Math.round(100 * revision.table.fragmentation) + ' %'));
  if (revision.gathering + revision.delivering) figures.append(
    figure('clients that send', revision.gathering), figure('clients that read', revision.delivering));
  made.append(title, figures);
  if (revision.failure) made.append(element('div', 'bad', 'cannot start: ' + revision.failure));
  for (const problem of revision.problems || []) made.append(element('div', 'busy', problem));
  if (revision.waits_for) made.append(element('div', 'busy', 'waits for ' + revision.waits_for));
  if (revision.without_slot.length)
    made.append(element('div', 'busy',
      revision.without_slot.length + ' pods without a slot: ' + revision.without_slot[0].reason));
  const reasons = revision.slots.filter(one => one.reason);
  for (const one of reasons.slice(0, REASONS_SHOWN))
    made.append(element('div', one.state, one.pod + ' ' + one.state + ': ' + one.reason));
  if (reasons.length > REASONS_SHOWN)
    made.append(element('div', 'soft', 'and ' + (reasons.length - REASONS_SHOWN) + ' more pods with a reason'));
  const slots = element('div', 'slots');
  revision.slots.slice(0, SLOTS_SHOWN).forEach(one => slots.append(slot(one)));
  made.append(curves(key, revision), slots);
  if (revision.slots.length > SLOTS_SHOWN)
    made.append(element('div', 'soft', 'and ' + (revision.slots.length - SLOTS_SHOWN) + ' more pods'));
  return made;
}
async function look() {
  if (!document.hidden) {
    try {
      const answer = await fetch('/debug/revisions', {cache: 'no-store'});
      if (!answer.ok) throw new Error('status ' + answer.status);
      const all = await answer.json();
      main.replaceChildren(...all.revisions.map(shown));
      const clients = all.clients, streams = clients.http2_connections ?
        ' (' + clients.http2_connections + ' HTTP/2 with ' + clients.streams + ' streams)' : '';
      told.textContent = all.revisions.length + ' revisions, ' + clients.connections + ' client connections' +
        streams + ', ' + new Date().toLocaleTimeString();
      told.className = 'soft';
    } catch (error) {
      told.textContent = 'no answer: ' + error.message;
      told.className = 'bad';
    }
  }
  setTimeout(look, 1000);
}
look();
"""

PAGE: Final = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>activator</title>
<style>{_STYLE}</style>
</head>
<body>
<header><h1>activator</h1><span id="told" class="soft">looking …</span>
<span><a href="/metrics">metrics</a> <a href="/debug/revisions">revisions</a> <a href="/debug/config">config</a>
<a href="/debug/tasks">tasks</a></span></header>
<noscript>This page shows what <a href="/debug/revisions">/debug/revisions</a> says, and needs JavaScript.</noscript>
<main></main>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _hash_of(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


HEADERS: Final = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src {_hash_of(_SCRIPT)}; style-src {_hash_of(_STYLE)}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
