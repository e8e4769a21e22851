"""One predictor over the engines that run a phone's files. Needs neither torch nor transformers."""
