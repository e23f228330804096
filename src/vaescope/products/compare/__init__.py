"""`vs.compare`: paired differences, matched latents, shared failures."""
