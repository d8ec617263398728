"""The paper's experiment as one command that can be interrupted and resumed at any point.

    systems.py          the paper's six systems, the phrase-based one, and our own variants
    experiments.py      corpora, scales, and how the text is prepared
    pack.py             prepared data as one file, for a machine without the corpus
    plan.py             the jobs of an experiment, their files, and which are finished
    jobs.py             run the jobs one after the other; parallel_jobs.py runs several at a time
    neural.py           train, tune and describe a neural system; phrase_based.py the other one
    measure.py          everything that is measured of a trained system
    checkpoints.py      what is measured of every checkpoint, and the mean of the last weights
    results.py          result files
    summary.py          mean and spread over seeds, gains, sign tests, speed
    tables.py           Markdown tables, with the paper's figures next to ours
    checkpoint_tables.py  systems compared over the last checkpoints of their runs
    checkpoint_sections.py  what only the page of the paper's own training has
    claims.py           claims.md: the paper's claims one by one
    markdown_report.py  README.md, figures and summary.json from result files
    demo.py             two small systems compared, on a laptop

Result files hold figures and our own example sentences, never a line of a corpus, so they can be
published.
"""
