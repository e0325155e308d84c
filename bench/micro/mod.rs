//! The steps of the request path by themselves.

mod cases;
mod instructions;

pub(crate) use instructions::{InstructionsArgs, run as instructions};
