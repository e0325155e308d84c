//! What the tests of the fleet are made of.

use super::Fleet;
use super::replica::{ReplicaSpec, Role};
use crate::policy::testing::params;
use crate::types::PolicyKind;
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

/// A fleet of these, that goes by load.
pub(crate) fn fleet(specs: impl IntoIterator<Item = ReplicaSpec>) -> Fleet {
    Fleet::new(specs.into_iter().collect(), params(PolicyKind::Load), 1 << 20)
}
