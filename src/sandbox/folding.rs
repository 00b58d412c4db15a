//! Volumes that do not tell upper case from lower, or one normal form from another: where a deny matches only after
//! folding, the entry's own name is the one that is judged.

use std::borrow::Cow;
use std::os::fd::AsFd;

use rustix::fs::{self, Mode, OFlags};

use super::dir::{self, Component, Dir};
use super::path::components;
use super::{Gate, Sandbox, SandboxPath, beneath};
use crate::permission::{Resource, fold};

impl Sandbox {
    /// Whether the name would be forbidden in another case or normal form, by the sandbox or by the policy: then the entry
    /// that it leads to says which name holds.
    pub(super) fn may_be_folded(&self, path: &SandboxPath, gate: &dyn Gate) -> bool {
        let frozen = self.frozen.load();
        let forbidden = |path: &SandboxPath| {
            let rel = fold(path.rel());
            let Ok(mount) = self.mount(path) else { return false };
            let under = |names: &[Vec<u8>]| names.iter().any(|name| beneath(&rel, &fold(name)).is_some());
            let resource = Resource { mount: path.mount(), rel: &rel };
            let constraints = self.constraints.hidden.iter().chain(&self.constraints.read_only);
            under(&mount.withheld)
                || frozen.names.iter().any(|(m, name)| *m == path.mount_index() && beneath(&rel, &fold(name)).is_some())
                || components(&rel).any(|c| c == b".git")
                || constraints.filter(|p| !p.is_every()).any(|p| p.folded().covers(&resource))
        };
        let folds = self.folds || frozen.folds || matches!(fold(path.rel()), Cow::Owned(_));
        folds && (forbidden(path) || self.aliases(path).any(|alias| forbidden(&alias))) || gate.may_be_folded(path)
    }
}

/// The name of the entry of `at` that `name` led to, which the volume may have found in another case or normal form.
pub(super) fn spelled(at: impl AsFd, name: Vec<u8>, identity: (u64, u64)) -> Vec<u8> {
    let folded = fold(&name);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = fs::openat(at, c".", flags, Mode::empty()).map(Dir::new);
    let Ok((dir, entries)) = opened.and_then(|dir| dir.entries(usize::MAX).map(|entries| (dir, entries))) else {
        return name;
    };
    if entries.iter().any(|entry| entry.name == name) {
        return name;
    }
    let same = |entry: &&dir::Entry| {
        Component::of(&entry.name).and_then(|name| dir.look(name)).is_ok_and(|look| look.identity == identity)
    };
    // A file may have two names in the folder: the one that reads the same is meant.
    let (alike, other): (Vec<_>, Vec<_>) = entries.iter().partition(|entry| fold(&entry.name) == folded);
    alike.into_iter().chain(other).find(same).map_or(name, |entry| entry.name.clone())
}
