//! What the tests of the fleet are made of.

use super::replica::{ReplicaSpec, Role};
use http::HeaderValue;

/// A replica of this name that nobody can reach.
pub(crate) fn spec(name: &str) -> ReplicaSpec {
    ReplicaSpec {
        name: name.into(),
        host: "h".into(),
        port: 1,
        prefix: String::new(),
        authority: HeaderValue::from_static("h"),
        models: vec![],
        authorization: None,
        tls: None,
        role: Role::default(),
    }
}
