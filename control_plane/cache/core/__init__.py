"""The LCM block pool and the block tables: ids and counts, no meaning."""
