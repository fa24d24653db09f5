"""The page of an agent: HTML, CSS and JavaScript as browsers get them. Nothing of it is built."""
