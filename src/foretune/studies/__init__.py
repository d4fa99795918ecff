"""Several runs that answer one question: study files, studies with a name, the demonstration."""
