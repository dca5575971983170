// A small Node HTTP server for the tests, started as a local process: node serving.js PORT
const http = require("http");
const server = http.createServer((request, response) => response.end(String(process.pid)));
server.listen(Number(process.argv[2]), "127.0.0.1");
