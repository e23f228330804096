"""`vs.check`: statistics of data beside those of data that the model makes."""
