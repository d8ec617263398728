"""The paper's experiment as one command that can be stopped and continued anywhere.

    systems.py       the six, the phrase-based one, and variants of our own
    experiments.py   which corpora, which systems, how the text is prepared
    pack.py          prepared data as one file, for a machine without the corpus
    jobs.py          the list of jobs, and what is done and left
    at_once.py       several jobs at the same time
    measure.py       a trained system -> everything that is known about it
    results.py       a result file: written, read, checked
    summary.py       results -> mean and spread, gains, sign tests, speed
    tables.py        that -> tables in Markdown, with the paper's figures beside ours
    page.py          results -> README.md, figures and summary.json

A job is done when its result file exists. Result files hold figures and our own example sentences,
never a line of a corpus, so they can be shared.
"""
