"""report.html: the summary of the job as one self-contained page, for people who are responsible for mail. docs/sla.md, 8.

`document.render` is a pure function of `summary.json` (docs/sla.md, section 6): it computes no figure, it only shows them. Python prepares
values, and the Jinja templates in `templates/` hold the markup. Texts from logs are untrusted: Jinja escapes all that a template
prints, after `wording.readable` has limited its length and replaced invisible characters. The page loads nothing and cannot: its
Content-Security-Policy allows the one style and the one script by their hashes, and nothing else.
"""
