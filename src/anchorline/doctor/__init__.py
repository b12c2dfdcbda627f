"""What breaks prefixes in an agent's traffic: pure functions from a trace to findings.

requests      each call of a trace in one form, whatever its protocol
lineage       which earlier request each one goes on from
pairs         where the two differ, and what both hold: ``tools``, ``system`` and ``history``, over ``textdiff``
layout        the order of the parts in a prompt, and how far two prompts agree
diagnosis     the differences of all pairs, charged with tokens and grouped
wording       the same for people, with remedies
"""
