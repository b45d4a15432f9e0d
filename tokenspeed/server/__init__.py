"""The engine over HTTP, as OpenAI clients expect it.

`app.py` lists the routes. A request goes through `protocol.py` (what may be asked), `completions.py` or `chat.py`
(prompts in, shape of the answer), then `answer.py` (streamed or whole). `errors.py` is the only place that turns an
exception into a status. `runner.py` opens the port.
"""
