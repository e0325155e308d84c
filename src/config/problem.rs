//! What is wrong with a configuration, and where.
//!
//! A start that stops at the first mistake makes an operator find ten mistakes in ten starts, so problems are
//! collected and shown together, one line each. **Invariant: no problem carries a secret's value.**

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// Where a setting was written. The order is the order in which problems are shown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// A configuration file.
    File {
        /// The file, as it was named.
        path: Arc<str>,
        /// The line, from 1; none where the whole file is meant.
        line: Option<usize>,
    },
    /// An environment name.
    Env(String),
    /// A command-line flag.
    Flag(&'static str),
    /// Nowhere: the default is in force.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { path, line: Some(line) } => write!(f, "{path}:{line}"),
            Origin::File { path, line: None } => f.write_str(path),
            Origin::Env(name) => f.write_str(name),
            Origin::Flag(flag) => f.write_str(flag),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where it was written.
    pub origin: Origin,
    /// The setting, such as `fleet.replicas[1].url`; empty where no single setting is meant.
    pub path: String,
    /// What stands there.
    pub found: String,
    /// What may stand there.
    pub allowed: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        write!(f, "found {}; allowed: {}", self.found, self.allowed)
    }
}

/// Everything that is wrong; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// `None` where there is nothing to complain about.
    pub(super) fn new(mut problems: Vec<Problem>) -> Option<Problems> {
        problems.sort_by(|a, b| a.origin.cmp(&b.origin));
        (!problems.is_empty()).then_some(Problems(problems))
    }

    /// The problems: those of the file by line, then those of the environment, then those of the flags.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{problem}")?;
        }
        Ok(())
    }
}

impl Error for Problems {}

/// Text as it is shown in a problem: quoted, on one line, not too long.
pub(super) fn quoted(text: &str) -> String {
    const SHOWN: usize = 80;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}
