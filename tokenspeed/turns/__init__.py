"""What an assistant's turn is made of: reasoning, text and calls of tools, as the model's own template marks them.

Knows nothing of HTTP. Start at `reader.py`.
"""
