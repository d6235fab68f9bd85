"""Options of an update, which a plain policy leaves off."""
