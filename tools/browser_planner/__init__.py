"""The plan in a browser: a page of the documentation site that runs the planner itself, with Pyodide.

`python -m tools.browser_planner site` adds to a built site what its page `planner/` needs. `answering` and `question`
also run in the browser.
"""
