//! The data-parallel rank in a request: an engine with several ranks balances between them itself, by load, unless the
//! request names one. It is named in the body and in the head; engines take (as their published packages have it):
//!
//! | engine | member `routed_dp_rank` | header `X-data-parallel-rank` |
//! |---|---|---|
//! | SGLang from 0.5.10 | chat, completions, `/generate` | chat, completions (Responses too, lately); goes before the member |
//! | SGLang 0.5.7 to 0.5.9 | no: the member is called `data_parallel_rank` | no |
//! | SGLang before | no: `/generate` alone takes `data_parallel_rank` | no |
//! | vLLM from 0.11.1 | no | chat, completions, later Responses; what is no number is ignored |
//! | vLLM before | no | no |
//!
//! A newer SGLang takes `data_parallel_rank` too, but only where nobody says `routed_dp_rank`, so a caller's does nothing.
//! Engines that take neither balance as they like: their ranks are not to be configured as replicas.
//!
//! The rank is ramjet's to say. A caller's member of that name is taken out, and ours is the last: for a reader that takes
//! the first of two as for one that takes the last. A caller's header goes wherever ranks are configured. What is
//! streamed through, and what is no JSON object, has the header only.

use super::body::Body;
use crate::api::edit::LastMember;
use http::{HeaderName, HeaderValue};

const MEMBER: &str = "routed_dp_rank";
const HEADER: HeaderName = HeaderName::from_static("x-data-parallel-rank");

/// Where the body names the rank.
#[derive(Debug, Default)]
pub(super) enum RankField {
    /// No rank was to be named yet.
    #[default]
    Unsought,
    /// It is not a body that could.
    Nowhere,
    /// Here.
    At(LastMember),
}

impl RankField {
    /// Names the rank of an attempt in the body, in the place of the last attempt's.
    pub(super) fn write(&mut self, body: &mut Body, rank: Option<u32>) {
        if let (RankField::Unsought, Some(_)) = (&*self, rank) {
            self.seek(body);
        }
        if let RankField::At(place) = self {
            let text = rank.map(|rank| format!("\"{MEMBER}\":{rank}")).unwrap_or_default();
            body.edit(|bytes| place.write(bytes, &text));
        }
    }

    fn seek(&mut self, body: &mut Body) {
        *self = RankField::Nowhere;
        body.edit(|mut bytes| {
            if let Some(place) = LastMember::find(&mut bytes, MEMBER) {
                *self = RankField::At(place);
            }
            bytes
        });
    }
}

/// The rank in the head; a caller's own word goes, whatever the replica.
pub(super) fn field(rank: Option<u32>) -> (HeaderName, Option<HeaderValue>) {
    (HEADER, rank.map(HeaderValue::from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn every_attempt_names_its_own_rank() {
        let held = |text: &'static str| Body::Held(Bytes::from_static(text.as_bytes()));
        let mut body = held(r#"{"n":1.0,"routed_dp_rank":9}"#);
        let mut field = RankField::default();
        for (rank, want) in [
            // before the first rank is named nothing is touched
            (None, r#"{"n":1.0,"routed_dp_rank":9}"#),
            (Some(3), r#"{"n":1.0,"routed_dp_rank":3}"#),
            (Some(12), r#"{"n":1.0,"routed_dp_rank":12}"#),
            (None, r#"{"n":1.0}"#),
            (Some(0), r#"{"n":1.0,"routed_dp_rank":0}"#),
        ] {
            field.write(&mut body, rank);
            assert_eq!(body.held().unwrap(), want);
        }
        let (mut body, mut field) = (held("not JSON"), RankField::default());
        field.write(&mut body, Some(3));
        assert_eq!(body.held().unwrap(), "not JSON");
        let (mut body, mut field) = (Body::Untouched, RankField::default());
        field.write(&mut body, Some(3));
        assert!(body.held().is_none());
    }
}
