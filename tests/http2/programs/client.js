// An HTTP/2 client with Node's own library: some scenarios on one session each; prints what is wrong, as JSON.
//
//   node client.js http://127.0.0.1:8080 [authority of certificates.pem]
//
// The server answers GET / with 200, GET /large with more than 1 MB, and POST / with what was sent.

"use strict";

const fs = require("node:fs");
const http2 = require("node:http2");

const [url, ca] = process.argv.slice(2);
const LARGE = 1024 * 1024;
const PATIENCE_MS = 8000;

function connect() {
  const session = http2.connect(url, ca ? { ca: fs.readFileSync(ca) } : {});
  session.on("error", () => {}); // each stream says it as well
  return session;
}

function ask(session, headers, body = null, { endless = false } = {}) {
  return new Promise((resolve, reject) => {
    const stream = session.request({ ":path": "/", ...headers }, { endStream: body === null && !endless });
    const found = { status: 0, size: 0, chunks: [], trailers: {} };
    stream.on("response", (head) => { found.status = head[":status"]; found.head = head; });
    stream.on("trailers", (trailers) => { found.trailers = trailers; });
    stream.on("data", (chunk) => { found.size += chunk.length; found.chunks.push(chunk); });
    stream.on("end", () => resolve(found));
    stream.on("error", reject);
    stream.on("close", () => resolve(found));
    if (body !== null) stream.end(body);
  });
}

function must(found, wanted, what) {
  if (found !== wanted) throw new Error(`${what}: ${found} instead of ${wanted}`);
}

const SCENARIOS = {
  async get(session) {
    const found = await ask(session, {});
    must(found.status, 200, "status");
    must(found.size > 0, true, "a body");
  },

  async head(session) {
    const found = await ask(session, { ":method": "HEAD" });
    must(found.status, 200, "status");
    must(found.size, 0, "size");
  },

  async large(session) {
    const found = await ask(session, { ":path": "/large" });
    must(found.status, 200, "status");
    must(found.size > LARGE, true, "more than 1 MB");
  },

  async echo(session) {
    const sent = Buffer.alloc(300000, "0123456789abcdef");
    const found = await ask(session, { ":method": "POST" }, sent);
    must(found.status, 200, "status");
    must(Buffer.concat(found.chunks).equals(sent), true, "the same body");
  },

  async echo_with_length(session) {
    const sent = Buffer.alloc(100000, "x");
    const found = await ask(session, { ":method": "POST", "content-length": sent.length }, sent);
    must(Buffer.concat(found.chunks).equals(sent), true, "the same body");
  },

  async many_at_once(session) {
    const all = await Promise.all(Array.from({ length: 100 }, () => ask(session, {})));
    must(all.filter((found) => found.status === 200).length, 100, "answers");
  },

  async many_uploads_at_once(session) {
    const sent = Buffer.alloc(50000, "y");
    const all = await Promise.all(Array.from({ length: 20 }, () => ask(session, { ":method": "POST" }, sent)));
    must(all.filter((found) => found.size === sent.length).length, 20, "answers");
  },

  async cancelled(session) {
    await new Promise((resolve, reject) => {
      const stream = session.request({ ":path": "/large" });
      stream.once("data", () => { stream.close(http2.constants.NGHTTP2_CANCEL); });
      stream.on("error", reject);
      stream.on("close", resolve);
    });
    must((await ask(session, {})).status, 200, "status of the next one");
  },

  async ping(session) {
    await ask(session, {}); // there is no ping before it is connected
    await new Promise((resolve, reject) => { session.ping((error) => (error ? reject(error) : resolve())); });
  },

  async small_windows(session) {
    session.settings({ initialWindowSize: 1000 });
    const found = await ask(session, { ":path": "/large" });
    must(found.size > LARGE, true, "more than 1 MB");
  },

  async many_headers(session) {
    const headers = Object.fromEntries(Array.from({ length: 50 }, (_, number) => [`x-field-${number}`, "v".repeat(20)]));
    must((await ask(session, { ...headers, cookie: ["a=b", "c=d"] })).status, 200, "status");
  },
};

async function main() {
  const found = {};
  for (const [name, scenario] of Object.entries(SCENARIOS)) {
    const session = connect();
    let timer = null;
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error("nothing in time")), PATIENCE_MS);
    });
    try {
      await Promise.race([scenario(session), late]);
      found[name] = "";
    } catch (error) {
      found[name] = String(error.message || error);
    }
    clearTimeout(timer);
    session.destroy();
  }
  console.log(JSON.stringify(found));
}

main();
