"""An answer's text split into content, reasoning and tool calls; one parser per family."""
