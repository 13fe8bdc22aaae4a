"""L3. Numeric faults: what is judged, by whom, and what was found. Pure: plain numbers and digests go in.

That no detector fires means no more than that: the ones that were on did not see what they can see. What each
covers, and what it does not, is part of it (``coverage``). A checkpoint with the right checksums holds the
bytes that were written; whether the values were right before, only these can say, and only so far.
"""
