"""Text in, text out: tokenizers, the incremental detokenizer, stop strings.

`tokenizer.py` is what the engine asks of a tokenizer; `folder.py` reads one from a model's folder, `stamp.py` is the
one of the model without weights. On the way out, `detokenizer.py` turns token ids into text that never shows half a
character, `stop_strings.py` holds back what may become a stop, and `output.py` puts both together: the one place where
text, token ids and usage are cut.
"""
