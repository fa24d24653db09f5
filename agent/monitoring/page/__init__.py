"""Page of an agent: HTML, CSS and JavaScript, served as they are."""
