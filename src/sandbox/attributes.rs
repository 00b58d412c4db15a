//! What a replaced file keeps beside its content: owner, access list, extended attributes, mode. Access never widens.

use std::ffi::CString;
use std::os::fd::AsFd;

use rustix::fs::{self, Mode, Stat, XattrFlags};
use rustix::io::{Errno, Result};

const ACCESS_LIST: &str = "system.posix_acl_access";
/// File capabilities are a kind of setuid: they do not pass to new content.
const CAPABILITIES: &str = "security.capability";

/// Gives the new file what the old one had. What cannot be kept and bears on access is an error, with what it was.
pub(super) fn keep(old: impl AsFd, stat: &Stat, new: impl AsFd) -> std::result::Result<(), (&'static str, Errno)> {
    let mine = fs::fstat(&new).map_err(|e| ("writing", e))?;
    if (mine.st_uid, mine.st_gid) != (stat.st_uid, stat.st_gid) {
        let (uid, gid) = (fs::Uid::from_raw(stat.st_uid), fs::Gid::from_raw(stat.st_gid));
        fs::fchown(&new, Some(uid), Some(gid)).map_err(|e| ("keeping the owner of", e))?;
    }
    let names = names(&old).map_err(|e| ("keeping the attributes of", e))?;
    let has_list = names.iter().any(|name| name.as_bytes() == ACCESS_LIST.as_bytes());
    for name in &names {
        let copied = copy(&old, &new, name);
        if name.as_bytes() == ACCESS_LIST.as_bytes() {
            copied.map_err(|e| ("keeping the access list of", e))?;
        }
    }
    if !has_list {
        // The folder's default list may have given it one.
        match fs::fremovexattr(&new, ACCESS_LIST) {
            Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(errno) => return Err(("keeping the access list of", errno)),
        }
    }
    // Last: a change of owner may drop bits. Never setuid, setgid or sticky.
    fs::fchmod(&new, Mode::from_raw_mode(stat.st_mode & 0o777)).map_err(|e| ("keeping the mode of", e))
}

/// The attributes that pass to new content.
fn names(old: impl AsFd) -> Result<Vec<CString>> {
    let mut list = Vec::new();
    match fs::flistxattr_query(&old) {
        Ok(0) | Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Ok(size) => list.resize(size + 256, 0),
        Err(errno) => return Err(errno),
    }
    let size = fs::flistxattr(&old, list.as_mut_slice())?;
    let passes = |name: &&[u8]| {
        *name == ACCESS_LIST.as_bytes()
            || name.starts_with(b"user.")
            || (name.starts_with(b"security.") && *name != CAPABILITIES.as_bytes())
    };
    let names = list.get(..size).unwrap_or_default().split(|b| *b == 0).filter(passes);
    Ok(names.filter_map(|name| CString::new(name).ok()).collect())
}

fn copy(old: impl AsFd, new: impl AsFd, name: &CString) -> Result<()> {
    let mut value = vec![0; fs::fgetxattr_query(&old, name)?];
    let size = fs::fgetxattr(&old, name, value.as_mut_slice())?;
    fs::fsetxattr(new, name, value.get(..size).unwrap_or_default(), XattrFlags::empty())
}
