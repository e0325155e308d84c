//! The reference document: every key with its documentation, what it may be, and its default.

use super::env;
use super::page::Page;
use super::schema::Section;
use super::table::Config;

const HEAD: &str = "\
Every setting of ramjet with its default. Written by `ramjet reference`.
A file needs only what differs from this; `ramjet -t -c FILE` checks one.
Flags override the environment, the environment overrides the file.
Unknown and duplicate keys are errors.";

const ENVIRONMENT: &str = "\
Environment. These names override the file; one without a value counts as not set.
Any other RJ_* name, and every MD_* or DS4_* name, is an error.
With RJ_UPSTREAM and no file, listen.admin is 0.0.0.0:9090 unless given.
";

/// The full commented reference configuration. It parses back to the defaults.
pub fn reference() -> String {
    let mut page = Page::default();
    page.comment(HEAD);
    Config::default().document(&mut page);
    page.line("");
    page.comment(ENVIRONMENT);
    page.comment("\n");
    env::document(&mut page);
    page.into_text()
}
