//! Discovery by a file that is watched: another program writes it, and what it lists comes into force.
//!
//! The file is looked at again and again (its inode, size and time), and read when it is another one and has not changed
//! between two looks, and not if it changes while it is read, so that half of a list is not taken for all of it. Only where nothing is
//! known yet it is read at once. What cannot be read changes nothing.

use super::membership::{Listed, Memory, Source};
use crate::fleet::replica::ReplicaSpec;
use async_trait::async_trait;
use parking_lot::Mutex;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// Makes replicas of the text of a file, or says everything that is wrong with it.
pub type ReadList = Box<dyn Fn(&str) -> Result<Vec<ReplicaSpec>, String> + Send + Sync>;

/// A watched file.
pub struct WatchedFile {
    path: PathBuf,
    interval: Duration,
    read_list: ReadList,
    /// Held for a look.
    seen: Mutex<Seen>,
}

/// What tells a state of the file from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

#[derive(Debug, Default)]
struct Seen {
    /// At the last look.
    last: Option<Stamp>,
    /// When it was read.
    read: Option<Stamp>,
    /// The hash of what was read, and what is wrong with it.
    content: Option<(u64, Option<String>)>,
}

impl WatchedFile {
    /// Looks at the file every `interval`.
    pub fn new(path: PathBuf, interval: Duration, read_list: ReadList) -> Self {
        WatchedFile { path, interval, read_list, seen: Mutex::default() }
    }

    /// What it lists, if that is news; where nothing is known (`is_first`) it is not looked at twice.
    fn look(&self, is_first: bool) -> Result<Option<Vec<ReplicaSpec>>, String> {
        let seen = &mut *self.seen.lock();
        let shown = self.path.display();
        let now = stamp(&self.path).map_err(|e| format!("{shown} cannot be read ({e})"))?;
        let before = seen.last.replace(now);
        if seen.read == Some(now) || (before != Some(now) && !is_first) {
            return seen.verdict();
        }
        let text = std::fs::read_to_string(&self.path).map_err(|e| format!("{shown} cannot be read ({e})"))?;
        if stamp(&self.path).ok() != Some(now) {
            // somebody is writing
            return seen.verdict();
        }
        seen.read = Some(now);
        let hash = xxh3_64(text.as_bytes());
        if seen.content.as_ref().is_some_and(|(known, _)| *known == hash) {
            return seen.verdict();
        }
        let list = (self.read_list)(&text);
        seen.content = Some((hash, list.as_ref().err().cloned()));
        list.map(Some)
    }
}

impl Seen {
    /// Nothing new.
    fn verdict(&self) -> Result<Option<Vec<ReplicaSpec>>, String> {
        match &self.content {
            Some((_, Some(wrong))) => Err(wrong.clone()),
            _ => Ok(None),
        }
    }
}

fn stamp(path: &Path) -> std::io::Result<Stamp> {
    let about = std::fs::metadata(path)?;
    Ok(Stamp { inode: about.ino(), size: about.len(), changed: (about.mtime(), about.mtime_nsec()) })
}

#[async_trait]
impl Source for WatchedFile {
    fn kind(&self) -> &'static str {
        "file"
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }

    async fn list(&self, memory: &mut Memory) -> Result<Listed, (String, Duration)> {
        match self.look(!memory.is_known) {
            Ok(specs) => Ok(Listed { specs, again: self.interval }),
            Err(wrong) => Err((wrong, self.interval)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::testing::spec;

    #[test]
    fn what_is_written_in_place_is_read_when_it_is_quiet_and_what_is_wrong_changes_nothing() {
        let path = std::env::temp_dir().join(format!("ramjet-watched-{}", std::process::id()));
        let read = |text: &str| match text.strip_suffix("end") {
            Some(names) => Ok(names.split_whitespace().map(spec).collect()),
            None => Err("half".to_owned()),
        };
        let file = WatchedFile::new(path.clone(), Duration::ZERO, Box::new(read));
        let look =
            || file.look(false).map(|list| list.map(|specs| specs.into_iter().map(|s| s.name).collect::<Vec<_>>()));
        assert!(look().unwrap_err().contains("cannot be read"));
        std::fs::write(&path, "a b end").unwrap();
        let names =
            |list: Option<Vec<ReplicaSpec>>| list.map(|specs| specs.into_iter().map(|s| s.name).collect::<Vec<_>>());
        assert_eq!(file.look(true).map(names), Ok(Some(vec!["a".to_owned(), "b".to_owned()])));
        assert_eq!(look(), Ok(None));
        std::fs::write(&path, "a b c").unwrap();
        assert_eq!(look(), Ok(None), "it may be half of it");
        std::fs::write(&path, "a b c end").unwrap();
        assert_eq!((look(), look().unwrap().unwrap().len()), (Ok(None), 3));
        std::fs::write(&path, "a bad").unwrap();
        assert_eq!((look(), look(), look()), (Ok(None), Err("half".into()), Err("half".into())));
        // put in its place as a whole
        let other = path.with_extension("new");
        std::fs::write(&other, "d end").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert_eq!((look(), look()), (Err("half".into()), Ok(Some(vec!["d".to_owned()]))));
        // taken away and written anew, which takes a while
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "e end").unwrap();
        assert_eq!(look(), Ok(None), "it may be half of it");
        std::fs::write(&path, "e f end").unwrap();
        assert_eq!((look(), look().unwrap().unwrap().len()), (Ok(None), 2));
        std::fs::remove_file(&path).unwrap();
        assert!(look().is_err());
    }
}
