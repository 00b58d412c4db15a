//! What a run's model last saw of each file, so that no edit overwrites what it has not seen.
//!
//! A read is entered with the state of the file that was opened, which costs nothing: its identity, size and change
//! time. Nobody can set a change time of this machine's file systems back, so the same state is the same content, except where the file changed within
//! the last tick of the clock: then, and after our own writes, the hash of the whole content is entered too. A file whose
//! state differs is the same only if its hash is known and equal; else it counts as changed, even if it was only touched.

use std::collections::HashMap;

use crate::sandbox::SandboxPath;
use crate::sandbox::dir::Version;

/// Half of the files that are remembered at most; those not seen for longest are forgotten, and count as not seen.
const GENERATION: usize = 32_768;

/// What was seen of one file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight {
    version: Version,
    /// The state alone tells the content.
    certain: bool,
    /// Of the whole content.
    hash: Option<blake3::Hash>,
}

/// How a file stands to what was seen of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    NotSeen,
    AsSeen,
    Changed,
}

impl Sight {
    /// A file that was read in this state, whose change time is `reliable`; `hash` of its whole content is computed only
    /// where the state does not tell it.
    pub(crate) fn read(version: Version, reliable: bool, hash: impl FnOnce() -> Option<blake3::Hash>) -> Self {
        let certain = reliable && version.is_past();
        Self { version, certain, hash: if certain { None } else { hash() } }
    }

    /// A file that we wrote.
    pub(crate) fn written(version: Version, hash: blake3::Hash) -> Self {
        Self { version, certain: false, hash: Some(hash) }
    }

    fn standing(&self, version: Version, hash: impl FnOnce() -> blake3::Hash) -> Standing {
        match self.hash {
            _ if self.certain && self.version == version => Standing::AsSeen,
            // Of its full length.
            Some(seen) if seen == hash() => Standing::AsSeen,
            None if self.version == version => Standing::NotSeen,
            _ => Standing::Changed,
        }
    }
}

/// A file's name: its mount and the name beneath it.
type Key = (usize, Vec<u8>);

/// What was seen, in two generations: when the younger is full it becomes the older, and that one is forgotten.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    young: HashMap<Key, Sight>,
    old: HashMap<Key, Sight>,
}

impl Seen {
    pub(crate) fn enter(&mut self, path: &SandboxPath, sight: Sight) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key(path), sight);
    }

    pub(crate) fn forget(&mut self, path: &SandboxPath) {
        let key = key(path);
        self.young.remove(&key);
        self.old.remove(&key);
    }

    pub(crate) fn get(&self, path: &SandboxPath) -> Option<Sight> {
        let key = key(path);
        self.young.get(&key).or_else(|| self.old.get(&key)).copied()
    }
}

/// How a file in this state stands to `sight`.
pub(crate) fn standing(sight: Option<Sight>, version: Version, hash: impl FnOnce() -> blake3::Hash) -> Standing {
    sight.map_or(Standing::NotSeen, |sight| sight.standing(version, hash))
}

fn key(path: &SandboxPath) -> Key {
    (path.mount_index(), path.rel().to_vec())
}
