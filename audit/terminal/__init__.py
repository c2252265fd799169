"""Tables, options and progress that commands share."""
