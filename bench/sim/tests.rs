//! The simulator's own promises.
