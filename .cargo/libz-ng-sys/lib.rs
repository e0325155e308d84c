//! Stands in for the C library behind `flate2`'s `zlib-ng` feature, which Pingora turns on and which needs cmake
//! to build: the same interface, from stock zlib, which a C compiler alone builds. Selected by `[patch]` in Cargo.toml.
pub use libz_sys::*;
