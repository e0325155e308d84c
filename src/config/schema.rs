//! How a table of settings becomes a struct, its defaults, its reader and its reference.
//!
//! Serde with a schema generator was considered and refused: it stops at the first mistake, loses lines, and keeps
//! defaults, ranges and documentation in three places. Here a key is one entry, `name: type = default, kind;`.

use super::node::Node;
use super::page::Page;
use super::reader::Reader;

/// A map of settings, written by `settings!`.
pub(super) trait Section: Default {
    /// The keys, in the order of the table.
    const KEYS: &'static [&'static str];

    /// Reads the value of one of `KEYS`.
    fn read_key(&mut self, key: &str, node: &Node, reader: &mut Reader);

    /// Writes every key with its documentation and its present value.
    fn document(&self, page: &mut Page);
}

/// What a setting's value may be: how it is read, and how the reference shows it.
pub(super) trait Kind {
    /// The checked value.
    type Value;

    /// Reads `node` into `slot`, or reports why it cannot and leaves `slot` as it is.
    fn read(&self, node: &Node, slot: &mut Self::Value, reader: &mut Reader);

    /// Writes the setting with its documentation.
    fn document(&self, key: &str, docs: &[&str], value: &Self::Value, page: &mut Page);
}

/// Declares sections of settings, each `key: type = default, kind;` under its documentation.
macro_rules! settings {
    ($(
        $(#[doc = $about:literal])+
        $vis:vis struct $section:ident {
            $(
                $(#[doc = $doc:literal])+
                $key:ident: $value:ty = $default:expr, $kind:expr;
            )+
        }
    )+) => { $(
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq)]
        $vis struct $section {
            $( $(#[doc = $doc])+ $vis $key: $value, )+
        }

        impl Default for $section {
            fn default() -> Self {
                Self { $( $key: $default, )+ }
            }
        }

        impl Section for $section {
            const KEYS: &'static [&'static str] = &[$( stringify!($key) ),+];

            fn read_key(&mut self, key: &str, node: &Node, reader: &mut Reader) {
                match key {
                    $( stringify!($key) => $kind.read(node, &mut self.$key, reader), )+
                    _ => {}
                }
            }

            fn document(&self, page: &mut Page) {
                $( $kind.document(stringify!($key), &[$( $doc ),+], &self.$key, page); )+
            }
        }
    )+ };
}
pub(super) use settings;
