"""Tables as institutions have them, read and encoded by a schema that all sites agree on."""
