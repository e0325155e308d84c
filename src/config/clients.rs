//! The settings of `auth` and `cors`: a part of the table.

use std::path::PathBuf;

use super::kind::{ENV_NAME, FilePath, ListOf, OrNull, WEB_ORIGIN};
use super::node::Node;
use super::page::Page;
use super::reader::Reader;
use super::schema::{Kind, Section, settings};

settings! {
    /// Keys of clients.
    pub struct Auth {
        /// The environment variable that holds the lines.
        keys_env: Option<String> = None, OrNull(ENV_NAME);
        /// The file that holds the lines.
        keys_file: Option<PathBuf> = None, OrNull(FilePath);
    }

    /// Cross-origin requests.
    pub struct Cors {
        /// Origins that ramjet answers itself: preflights without a key, and the header fields of every answer. Empty:
        /// that is the engines' business and passes through.
        origins: Vec<String> = Vec::new(), ListOf { min: 0, item: WEB_ORIGIN };
    }
}
