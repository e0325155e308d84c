//! What must outlive the process of the guard of speculative decoding: which engine instances are in quarantine. One
//! small file, read at the start and written whole at each change.
//!
//! A record counts only if nobody else can have written it: the file and its directory belong to this user or to root,
//! nobody else may write the directory or touch the file, and neither is a link. It is replaced, never changed: a new
//! file is written, synced and renamed, and the directory synced, so that after a loss of power the old or the new one
//! is there. A file that is cut off or altered is broken, and not taken for an empty one. A missing one is empty.
//!
//! ```text
//! ramjet-quarantine 1
//! gpu-a 1796006281.6 273 0
//! end 1
//! ```
//! A line is a replica's name, the start of its engine in seconds (or `-`), drafts proposed and accepted (or `-`). The name
//! `*`, which no replica has, stands for all that are not named with a `!` before: what a broken record held is not known.

use crate::policy::speculation::{Accepted, Reading};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, chown};
use std::path::{Path, PathBuf};

const HEAD: &str = "ramjet-quarantine 1";
/// No honest file is longer.
const LONGEST: u64 = 16 << 20;

/// Quarantined replicas by name, with what their engines last told of themselves.
pub type Quarantined = BTreeMap<String, Reading>;

/// The name of everybody who was not released.
pub const ALL: &str = "*";
/// What is written down of an engine that nothing is known of: no other instance can be told from it.
pub const UNKNOWN: Reading = Reading { started: None, drafted: 0.0, accepted: Accepted::Lately(false) };

/// Whether a replica of this name is kept away.
pub fn is_held(held: &Quarantined, name: &str) -> bool {
    held.contains_key(name) || held.contains_key(ALL) && !held.contains_key(&released(name))
}

/// It is no longer.
pub fn free(held: &mut Quarantined, name: &str) {
    held.remove(name);
    if held.contains_key(ALL) {
        held.insert(released(name), UNKNOWN);
    }
}

fn released(name: &str) -> String {
    format!("!{name}")
}

/// The file.
#[derive(Clone, Debug)]
pub struct Records {
    path: PathBuf,
    /// The user that this process becomes, if it becomes another one.
    user: Option<u32>,
}

impl Records {
    /// The file at `path`, which will be the `user`'s that this process becomes, if it becomes another one.
    pub fn at(path: PathBuf, user: Option<u32>) -> Self {
        Records { path, user }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it holds.
    ///
    /// # Errors
    /// It is there and cannot be believed, or its directory is not protected.
    pub fn load(&self) -> Result<Quarantined, String> {
        self.prepare()?;
        let found = match fs::symlink_metadata(&self.path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Quarantined::new()),
            Err(e) => return Err(e.to_string()),
            Ok(found) => found,
        };
        if !found.is_file() {
            return Err("it is no plain file".to_owned());
        }
        if !self.is_ours(&found) || found.mode() & 0o077 != 0 {
            return Err(
                "others than its owner, who must be this user or root, may use it (mode 0600 is needed)".to_owned()
            );
        }
        let mut text = String::new();
        let file = File::open(&self.path).map_err(|e| e.to_string())?;
        file.take(LONGEST).read_to_string(&mut text).map_err(|e| e.to_string())?;
        parse(&text).ok_or_else(|| "its content is not what was written".to_owned())
    }

    /// Replaces what it holds; on return that is on the disk.
    ///
    /// # Errors
    /// What the system said. The file is then the old or the new one.
    pub fn store(&self, held: &Quarantined) -> io::Result<()> {
        let folder = self.folder();
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let draft = folder.join(format!(".{name}.{}", std::process::id()));
        // one that a crash left behind
        let _absent = fs::remove_file(&draft);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        let written = file.write_all(render(held).as_bytes()).and_then(|()| file.sync_all());
        if let Err(e) = written.and_then(|()| fs::rename(&draft, &self.path)) {
            let _gone = fs::remove_file(&draft);
            return Err(e);
        }
        File::open(folder)?.sync_all()
    }

    /// Keeps a broken file under another name. It stays where it is as well, until a new one takes its place: a missing
    /// one would be taken for an empty one.
    ///
    /// # Errors
    /// What the system said; nothing has changed then.
    pub fn set_aside(&self) -> io::Result<()> {
        let mut aside = self.path.clone().into_os_string();
        aside.push(".broken");
        // of one that was broken before, only the last is kept
        let _absent = fs::remove_file(&aside);
        match fs::hard_link(&self.path, &aside) {
            // where there is none, nothing is lost
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            // not every file system links; and what is no file makes room
            Err(_) => fs::copy(&self.path, &aside).map(drop).or_else(|_| fs::rename(&self.path, &aside)),
            Ok(()) => Ok(()),
        }
    }

    /// Whether a file belongs to the user of this process, now or soon, or to root.
    fn is_ours(&self, found: &fs::Metadata) -> bool {
        let own = fs::metadata("/proc/self").map(|own| own.uid());
        found.uid() == 0 || self.user == Some(found.uid()) || own.is_ok_and(|own| own == found.uid())
    }

    fn folder(&self) -> &Path {
        match self.path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        }
    }

    /// The directory, made if its parent is there, and protected.
    fn prepare(&self) -> Result<(), String> {
        let folder = self.folder();
        let failed = |e: io::Error| format!("{}: {e}", folder.display());
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(failed(e)),
            Ok(()) => {
                // what is written into it later must not vanish with it
                File::open(folder.join("..")).and_then(|above| above.sync_all()).map_err(failed)?;
                if self.user.is_some() {
                    chown(folder, self.user, None).map_err(failed)?;
                }
            }
        }
        // systemd makes a link of a state directory; who made it counts as well
        let (link, found) = (fs::symlink_metadata(folder).map_err(failed)?, fs::metadata(folder).map_err(failed)?);
        if !found.is_dir() || !self.is_ours(&link) || !self.is_ours(&found) || found.mode() & 0o022 != 0 {
            return Err(format!(
                "{}: others than its owner, who must be this user or root, may write there",
                folder.display()
            ));
        }
        Ok(())
    }
}

fn render(held: &Quarantined) -> String {
    let line = |(name, reading): (&String, &Reading)| {
        let started = reading.started.map_or("-".to_owned(), |at| at.to_string());
        let accepted = match reading.accepted {
            Accepted::Total(n) => n.to_string(),
            Accepted::Lately(_) => "-".to_owned(),
        };
        format!("{name} {started} {} {accepted}\n", reading.drafted)
    };
    let lines: String = held.iter().map(line).collect();
    format!("{HEAD}\n{lines}end {}\n", held.len())
}

fn parse(text: &str) -> Option<Quarantined> {
    let (body, end) = text.strip_prefix(HEAD)?.strip_prefix('\n')?.strip_suffix('\n')?.rsplit_once("end ")?;
    let mut held = Quarantined::new();
    for line in body.lines() {
        let mut words = line.split(' ');
        let (name, started) = (words.next().filter(|name| !name.is_empty())?, words.next()?);
        let (drafted, accepted) = (number(words.next()?)?, words.next()?);
        let started = if started == "-" { None } else { Some(number(started)?) };
        let accepted = if accepted == "-" { Accepted::Lately(false) } else { Accepted::Total(number(accepted)?) };
        if words.next().is_some() {
            return None;
        }
        held.insert(name.to_owned(), Reading { started, drafted, accepted });
    }
    (end.parse() == Ok(held.len()) && (body.is_empty() || body.ends_with('\n'))).then_some(held)
}

fn number(word: &str) -> Option<f64> {
    word.parse().ok().filter(|n: &f64| n.is_finite() && *n >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Place {
            let path = std::env::temp_dir().join(format!("ramjet-records-{}-{name}", std::process::id()));
            let _absent = fs::remove_dir_all(&path);
            Place(path)
        }

        fn records(&self) -> Records {
            Records::at(self.0.join("q"), None)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _gone = fs::remove_dir_all(&self.0);
        }
    }

    fn held() -> Quarantined {
        let reading = Reading { started: Some(1_796_006_281.6), drafted: 273.0, accepted: Accepted::Total(0.0) };
        let bare = Reading { started: None, drafted: 9.0, accepted: Accepted::Lately(false) };
        [("gpu-a#dp1".to_owned(), reading), ("b".to_owned(), bare)].into()
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_is_stored_is_loaded_from_a_file_that_nobody_else_reads() {
        let place = Place::new("kept");
        let records = place.records();
        assert_eq!(records.load(), Ok(Quarantined::new()));
        for wanted in [held(), Quarantined::new(), held()] {
            records.store(&wanted).unwrap();
            assert_eq!(records.load(), Ok(wanted));
        }
        assert_eq!(fs::metadata(records.path()).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&place.0).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::read_dir(&place.0).unwrap().count(), 1);
    }

    #[test]
    fn what_others_could_have_written_is_broken() {
        let place = Place::new("open");
        let records = place.records();
        records.load().unwrap();
        records.store(&held()).unwrap();
        mode(records.path(), 0o644);
        assert!(records.load().is_err());
        mode(records.path(), 0o600);
        mode(&place.0, 0o770);
        assert!(records.load().is_err());
        mode(&place.0, 0o755);
        assert_eq!(records.load(), Ok(held()));
        fs::rename(records.path(), place.0.join("real")).unwrap();
        symlink(place.0.join("real"), records.path()).unwrap();
        assert!(records.load().is_err());
        records.set_aside().unwrap();
        assert!(records.load().is_err(), "it is broken until another one takes its place");
        records.store(&held()).unwrap();
        assert_eq!(records.load(), Ok(held()));
        assert!(place.0.join("q.broken").symlink_metadata().unwrap().is_symlink());
        assert!(Records::at(place.0.join("missing/deep/q"), None).load().is_err());
    }

    #[test]
    fn a_file_that_was_cut_off_or_altered_is_broken_and_not_empty() {
        let whole = render(&held());
        assert_eq!(parse(&whole), Some(held()));
        for at in 0..whole.len() {
            assert_eq!(parse(&whole[..at]), None, "{at}");
        }
        for text in ["", "{}", "ramjet-quarantine 1\na 1 2\nend 1\n", "ramjet-quarantine 1\na x 2 3\nend 1\n"] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(parse("ramjet-quarantine 1\na 1 2 3\nend 2\n"), None);
        assert_eq!(parse("ramjet-quarantine 1\nend 0\n"), Some(Quarantined::new()));
    }

    #[test]
    fn after_a_broken_record_all_are_held_but_those_that_were_released() {
        let mut all: Quarantined = [(ALL.to_owned(), UNKNOWN)].into();
        free(&mut all, "a");
        let mut all = parse(&render(&all)).unwrap();
        assert!(!is_held(&all, "a") && is_held(&all, "b") && is_held(&all, "comes later"));
        // it may be held again, and released again
        all.insert("a".to_owned(), UNKNOWN);
        assert!(is_held(&all, "a"));
        free(&mut all, "a");
        assert!(!is_held(&all, "a"));
        assert!(is_held(&held(), "b") && !is_held(&held(), "c"));
    }

    proptest! {
        #[test]
        fn numbers_survive(started in prop::option::of(0.0f64..1e12), drafted in 0.0f64..1e15, accepted in 0.0f64..1e15) {
            let reading = Reading { started, drafted, accepted: Accepted::Total(accepted) };
            let held: Quarantined = [("a".to_owned(), reading)].into();
            prop_assert_eq!(parse(&render(&held)), Some(held));
        }
    }
}
