"""The host pool below the device's: which pieces of prefixes it holds, and the copies that are out between the two.

Start reading at `host_tier.py`. Knows blocks and digests of both tiers, and nothing of tables or requests.
"""
