// A pod that speaks HTTP/2, for large bodies: /down/SIZE sends so many bytes, anything else says how many were sent.
// Prints its port.

"use strict";

const http2 = require("node:http2");

const PIECE = Buffer.alloc(1 << 20, "x");
const server = http2.createServer({ settings: { initialWindowSize: 1 << 20 } });

server.on("session", (session) => { session.setLocalWindowSize(1 << 24); session.on("error", () => {}); });

server.on("stream", (stream, headers) => {
  stream.on("error", () => {});
  const [, what, size] = headers[":path"].split("/");
  if (what === "down") {
    let left = Number(size);
    stream.resume();
    stream.respond({ ":status": 200, "content-length": size });
    const go = () => {
      while (left > 0 && !stream.destroyed) {
        const piece = left < PIECE.length ? PIECE.subarray(0, left) : PIECE;
        left -= piece.length;
        if (!stream.write(piece)) {
          stream.once("drain", go);
          return;
        }
      }
      stream.end();
    };
    go();
    return;
  }
  let count = 0;
  stream.on("data", (data) => { count += data.length; });
  stream.on("end", () => { stream.respond({ ":status": 200 }); stream.end(String(count)); });
});

server.listen(0, "127.0.0.1", () => console.log(server.address().port));
