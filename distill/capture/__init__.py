"""Reading signals out of models that do not offer them: attention scores before the softmax."""

from pocketbert.distill.capture.recorder import AttentionRecorder, record_attention

__all__ = ["AttentionRecorder", "record_attention"]
