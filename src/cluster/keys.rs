//! What a group of routers shares in secret, and the frame that everything in the store has: who wrote it is proved, nobody
//! else can read it, and what it names is hashed. Pure but for the chance that a frame begins with.
//!
//! From the secret and the name of the group keys are made (HMAC-SHA-256, RFC 2104, as a key derivation): the number that
//! fingerprints are made with (another one for each canonical form of prompts), the one that names are hashed with, and one for
//! each purpose of a frame. A frame is sealed with ChaCha20-Poly1305 (RFC 8439) under a random nonce of 96 bits; its head is
//! proved along with it. A hundred thousand million frames, a year of sixty-four busy routers, repeat a nonce with a chance of
//! one in ten million.
//!
//! Why not hashes alone: that of a block goes on from that of the block before it, and short texts can be found by trying
//! all of them. So who reads a store must see no hash of a prompt either. What he sees is how much is written, by how
//! many routers, and when. What is missing in the store, or old, is not recognised: that costs hit rate.

use crate::api::canonical::FORM;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The version of what is in a frame.
pub const VERSION: u8 = 4;
/// The same of what operators have said, which routers of all versions are to hear.
const ORDERS: u8 = 2;
/// Bytes of a key of frames.
const KEY: usize = 32;
/// What a frame says in clear: version, size of a block, writer.
const SAID: usize = 1 + size_of::<u32>() + size_of::<u64>();
/// Before what is sealed: that, and the nonce.
const HEAD: usize = SAID + NONCE_LEN;

/// The keys of a group.
#[derive(Clone)]
pub struct Keys {
    fingerprints: u64,
    names: u64,
    /// Those of frames, by purpose.
    frames: [[u8; KEY]; FRAMES.len()],
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

impl Purpose {
    fn version(self) -> u8 {
        match self {
            Purpose::Order => ORDERS,
            Purpose::Batch | Purpose::Live | Purpose::Lore => VERSION,
        }
    }
}

/// What the keys of frames are derived for, by purpose.
const FRAMES: [&str; 4] = ["batches", "live", "lore", "orders"];

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
    /// It was read before, or is of long ago.
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
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let derive = |what: &str| {
            let mut context = hmac::Context::with_key(&secret);
            ["ramjet cluster ", what, " of ", group].iter().for_each(|part| context.update(part.as_bytes()));
            context.sign()
        };
        let number = |tag: hmac::Tag| tag.as_ref().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        // a tag of SHA-256 is as long as a key
        let key = |purpose| derive(purpose).as_ref().first_chunk().copied().unwrap_or_default();
        Keys {
            fingerprints: number(derive(&format!("fingerprints of form {FORM}"))),
            names: number(derive("names")),
            frames: FRAMES.map(key),
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

    /// A frame around `content`, by `writer`; `None` where the system has no chance to offer.
    pub fn seal(&self, purpose: Purpose, writer: u64, content: &[u8]) -> Option<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).ok()?;
        let key = self.frame_key(purpose)?;
        let mut frame = Vec::with_capacity(HEAD + content.len() + key.algorithm().tag_len());
        frame.push(purpose.version());
        frame.extend_from_slice(&self.block_bytes.to_le_bytes());
        frame.extend_from_slice(&writer.to_le_bytes());
        frame.extend_from_slice(&nonce);
        frame.extend_from_slice(content);
        let (head, content) = frame.split_at_mut_checked(HEAD)?;
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = key.seal_in_place_separate_tag(nonce, Aad::from(&head[..SAID]), content).ok()?;
        frame.extend_from_slice(tag.as_ref());
        Some(frame)
    }

    /// The writer and the content of a frame, which is opened where it is.
    ///
    /// # Errors
    /// It is none, or not one of this group.
    pub fn open<'a>(&self, purpose: Purpose, frame: &'a mut [u8]) -> Result<(u64, &'a [u8]), Rejected> {
        let (head, sealed) = frame.split_at_mut_checked(HEAD).ok_or(Rejected::Malformed)?;
        if head[0] != purpose.version() {
            return Err(Rejected::Version);
        }
        let (said, nonce) = head.split_at(SAID);
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| Rejected::Malformed)?;
        let key = self.frame_key(purpose).ok_or(Rejected::Unproved)?;
        let content = key.open_in_place(nonce, Aad::from(said), sealed).map_err(|_| Rejected::Unproved)?;
        if said[1..5] != self.block_bytes.to_le_bytes() {
            return Err(Rejected::Shape);
        }
        let writer = said[5..].first_chunk().ok_or(Rejected::Malformed)?;
        Ok((u64::from_le_bytes(*writer), content))
    }

    fn frame_key(&self, purpose: Purpose) -> Option<LessSafeKey> {
        UnboundKey::new(&CHACHA20_POLY1305, &self.frames[purpose as usize]).ok().map(LessSafeKey::new)
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys(not shown)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys(secret: &str, group: &str) -> Keys {
        Keys::new(secret.as_bytes(), group, 2048)
    }

    fn opened(keys: &Keys, purpose: Purpose, frame: &[u8]) -> Result<(u64, Vec<u8>), Rejected> {
        keys.open(purpose, &mut frame.to_vec()).map(|(writer, content)| (writer, content.to_vec()))
    }

    #[test]
    fn what_operators_have_said_is_heard_by_all_versions() {
        let version = |purpose| keys("s", "g").seal(purpose, 7, b"content").unwrap()[0];
        assert_eq!((version(Purpose::Order), version(Purpose::Batch)), (2, VERSION));
    }

    #[test]
    fn one_group_agrees_and_no_other_secret_group_or_purpose_opens_what_it_wrote() {
        let (a, b) = (keys("s", "g"), keys("s", "g"));
        assert_eq!((a.fingerprints(), a.name("gpu-a")), (b.fingerprints(), b.name("gpu-a")));
        assert_ne!(a.fingerprints(), a.names);
        let frame = a.seal(Purpose::Live, 7, b"content").unwrap();
        assert_eq!(opened(&b, Purpose::Live, &frame), Ok((7, b"content".to_vec())));
        assert_eq!(opened(&b, Purpose::Batch, &frame), Err(Rejected::Unproved));
        // who reads sees neither what it says nor that it says the same again
        let again = a.seal(Purpose::Live, 7, b"content").unwrap();
        assert!(!frame.windows(3).any(|bytes| b"content".windows(3).any(|word| word == bytes)));
        assert_ne!(frame[HEAD..], again[HEAD..]);
        for other in [keys("t", "g"), keys("s", "h")] {
            assert_eq!(opened(&other, Purpose::Live, &frame), Err(Rejected::Unproved));
            assert_ne!((other.fingerprints(), other.name("gpu-a")), (a.fingerprints(), a.name("gpu-a")));
        }
        let other = Keys::new(b"s", "g", 4096);
        assert_eq!(opened(&other, Purpose::Live, &frame), Err(Rejected::Shape));
        assert!(!format!("{a:?}").contains(char::is_numeric), "keys are not shown");
    }

    proptest! {
        #[test]
        fn what_is_cut_or_altered_is_not_believed(content in prop::collection::vec(any::<u8>(), 0..200), at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let keys = keys("s", "g");
            let frame = keys.seal(Purpose::Batch, 9, &content).unwrap();
            let at = at.index(frame.len());
            prop_assert!(opened(&keys, Purpose::Batch, &frame[..at]).is_err());
            let mut altered = frame.clone();
            altered[at] ^= 1 << bit;
            prop_assert!(opened(&keys, Purpose::Batch, &altered).is_err());
            prop_assert_eq!(opened(&keys, Purpose::Batch, &frame), Ok((9, content)));
        }

        #[test]
        fn anything_at_all_is_looked_at_without_a_panic(frame in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(opened(&keys("s", "g"), Purpose::Order, &frame).is_err());
        }
    }
}
