"""The paper's image benchmarks and ablations: run, recorded, drawn, and set beside what the paper
claims.

One sweep file per experiment lies in ``experiments/``, what was measured in
``experiments/results/``. Figures and the tables of docs/research/reproduction.md are made from the
recorded results alone:

    python -m reproduction run mnist       run or resume an experiment, record it (make reproduce)
    python -m reproduction figures         draw every figure (make figures)
    python -m reproduction page            write the tables of docs/research/reproduction.md
"""
