"""The identity of a prefix (hash chain) and where its blocks are (index)."""
