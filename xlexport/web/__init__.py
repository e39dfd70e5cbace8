"""Static sites that show, in a browser alone, how surprising a bundle finds the text that somebody writes there."""
