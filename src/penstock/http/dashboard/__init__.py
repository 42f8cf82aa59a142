"""The dashboard: what a browser gets, in `files`.

`index.html` loads `app.js`, which draws the page of the address (`pages/`) with components
(`parts/`). There is no build step: a developer edits a file and loads the page again. Everything
that the pages show or change they ask of the HTTP API.
"""
