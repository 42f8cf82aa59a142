"""Journal: what each record of the log means, in live work and after a crash.

One table of records; the state that they make; the journal, which writes a record and applies it;
checkpoints, which make the log short; recovery, which applies the rest of it.
"""
