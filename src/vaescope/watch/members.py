"""Watch the members of a stack while `vs.fit`, a sweep or an experiment trains them."""
