"""One function for each verb: values in, values out.

Nothing here prints, exits, or changes the process: mistakes are exceptions (`foretune.UserError`), progress goes to an
observer. `foretune` itself offers all of it; the command line is a client of it.
"""
