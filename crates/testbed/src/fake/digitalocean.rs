//! DigitalOcean.
