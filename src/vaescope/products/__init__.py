"""The public calls on a model or data, a folder each; products import the packages below, never each other."""
