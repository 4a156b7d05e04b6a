//! Compute Engine.
