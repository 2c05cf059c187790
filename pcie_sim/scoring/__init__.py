"""Scores: how far predictions are from published measurements that did not make their constants."""
