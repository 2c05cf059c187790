"""The command line: one thin file per verb; texts and pictures are made in ``report``, answers in ``study``."""
