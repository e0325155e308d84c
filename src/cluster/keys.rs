//! What a group of routers shares in secret, and the frame that everything in the store has: who wrote it is proved, and
//! what it names is hashed. Pure.
//!
//! From the secret and the name of the group three keys are made (HMAC-SHA-256, RFC 2104, as a key derivation): the number
//! that fingerprints are made with, the one that names are hashed with, and the one that proves. So what others write into a
//! store is recognised and left alone. What is missing in it, or old, is not recognised: that costs hit rate. Who reads it sees
//! numbers; but the hash of a block goes on from that of the block before it, and short texts can be found by trying all of
//! them. So a store is to be kept as private as prompts are.

use crate::api::sha256::{Digest, is_same, sha256};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The version of what is in a frame.
pub const VERSION: u8 = 1;
/// Bytes of a proof.
const PROOF: usize = 16;
/// Before the content: version, size of a block, writer, proof.
const HEAD: usize = 1 + size_of::<u32>() + size_of::<u64>() + PROOF;
/// Bytes of the blocks of HMAC.
const BLOCK: usize = 64;

/// The keys of a group.
#[derive(Clone)]
pub struct Keys {
    fingerprints: u64,
    names: u64,
    proofs: Digest,
    /// Bytes of a block of a prompt: routers with another size understand nothing of each other.
    block_bytes: u32,
}

/// What a frame is for: none can stand in another one's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A batch in the stream.
    Batch,
    /// What a router has at the moment.
    Live,
    /// What it has learned of speeds.
    Lore,
    /// What operators have said.
    Order,
}

/// Why something in the store is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// It is no frame, or its content cannot be read.
    Malformed,
    /// It is of another version.
    Version,
    /// Nobody of this group wrote it.
    Unproved,
    /// Its writer has blocks of another size.
    Shape,
    /// It was read before.
    Repeated,
}

impl Rejected {
    /// Every reason, in the order of the metrics' label values.
    pub const ALL: [Rejected; 5] =
        [Rejected::Malformed, Rejected::Version, Rejected::Unproved, Rejected::Shape, Rejected::Repeated];

    /// The label value.
    pub fn label(self) -> &'static str {
        match self {
            Rejected::Malformed => "malformed",
            Rejected::Version => "version",
            Rejected::Unproved => "unproved",
            Rejected::Shape => "shape",
            Rejected::Repeated => "repeated",
        }
    }
}

impl Keys {
    /// The keys of the group of this name whose routers know `secret`, with prompts in blocks of so many bytes.
    pub fn new(secret: &[u8], group: &str, block_bytes: usize) -> Self {
        let derive = |what: &str| hmac(secret, &[b"ramjet cluster ", what.as_bytes(), b" of ", group.as_bytes()]);
        let number = |digest: Digest| digest.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        Keys {
            fingerprints: number(derive("fingerprints")),
            names: number(derive("names")),
            proofs: derive("proofs"),
            block_bytes: u32::try_from(block_bytes).unwrap_or(u32::MAX),
        }
    }

    /// The number that fingerprints, sessions and ids are hashed with.
    pub fn fingerprints(&self) -> u64 {
        self.fingerprints
    }

    /// What a replica or a model is called in the store.
    pub fn name(&self, name: &str) -> u64 {
        xxh3_64_with_seed(name.as_bytes(), self.names)
    }

    /// A frame around `content`, by `writer`.
    pub fn seal(&self, purpose: Purpose, writer: u64, content: &[u8]) -> Vec<u8> {
        let mut frame = Vec::with_capacity(HEAD + content.len());
        frame.push(VERSION);
        frame.extend_from_slice(&self.block_bytes.to_le_bytes());
        frame.extend_from_slice(&writer.to_le_bytes());
        let proof = self.proof(purpose, &frame, content);
        frame.extend_from_slice(&proof);
        frame.extend_from_slice(content);
        frame
    }

    /// The writer and the content of a frame.
    ///
    /// # Errors
    /// It is none, or not one of this group.
    pub fn open<'a>(&self, purpose: Purpose, frame: &'a [u8]) -> Result<(u64, &'a [u8]), Rejected> {
        let (head, content) = frame.split_at_checked(HEAD).ok_or(Rejected::Malformed)?;
        if head[0] != VERSION {
            return Err(Rejected::Version);
        }
        let (said, proof) = head.split_at(HEAD - PROOF);
        let pad = |proof: &[u8]| {
            let mut padded = Digest::default();
            padded[..PROOF].copy_from_slice(proof);
            padded
        };
        if !is_same(&pad(proof), &pad(&self.proof(purpose, said, content))) {
            return Err(Rejected::Unproved);
        }
        if said[1..5] != self.block_bytes.to_le_bytes() {
            return Err(Rejected::Shape);
        }
        let writer = said[5..].first_chunk().ok_or(Rejected::Malformed)?;
        Ok((u64::from_le_bytes(*writer), content))
    }

    fn proof(&self, purpose: Purpose, head: &[u8], content: &[u8]) -> [u8; PROOF] {
        let mut proof = [0; PROOF];
        proof.copy_from_slice(&hmac(&self.proofs, &[&[purpose as u8], head, content])[..PROOF]);
        proof
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys(not shown)")
    }
}

/// HMAC-SHA-256 of the parts, one after the other.
fn hmac(key: &[u8], parts: &[&[u8]]) -> Digest {
    let mut block = [0; BLOCK];
    match block.get_mut(..key.len()) {
        Some(short) => short.copy_from_slice(key),
        None => block[..size_of::<Digest>()].copy_from_slice(&sha256(key)),
    }
    let padded = |pad: u8| block.map(|byte| byte ^ pad);
    let mut inner = padded(0x36).to_vec();
    parts.iter().for_each(|part| inner.extend_from_slice(part));
    sha256(&[&padded(0x5c)[..], &sha256(&inner)].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys(secret: &str, group: &str) -> Keys {
        Keys::new(secret.as_bytes(), group, 2048)
    }

    #[test]
    fn it_is_hmac_as_rfc_4231_has_it() {
        let hex = |digest: Digest| digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let second = hmac(b"Jefe", &[b"what do ya want ", b"for nothing?"]);
        assert_eq!(hex(second), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        let sixth = hmac(&[0xaa; 131], &[b"Test Using Larger Than Block-Size Key - Hash Key First"]);
        assert_eq!(hex(sixth), "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    }

    #[test]
    fn one_group_agrees_and_no_other_secret_group_or_purpose_opens_what_it_wrote() {
        let (a, b) = (keys("s", "g"), keys("s", "g"));
        assert_eq!((a.fingerprints(), a.name("gpu-a")), (b.fingerprints(), b.name("gpu-a")));
        assert_ne!(a.fingerprints(), a.names);
        let frame = a.seal(Purpose::Live, 7, b"content");
        assert_eq!(b.open(Purpose::Live, &frame), Ok((7, &b"content"[..])));
        assert_eq!(b.open(Purpose::Batch, &frame), Err(Rejected::Unproved));
        for other in [keys("t", "g"), keys("s", "h")] {
            assert_eq!(other.open(Purpose::Live, &frame), Err(Rejected::Unproved));
            assert_ne!((other.fingerprints(), other.name("gpu-a")), (a.fingerprints(), a.name("gpu-a")));
        }
        let other = Keys::new(b"s", "g", 4096);
        assert_eq!(other.open(Purpose::Live, &frame), Err(Rejected::Shape));
        assert!(!format!("{a:?}").contains(char::is_numeric), "keys are not shown");
    }

    proptest! {
        #[test]
        fn what_is_cut_or_altered_is_not_believed(content in prop::collection::vec(any::<u8>(), 0..200), at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let keys = keys("s", "g");
            let frame = keys.seal(Purpose::Batch, 9, &content);
            let at = at.index(frame.len());
            prop_assert!(keys.open(Purpose::Batch, &frame[..at]).is_err());
            let mut altered = frame.clone();
            altered[at] ^= 1 << bit;
            prop_assert!(keys.open(Purpose::Batch, &altered).is_err());
            prop_assert_eq!(keys.open(Purpose::Batch, &frame), Ok((9, &content[..])));
        }

        #[test]
        fn anything_at_all_is_looked_at_without_a_panic(frame in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(keys("s", "g").open(Purpose::Order, &frame).is_err());
        }
    }
}
