"""`vs.diagnose`: evidence, rules, findings, the page."""
