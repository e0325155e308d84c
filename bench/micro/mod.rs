//! The steps of the request path by themselves.

mod cases;
mod contention;
mod instructions;

pub(crate) use contention::{ContentionArgs, run as contention};
pub(crate) use instructions::{InstructionsArgs, run as instructions};
