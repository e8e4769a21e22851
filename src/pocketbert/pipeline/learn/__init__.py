"""Steps that make weights: data, corpora, teacher and student."""
