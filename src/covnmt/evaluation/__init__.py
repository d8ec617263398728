"""Tables, figures, the HTML report, and the sheets of the subjective evaluation."""
