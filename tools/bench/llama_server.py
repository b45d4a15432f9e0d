"""llama.cpp's server, for a Python that has `xllamacpp`: MODEL.gguf PORT SLOTS THREADS. It imports nothing of ours."""

import importlib
import sys
import threading

TOKENS_A_SLOT = 1024


def main() -> None:
    """Serve on 127.0.0.1 until the process is ended."""
    path, port, slots, threads = sys.argv[1], *(int(argument) for argument in sys.argv[2:5])
    xllamacpp = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_parallel = slots
    params.n_ctx = TOKENS_A_SLOT * slots
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    print(f"llama.cpp listens on {server.listening_address}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
