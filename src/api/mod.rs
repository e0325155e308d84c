//! Wire formats, pure: what a request asks for, what an answer reports, and how ramjet words its own errors.
//!
//! **Architecture invariant:** nothing in here reads a clock, takes a lock or performs IO, and nothing in here ever
//! refuses a body. A body that cannot be understood is routed by load and forwarded as it came.

pub mod answer;
pub mod canonical;
pub mod catalogue;
pub mod compat;
pub mod decoder;
pub mod edit;
pub mod encoding;
pub mod endpoint;
pub mod errors;
pub mod family;
pub mod json;
pub mod model;
pub mod outline;
pub mod request;
pub mod sha256;
pub mod sse;
pub mod usage;
