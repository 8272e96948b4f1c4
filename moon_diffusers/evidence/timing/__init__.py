"""What the machine code implies for its time, over all sets of constants that agree with what was published.

`library` binds the replay in csrc/timing, `constants` holds the known and the uncertain constants of each architecture,
`ensemble` filters the sets and predicts, `report` writes table and picture.
"""
