"""The most telling line of what programs have really written when they ended."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.control_plane.sources.process.causes import CAUSE_CHARS_MAX, cause_of, most_informative

OUTPUTS = {
    "python": (
        """
Traceback (most recent call last):
  File "/srv/app.py", line 3, in <module>
    import torch
ModuleNotFoundError: No module named 'torch'
""",
        "ModuleNotFoundError: No module named 'torch'",
    ),
    "python chained": (
        """
Traceback (most recent call last):
  File "/srv/app.py", line 3, in <module>
    int(text)
ValueError: invalid literal for int() with base 10: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/srv/app.py", line 5, in <module>
    raise Broken("the setting is no number")
config.BrokenSettingError: the setting is no number
""",
        "config.BrokenSettingError: the setting is no number",
    ),
    "argparse": (
        """
usage: serve.py [-h] --port PORT
serve.py: error: the following arguments are required: --port
""",
        "serve.py: error: the following arguments are required: --port",
    ),
    "node": (
        """
node:internal/modules/cjs/loader:1080
  throw err;
  ^

Error: Cannot find module '/srv/index.js'
    at Module._resolveFilename (node:internal/modules/cjs/loader:1077:15)
    at node:internal/main/run_main_module:23:47 {
  code: 'MODULE_NOT_FOUND',
  requireStack: []
}

Node.js v18.19.0
""",
        "Error: Cannot find module '/srv/index.js'",
    ),
    "node, address in use": (
        """
node:events:495
      throw er; // Unhandled 'error' event
      ^

Error: listen EADDRINUSE: address already in use 127.0.0.1:8080
    at Server.setupListenHandle [as _listen2] (node:net:1817:16)
Emitted 'error' event on Server instance at:
    at emitErrorNT (node:net:1796:8) {
  code: 'EADDRINUSE',
  errno: -98,
  syscall: 'listen',
  address: '127.0.0.1',
  port: 8080
}

Node.js v18.19.0
""",
        "Error: listen EADDRINUSE: address already in use 127.0.0.1:8080",
    ),
    "go": (
        """
2026/01/02 10:00:00 starting
panic: runtime error: invalid memory address or nil pointer dereference
[signal SIGSEGV: segmentation violation code=0x1 addr=0x0 pc=0x482f1b]

goroutine 1 [running]:
main.main()
	/srv/main.go:9 +0x1b
exit status 2
""",
        "panic: runtime error: invalid memory address or nil pointer dereference",
    ),
    "go, log.Fatal": (
        "2026/01/02 10:00:00 listen tcp 127.0.0.1:8080: bind: address already in use\nexit status 1\n",
        "2026/01/02 10:00:00 listen tcp 127.0.0.1:8080: bind: address already in use",
    ),
    "java": (
        """
Exception in thread "main" java.lang.IllegalStateException: cannot start the server
	at com.example.Main.start(Main.java:21)
	at com.example.Main.main(Main.java:9)
Caused by: java.net.BindException: Address already in use
	at java.base/sun.nio.ch.Net.bind0(Native Method)
	... 5 more
""",
        "Caused by: java.net.BindException: Address already in use",
    ),
    "rust": (
        """
thread 'main' panicked at src/main.rs:4:37:
the model file is missing
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace
""",
        "thread 'main' panicked at src/main.rs:4:37: the model file is missing",
    ),
    "ruby": (
        "app.rb:3:in `<main>': no database (RuntimeError)\n\tfrom app.rb:9:in `<main>'\n",
        "app.rb:3:in `<main>': no database (RuntimeError)",
    ),
    "llama.cpp": (
        """
build: 4589 (eb7cf15a) with cc (Debian 12.2.0) for x86_64-linux-gnu
system info: n_threads = 8, n_threads_batch = 8, total_threads = 16
main: loading model
gguf_init_from_file: failed to open GGUF file '/models/small.gguf'
llama_model_load: error loading model: llama_model_loader: failed to load model from /models/small.gguf
common_init_from_params: failed to load model '/models/small.gguf'
srv    load_model: failed to load model, '/models/small.gguf'
main: exiting due to model loading error
""",
        "gguf_init_from_file: failed to open GGUF file '/models/small.gguf'",
    ),
    "vllm": (
        """
INFO 11-24 10:00:00 [api_server.py:1896] vLLM API server version 0.11.0
(EngineCore_DP0 pid=42) ERROR 11-24 10:00:09 [core.py:708] EngineCore failed to start.
(EngineCore_DP0 pid=42) ERROR 11-24 10:00:09 [core.py:708] Traceback (most recent call last):
(EngineCore_DP0 pid=42) ERROR 11-24 10:00:09 [core.py:708] torch.OutOfMemoryError: CUDA out of memory.
Traceback (most recent call last):
  File "/usr/bin/vllm", line 8, in <module>
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
""",
        "(EngineCore_DP0 pid=42) ERROR 11-24 10:00:09 [core.py:708] torch.OutOfMemoryError: CUDA out of memory.",
    ),
    "uvicorn": (
        """
INFO:     Started server process [42]
INFO:     Application startup complete.
ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): address already in use
INFO:     Waiting for application shutdown.
INFO:     Application shutdown complete.
""",
        "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): address already in use",
    ),
    "uvicorn, lifespan": (
        """
INFO:     Waiting for application startup.
ERROR:    Traceback (most recent call last):
  File "/srv/app.py", line 9, in lifespan
RuntimeError: no database

ERROR:    Application startup failed. Exiting.
""",
        "RuntimeError: no database",
    ),
    "nginx": (
        """
nginx: [emerg] bind() to 0.0.0.0:80 failed (98: Address already in use)
nginx: [emerg] bind() to 0.0.0.0:80 failed (98: Address already in use)
nginx: [emerg] still could not bind()
""",
        "nginx: [emerg] bind() to 0.0.0.0:80 failed (98: Address already in use)",
    ),
    "shell": ("sh: 1: llama-server: not found\n", "sh: 1: llama-server: not found"),
    "bash": ("bash: line 1: uvicorn: command not found\n", "bash: line 1: uvicorn: command not found"),
    "no word of an error": ("warming up\nno database\n\n", "no database"),
    "nothing but noise": ("  ^\n}\n", "}"),
    "nothing": ("\n \n", ""),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_most_informative_line(name: str) -> None:
    output, expected = OUTPUTS[name]
    assert most_informative(output.splitlines()) == expected


@given(st.lists(st.text(max_size=500), max_size=60))
def test_whatever_a_program_writes_is_one_short_line_of_it(lines: list[str]) -> None:
    told = most_informative(lines)
    assert len(told) <= CAUSE_CHARS_MAX
    assert told.isprintable()
    assert bool(told) is any(line.strip() for line in lines)


def test_long_lines_are_cut_and_what_cannot_be_printed_is_escaped() -> None:
    assert most_informative(["error: \x07" + "x" * 1000]) == "error: \\x07" + "x" * (CAUSE_CHARS_MAX - 12) + "…"


def test_how_it_ended() -> None:
    assert cause_of(7, ["no database"]) == "the program exited with code 7: no database"
    assert cause_of(-9, []) == "the program was ended by SIGKILL"
    assert cause_of(-signal.SIGRTMAX - 1, []) == f"the program was ended by signal {signal.SIGRTMAX + 1}"


def test_a_real_python() -> None:
    code = "def f():\n    raise LookupError('no such model')\ntry:\n    f()\nfinally:\n    print('bye')\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert cause_of(done.returncode, done.stderr.splitlines()) == (
        "the program exited with code 1: LookupError: no such model"
    )
