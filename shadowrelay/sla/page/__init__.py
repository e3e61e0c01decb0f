"""report.html: the summary of the job as one page that needs nothing else, for people who must answer for mail.

`document.render` is a pure function of `summary.json` (docs/sla.md, section 6): it computes no figure, it only shows them. What comes from
logs is untrusted text; it becomes markup in `markup` alone, which escapes everything that is not markup already. The page fetches nothing
and may not: its Content-Security-Policy allows the one style and the one script by their hashes, and nothing else.
"""
