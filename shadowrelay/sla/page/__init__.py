"""report.html: the summary of the job as one page that needs nothing else, for people who must answer for mail.

`document.render` is a pure function of `summary.json` (docs/sla.md, section 6): it computes no figure, it only shows them. Python prepares
values, and the Jinja templates in `templates/` hold the markup. What comes from logs is untrusted text: Jinja escapes all that a template
prints, after `wording.readable` has bounded it and written invisible characters out. The page fetches nothing and may not: its
Content-Security-Policy allows the one style and the one script by their hashes, and nothing else.
"""
