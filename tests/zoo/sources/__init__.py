"""Where the data of the zoo come from: a function per data set."""
