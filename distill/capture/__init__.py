"""Capture of signals that models do not return: attention scores before the softmax, queries, keys, values."""

from pocketbert.distill.capture.record import query_width, record_attention
from pocketbert.distill.capture.recorder import AttentionRecorder, QueryKeyValue

__all__ = ["AttentionRecorder", "QueryKeyValue", "query_width", "record_attention"]
