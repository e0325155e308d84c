//! What a daemon can no longer do once it has become `server.user`: said at its start, not found out at its first upgrade.

use crate::cli::Cli;
use crate::config::Config;
use nix::unistd::User;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Warns of settings that do not go together with `server.user`.
pub(super) fn warn(config: &Config, cli: &Cli) {
    let Some(user) = config.server.user.as_deref().and_then(|name| User::from_name(name).ok().flatten()) else {
        return;
    };
    if !cli.daemon {
        return log::warn!("server.user: only a daemon (-d) becomes another user; this process stays who it is");
    }
    let server = &config.server;
    for (key, file, lost) in [
        ("server.pid_file", &server.pid_file, "after an upgrade it would name a process that ends"),
        ("server.upgrade_sock", &server.upgrade_sock, "no upgrade would be possible"),
    ] {
        let folder = file.parent().unwrap_or(Path::new("/"));
        if !may_write(folder, &user) {
            log::warn!(
                "{key}: {} may not make files in {}: {lost}; name a folder of its own",
                user.name,
                folder.display()
            );
        }
    }
}

/// Whether a user may make and rename files in `folder`, going by its mode and the user's own group.
fn may_write(folder: &Path, user: &User) -> bool {
    const BOTH: u32 = 0o3;
    let shift = |of: &fs::Metadata| match () {
        () if of.uid() == user.uid.as_raw() => 6,
        () if of.gid() == user.gid.as_raw() => 3,
        () => 0,
    };
    user.uid.is_root() || fs::metadata(folder).is_ok_and(|of| of.mode() >> shift(&of) & BOTH == BOTH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::{Gid, Uid};
    use std::ffi::CString;
    use std::path::PathBuf;

    fn user(uid: u32, gid: u32) -> User {
        User {
            name: "somebody".to_owned(),
            passwd: CString::default(),
            uid: Uid::from_raw(uid),
            gid: Gid::from_raw(gid),
            gecos: CString::default(),
            dir: PathBuf::new(),
            shell: PathBuf::new(),
        }
    }

    #[test]
    fn who_may_make_files_is_told_by_owner_group_and_mode() {
        let folder = std::env::temp_dir().join(format!("ramjet-owner-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let of = fs::metadata(&folder).unwrap();
        let (owner, group, other) =
            (user(of.uid().max(1), of.gid() + 1), user(4242, of.gid()), user(4242, of.gid().wrapping_add(1)));
        let may = |mode: u32| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            fs::set_permissions(&folder, mode).unwrap();
            [may_write(&folder, &group), may_write(&folder, &other)]
        };
        assert_eq!(may(0o700), [false, false]);
        assert_eq!(may(0o770), [true, false]);
        assert_eq!(may(0o777), [true, true]);
        assert_eq!(may_write(&folder, &owner), owner.uid.as_raw() == of.uid() || may_write(&folder, &other));
        fs::remove_dir(&folder).unwrap();
        assert!(!may_write(&folder, &other));
    }
}
