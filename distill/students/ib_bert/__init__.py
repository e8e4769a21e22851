"""IB-BERT, the teacher of MobileBERT: model, configuration, names of its checkpoints."""
