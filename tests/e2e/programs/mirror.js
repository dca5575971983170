// A Node HTTP server that tells what it received: node mirror.js PORT
const crypto = require("crypto");
const http = require("http");
const ofOneHop = new Set(["connection", "keep-alive", "transfer-encoding", "content-length", "te"]);

function describe(request, body) {
  const headers = [];
  for (let place = 0; place < request.rawHeaders.length; place += 2) {
    const name = request.rawHeaders[place].toLowerCase();
    const told = !ofOneHop.has(name) && !name.startsWith("x-forwarded") && !name.startsWith("x-request");
    if (told) headers.push([name, request.rawHeaders[place + 1]]);
  }
  headers.sort();
  const digest = crypto.createHash("sha256").update(body).digest("hex");
  return JSON.stringify({ method: request.method, target: request.url, headers, body: digest });
}

const server = http.createServer((request, response) => {
  const pieces = [];
  request.on("data", (piece) => pieces.push(piece));
  request.on("end", () => {
    const words = request.url.split("?")[0].replace(/^\//, "").split("/");
    response.setHeader("X-Mirror", "1");
    response.setHeader("Set-Cookie", ["a=1", "b=2"]);
    if (words[0] === "stream") {
      for (let number = 0; number < Number(words[1]); number++) response.write(`piece ${number}\n`);
      response.end();
    } else if (words[0] === "status") {
      response.statusCode = Number(words[1]);
      response.end();
    } else if (words[0] === "bytes") {
      response.end(Buffer.alloc(Number(words[1]), "x"));
    } else {
      response.end(describe(request, Buffer.concat(pieces)));
    }
  });
});
server.listen(Number(process.argv[2]), "127.0.0.1");
